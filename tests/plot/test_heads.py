"""`heads`: the small maps are the record's pooled weights, and say what belongs together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from headwise import masks
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.plot import heads
from headwise.plot.colour import GROUND
from headwise.records import Seen

from .conftest import WORDS, make_record, make_seen, written


def grounds(figure: Figure) -> int:
    """How many groups of heads are drawn on a ground of their own."""
    from matplotlib.colors import to_rgba

    colours = [(c, c.get_facecolor()) for c in figure.axes[0].collections]
    return sum(len(c.get_paths()) for c, faces in colours if len(faces) and tuple(faces[0]) == to_rgba(GROUND))


def test_a_map_a_head_with_the_records_weights(seen: Seen) -> None:
    figure = heads(seen)
    images = figure.axes[0].images
    assert len(images) == 12
    for place, image in enumerate(images):
        layer, head = divmod(place, 4)
        np.testing.assert_allclose(image.get_array(), seen[layer].weights(heads=head)[0, 0], rtol=1e-5, atol=1e-7)
        left, right, bottom, top = image.get_extent()
        assert ((left + right) / 2, (bottom + top) / 2) == pytest.approx((head, layer))
    norms = {image.norm for image in images}
    assert len(norms) == 1
    assert norms.pop().vmax == pytest.approx(max(float(record.weights().max()) for record in seen))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1", "2", "3"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "1", "2"]
    assert {"layer", "head", "attention weight", "layer 0 … 2: model.*.attn"} <= set(written(figure))


def test_long_maps_are_pooled_and_their_masks_too() -> None:
    record = make_record(200, 200, heads=2, key_heads=2, mask=masks.causal() & masks.window(50, 0))
    figure = heads(record)
    (size,) = {image.get_array().shape for image in figure.axes[0].images}
    assert size == (64, 64)
    pooled = record.pooled(64, "max")[0]
    allowed = record.mask.to_bool(200)[0, 0].numpy()  # type: ignore[union-attr]
    for image, expected in zip(figure.axes[0].images, pooled.numpy(), strict=True):
        shown = image.get_array()
        for i, j in [(0, 0), (0, 63), (63, 0), (63, 63), (31, 31), (31, 33), (40, 20), (40, 25)]:
            rows, cols = (slice(x * 200 // 64, -(-(x + 1) * 200 // 64)) for x in (i, j))
            assert bool(np.ma.getmaskarray(shown)[i, j]) == (not allowed[rows, cols].any())
            if allowed[rows, cols].any():
                assert shown[i, j] == pytest.approx(expected[i, j], rel=1e-5)
    assert "masked, may not be attended to" in written(figure)
    assert "maps of at most 64 × 64 cells, each the largest of its weights" in " ".join(written(figure))


def test_heads_that_share_keys_stand_on_one_ground() -> None:
    assert grounds(heads(make_seen(2, heads=4, key_heads=2))) == 4
    assert grounds(heads(make_seen(2, heads=4, key_heads=1))) == 2
    plain = heads(make_seen(2))
    assert grounds(plain) == 0
    assert not any("share keys" in text for text in written(plain))


def test_chosen_layers_and_every_call_have_a_row(seen: Seen) -> None:
    cases: list[tuple[Any, list[str]]] = [
        (slice(1, None), ["1", "2"]),
        ([0, "model.2"], ["0", "2"]),
        (1, ["1"]),
        ("model.0", ["0"]),
    ]
    for layers, expected in cases:
        figure = heads(seen, layers=layers)
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == expected

    first, second = make_seen(2), make_seen(2)
    for record in second:
        record.site = type(record.site)(**{**vars(record.site), "call": 1})
    figure = heads(Seen([*first.records, *second.records]))
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == ["0 · call 0", "1 · call 0", "0 · call 1", "1 · call 1"]


def test_layers_may_have_different_heads_and_lengths_and_a_record_has_none() -> None:
    seen = Seen([*make_seen(1, heads=4).records, make_record(3, 9, heads=2, key_heads=2)])
    assert [image.get_array().shape for image in heads(seen).axes[0].images] == [(6, 6)] * 4 + [(3, 9)] * 2

    figure = heads(make_record(batch=2), example=1)
    assert len(figure.axes[0].images) == 4
    assert "layer" not in written(figure)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": 7}, RecordError, "layers are numbered 0 … 2. Received: 7"),
        ({"layers": slice(5, 9)}, ArgumentError, "layers: expected at least one recorded layer"),
        ({"example": 3}, ArgumentError, "example must be in 0 … 0. Received: example=3"),
        ({"width": 0.9}, ArgumentError, "too many maps: 3 × 4 heads do not fit into 0.9 × 8.5 inches"),
        ({"scale": "cubic"}, ArgumentError, "scale: expected"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    seen: Seen, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        heads(seen, **options)
    assert message in str(caught.value)


def test_only_what_was_seen_can_be_drawn(seen: Seen) -> None:
    with pytest.raises(ArgumentError, match="layers: expected a Seen"):
        heads(seen[0], layers=0)
    with pytest.raises(DtypeError, match="Received: list"):
        heads(WORDS)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"layers: expected at least one recorded layer. Received: none"):
        heads(Seen())
