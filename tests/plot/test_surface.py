"""`surface3d`: steps as high as the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from mpl_toolkits.mplot3d.proj3d import proj_transform

from headwise import masks
from headwise.errors import ArgumentError
from headwise.plot import surface, surface3d
from headwise.plot.colour import MASKED
from headwise.plot.surface import list_faces
from headwise.records import Seen

from .conftest import WORDS, make_record, weights_of, written


def test_two_steps_by_hand() -> None:
    """From the right and the front: the lower step first, of whose walls the front one is seen."""
    found = [(i, j, face.tolist()) for i, j, face in list_faces(np.array([[0.25, 0.75]]), towards=(1.0, 1.0))]
    assert found == [
        (0, 0, [[-0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0.5, 0.25], [-0.5, 0.5, 0.25]]),
        (0, 0, [[-0.5, -0.5, 0.25], [0.5, -0.5, 0.25], [0.5, 0.5, 0.25], [-0.5, 0.5, 0.25]]),
        (0, 1, [[1.5, -0.5, 0], [1.5, 0.5, 0], [1.5, 0.5, 0.75], [1.5, -0.5, 0.75]]),
        (0, 1, [[0.5, 0.5, 0], [1.5, 0.5, 0], [1.5, 0.5, 0.75], [0.5, 0.5, 0.75]]),
        (0, 1, [[0.5, -0.5, 0.75], [1.5, -0.5, 0.75], [1.5, 0.5, 0.75], [0.5, 0.5, 0.75]]),
    ]


@pytest.mark.parametrize("eye", [(1.0, 0.6, 0.7), (-0.4, 1.0, 0.3), (0.8, -1.0, 1.5), (-1.0, -0.2, 0.5)])
def test_the_face_drawn_last_is_the_nearest_one(eye: tuple[float, float, float]) -> None:
    """At random places of the paper, among all faces there: so no step is drawn through another."""
    random = np.random.default_rng(0)
    values = 2 * random.random((5, 6)) ** 3
    values[1, 2] = np.nan
    faces = np.stack([face for _, _, face in list_faces(values, towards=eye[:2])])
    towards = np.array(eye) / np.linalg.norm(eye)
    right = np.cross([0, 0, 1], towards)
    right /= np.linalg.norm(right)
    paper = np.stack([right, np.cross(towards, right)])  # its two directions
    flat, depth = faces @ paper.T, faces @ towards
    covered = 0
    for at in random.uniform(flat.min((0, 1)), flat.max((0, 1)), (400, 2)):
        edges, to = np.roll(flat, -1, axis=1) - flat, at - flat
        sides = edges[..., 0] * to[..., 1] - edges[..., 1] * to[..., 0]
        inside = (sides > 1e-9).all(1) | (sides < -1e-9).all(1)
        if not inside.any():
            continue
        covered += 1
        # The depth of a face there: it is linear in the place.
        across = np.stack([flat[inside, 1] - flat[inside, 0], flat[inside, 3] - flat[inside, 0]], axis=-1)
        steps = np.linalg.solve(across, (at - flat[inside, 0])[..., None])[..., 0]
        more = np.stack([depth[inside, 1] - depth[inside, 0], depth[inside, 3] - depth[inside, 0]], axis=-1)
        here = depth[inside, 0] + (steps * more).sum(1)
        assert here[-1] == pytest.approx(here.max())
    assert covered > 100


def test_the_surface_is_the_records_weights(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    heights = []

    def remember(values: np.ndarray, **options: Any) -> Any:
        heights.append(values)
        assert min(options["towards"]) > 0, "the last query and the last key are in front"
        return list_faces(values, **options)

    monkeypatch.setattr(surface, "list_faces", remember)
    figure = surface3d(seen, layer=1, head=2)
    weights = weights_of(seen[1], 2)
    np.testing.assert_array_equal(heights[0], weights)
    axes = figure.axes[-1]
    assert axes.get_zlim()[1] == pytest.approx(weights.max())
    (painted,) = axes.collections
    faces = sum(1 for _ in list_faces(weights, towards=(1.0, 1.0)))
    assert len(painted.get_paths()) == faces
    # Its highest corner is where the library itself projects it.
    row, col = np.unravel_index(weights.argmax(), weights.shape)
    x, y, _ = proj_transform(col - 0.5, row - 0.5, weights.max(), axes.get_proj())
    corners = np.concatenate([path.vertices for path in painted.get_paths()])
    assert np.abs(corners - (x, y)).max(1).min() < 1e-9
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
    assert "each step is the largest of up to 3 × 3 weights" in shown
    named = [text for text in shown if text.startswith("word")]
    assert named[0] == "word0"
    assert 2 * 4 <= len(named) <= 2 * 44
    step = int(named[1].removeprefix("word"))
    assert any(f"every {step}" in text for text in shown)


def test_width_has_a_least(seen: Seen) -> None:
    assert surface3d(seen, layer=0, width=3.3).get_size_inches()[0] == pytest.approx(3.3)
    with pytest.raises(
        ArgumentError, match=r"width: expected at least 1\.\d inches for a surface. Received: width=1.2"
    ):
        surface3d(seen, layer=0, width=1.2)
