"""`surface3d`: steps as high as the weights."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from mpl_toolkits.mplot3d import Axes3D

from headwise import masks
from headwise.errors import ArgumentError
from headwise.plot import surface3d
from headwise.plot.colour import MASKED
from headwise.plot.surface import steps_of
from headwise.records import Seen

from .conftest import WORDS, make_record, weights_of, written


def test_two_steps_by_hand() -> None:
    x, y, z = steps_of(np.array([[0.25, 0.75]]))
    assert x[0].tolist() == [-0.5, -0.5, 0.5, 0.5, 1.5, 1.5]
    assert y[:, 0].tolist() == [-0.5, -0.5, 0.5, 0.5]
    assert z.tolist() == [[0] * 6, [0, 0.25, 0.25, 0.75, 0.75, 0], [0, 0.25, 0.25, 0.75, 0.75, 0], [0] * 6]


def test_the_surface_is_the_records_weights(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    heights, draw = [], Axes3D.plot_surface

    def plot_surface(self: Axes3D, x: object, y: object, z: np.ndarray, **options: object) -> object:
        heights.append(z)
        return draw(self, x, y, z, **options)

    monkeypatch.setattr(Axes3D, "plot_surface", plot_surface)
    figure = surface3d(seen, layer=1, head=2)
    weights = weights_of(seen[1], 2)
    np.testing.assert_array_equal(heights[0][1:-1:2, 1:-1:2], weights)
    assert figure.axes[-1].get_zlim()[1] == pytest.approx(weights.max())
    assert len(figure.axes[-1].collections) == 1
    assert {*WORDS, "query", "key", "attention weight", "layer 1, head 2"} <= set(written(figure))


def test_masked_cells_are_grey_ground() -> None:
    record = make_record(mask=masks.causal())
    (surface,) = surface3d(record).axes[-1].collections
    grey = (np.abs(surface.get_facecolor() - to_rgba(MASKED)).max(axis=1) < 1e-6).sum()
    assert grey >= 15  # the cells above the diagonal
    (surface,) = surface3d(make_record()).axes[-1].collections
    assert not (np.abs(surface.get_facecolor() - to_rgba(MASKED)).max(axis=1) < 1e-6).any()
    assert "grey: masked, may not be attended to" in written(surface3d(record))


def test_long_matrices_are_pooled_and_not_all_are_named() -> None:
    record = make_record(130, 130, heads=1, key_heads=1)
    figure = surface3d(record, tokens=[f"word{i}" for i in range(130)])
    shown = written(figure)
    assert "each step is the largest of 3 × 3 weights" in shown
    named = [text for text in shown if text.startswith("word")]
    assert named[0] == "word0"
    assert 2 * 4 <= len(named) <= 2 * 44
    step = int(named[1].removeprefix("word"))
    assert any(f"every {step}" in text for text in shown)


def test_a_single_row_has_a_surface_too() -> None:
    assert surface3d(make_record(), rows=2).axes[-1].collections


def test_width_has_a_least(seen: Seen) -> None:
    assert surface3d(seen, layer=0, width=3.3).get_size_inches()[0] == pytest.approx(3.3)
    with pytest.raises(
        ArgumentError, match=r"width: expected at least 1\.\d inches for a surface. Received: width=1.2"
    ):
        surface3d(seen, layer=0, width=1.2)
