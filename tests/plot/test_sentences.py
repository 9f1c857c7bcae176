"""Every title and note of a figure that has a number: the number is computed again, in float64 from q and k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from headwise import masks
from headwise.plot import heads, heatmap, lines, mask, surface3d
from headwise.records import AttentionRecord
from tests.language import numbered

from .conftest import cells, make_record, make_seen, names, written

WITHOUT = {
    "example {0}": "given",
    "framed: the {0}": "name",
    "hatched: {0}": "name",
}

Says = Callable[..., None]


@pytest.fixture
def says() -> Says:
    return lambda template, figure, *values: numbered.compare(
        template, "\n".join(written(figure)), {str(i): value for i, value in enumerate(values)}, 1e-6
    )


def weights_of(record: AttentionRecord, allowed: torch.Tensor | None = None) -> np.ndarray:
    """The weights [H, Q, K] in float64."""
    scores = record.q[0].double() @ record.k[0].double().mT / record.q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed if allowed is not None else torch.tensor(False), -torch.inf).softmax(-1).numpy()


def pooled(weights: np.ndarray, *block: int) -> np.ndarray:
    for axis, size in enumerate(block):
        weights = np.maximum.reduceat(weights, np.arange(0, weights.shape[axis], size), axis=axis)
    return weights


def visit_a_mean(says: Says) -> None:
    record = make_record(heads=3, key_heads=3)
    figure = heatmap(record, head="mean")
    says("mean of {0} heads", figure, 3)
    np.testing.assert_allclose(cells(figure), weights_of(record).mean(0), rtol=1e-4)


def visit_a_hidden_sink(says: Says) -> None:
    """The first key is not the first that may be looked at; of some queries, the mean of all heads."""
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    allowed[:, 0] = False
    record = make_record(mask=masks.from_tensor(allowed))
    figure = heatmap(record, head="mean", rows=[2, 3, 5], hide_sink=True)
    share = float(weights_of(record, allowed)[:, [2, 3, 5], 1].mean())
    says("{0} is hidden: it takes {1} of the weight; the others are not rescaled", figure, "key 1", share)


def visit_blocks_of_weights(says: Says) -> None:
    record = make_record(2010, 1001, heads=1, key_heads=1)
    figure = heatmap(record)
    blocks = [-(-size // drawn) for size, drawn in zip((2010, 1001), cells(figure).shape, strict=True)]
    says("each cell is the largest of up to {0} × {1} weights", figure, *blocks)
    np.testing.assert_allclose(cells(figure), pooled(weights_of(record)[0], *blocks), rtol=1e-3)


def visit_names_of_some(says: Says) -> None:
    figure = heatmap(make_record(300, 300, heads=1, key_heads=1))
    first, second = names(figure, "cols")[:2]
    says("{0} (every {1} named)", figure, "key", f"{int(second) - int(first)}th")


def visit_steps_of_a_surface(says: Says) -> None:
    record = make_record(150, 300, heads=1, key_heads=1)
    figure = surface3d(record)
    axes = figure.axes[-1]
    steps = [-(-size // round(np.ptp(limits))) for size, limits in ((150, axes.get_ylim()), (300, axes.get_xlim()))]
    says("each step is the largest of up to {0} × {1} weights", figure, *steps)
    assert axes.get_zlim()[1] == pytest.approx(weights_of(record).max(), rel=1e-5)
    step = min(int(text) for text in written(figure) if text.isdecimal() and int(text) > 1)
    says(" (every {0} named)", figure, f"{step}th")


def visit_the_strongest_lines(says: Says) -> None:
    record = make_record(300, 300, heads=2, key_heads=2)
    weights = weights_of(record)
    figure = lines(record, head=[0, 1])
    says("the strongest line is {0}", figure, float(weights.max()))
    drawn = int((weights >= 0.02 * weights.max()).sum())
    assert drawn > 5000
    says("the {0} strongest lines: {1} are not drawn", figure, 5000, drawn - 5000)
    assert len(figure.axes[0].collections[0].get_paths()) == 5000


def visit_small_maps(says: Says) -> None:
    seen = make_seen(2, rows=200, cols=200)
    figure = heads(seen)
    drawn = figure.axes[0].images
    (size,) = {length for each in drawn for length in each.get_array().shape[:2]}
    says("maps of at most {0} × {1} cells, each the largest of its weights", figure, size, size)


def visit_blocks_of_a_mask(says: Says) -> None:
    figure = mask(masks.causal(), 1100)
    says("each cell is up to {0} × {1} pairs; filled: may attend{2}", figure, 3, 3, "; pale: some of them")
    blocks = pooled(np.tril(np.ones((1100, 1100))), 3, 3)
    drawn = figure.axes[0].images[0].get_array()
    assert drawn.shape[:2] == blocks.shape


VISITS = [visit for name, visit in list(globals().items()) if name.startswith("visit_")]


@pytest.mark.parametrize("visit", VISITS)
def test_a_figure_says_what_is_true(visit: Callable[[Says], None], says: Says) -> None:
    visit(says)


def test_every_sentence_of_a_figure_is_visited() -> None:
    numbered.check_complete(numbered.of_figures(), VISITS, WITHOUT)
