"""`heatmap`: a figure has the record's numbers, and names that can be read."""

from __future__ import annotations

import itertools
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError, RecordError, ShapeError
from headwise.plot import heatmap
from headwise.plot.colour import ink_on
from headwise.records import Seen

from .conftest import WORDS, cells, make_record, make_seen, names, weights_of, written


def extents(figure: Figure, side: str) -> list[Any]:
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis if side == "rows" else figure.axes[0].xaxis
    return [label.get_window_extent() for label in axis.get_ticklabels()]


def test_cells_are_the_records_weights(seen: Seen) -> None:
    figure = heatmap(seen, layer=1, head=2)
    np.testing.assert_array_equal(cells(figure), weights_of(seen[1], 2))
    assert names(figure, "rows") == names(figure, "cols") == WORDS
    assert figure.axes[0].get_ylabel() == "query"
    assert figure.axes[0].get_xlabel() == "key"
    assert figure.axes[1].get_ylabel() == "attention weight"
    assert "layer 1, head 2" in written(figure)

    record = make_record(batch=3)
    figure = heatmap(record, head="mean", example=2)
    np.testing.assert_allclose(cells(figure), record.weights()[2].mean(0).numpy(), rtol=1e-6)
    assert "mean of 4 heads, example 2" in written(figure)

    figure = heatmap(record, head=-1, example=-1, rows=[-1])
    np.testing.assert_allclose(cells(figure), weights_of(record, 3, 2)[5:], rtol=1e-5, atol=1e-7)
    assert "head 3, example 2" in written(figure)
    assert names(figure, "rows") == ["5"]


def test_two_cells_by_hand() -> None:
    """One query of two keys whose scores are ln 3 and 0: weights 3/4 and 1/4."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([[[[1.0986123], [0.0]]]])
    record = headwise.attention(q, k, k, scale=1.0, record=True)[1]
    figure = heatmap(record)
    np.testing.assert_allclose(cells(figure), [[0.75, 0.25]], rtol=1e-6)
    assert {".75", ".25"} <= set(written(figure))
    assert names(figure, "cols") == ["0", "1"]


@pytest.mark.parametrize(
    ("rows", "cols", "expected_rows", "expected_cols"),
    [
        (slice(1, 3), None, [1, 2], [0, 1, 2, 3, 4, 5]),
        (2, slice(None, None, 2), [2], [0, 2, 4]),
        ([5, 0, -2], range(2, 5), [5, 0, 4], [2, 3, 4]),
        (range(4, 0, -2), 1, [4, 2], [1]),
    ],
)
def test_rows_and_cols_choose(
    seen: Seen, rows: Any, cols: Any, expected_rows: list[int], expected_cols: list[int]
) -> None:
    figure = heatmap(seen, layer=0, head=3, rows=rows, cols=cols)
    np.testing.assert_allclose(
        cells(figure), weights_of(seen[0], 3)[np.ix_(expected_rows, expected_cols)], rtol=1e-5, atol=1e-7
    )
    assert names(figure, "rows") == [WORDS[i] for i in expected_rows]
    assert names(figure, "cols") == [WORDS[i] for i in expected_cols]


def test_masked_cells_are_hatched_and_named() -> None:
    record = make_record(mask=masks.causal())
    figure = heatmap(record)
    np.testing.assert_array_equal(np.ma.getmaskarray(cells(figure)), np.triu(np.ones((6, 6), dtype=bool), 1))
    assert "masked, may not be attended to" in written(figure)
    assert any(collection.get_hatch() for collection in figure.axes[0].collections)
    assert not any(collection.get_hatch() for collection in heatmap(make_record()).axes[0].collections)

    q, k, bias = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.zeros(1, 1, 3, 3)
    bias[..., 1] = -torch.inf
    figure = heatmap(headwise.attention(q, k, k, bias=bias, record=True)[1])
    assert np.ma.getmaskarray(cells(figure)).tolist() == [[False, True, False]] * 3

    allowed = torch.ones(3, 3, dtype=torch.bool)
    allowed[1] = False
    figure = heatmap(make_record(3, 3, mask=masks.from_tensor(allowed)))
    assert np.ma.getmaskarray(cells(figure)).all(axis=1).tolist() == [False, True, False]


def test_long_matrices_are_pooled_exactly() -> None:
    record = make_record(1203, 2501, heads=1, key_heads=1, mask=masks.causal())
    figure = heatmap(record)
    weights = weights_of(record)
    weights[~record.mask.to_bool(1203, 2501)[0, 0].numpy()] = np.nan  # type: ignore[union-attr]
    shown = cells(figure)
    rows, cols = (-(-size // count) for size, count in zip(weights.shape, shown.shape, strict=True))
    assert max(shown.shape) <= 1000
    for r, c in [(0, 0), (0, shown.shape[1] - 1), (shown.shape[0] - 1, shown.shape[1] - 1), (17, 5)]:
        block = weights[r * rows : (r + 1) * rows, c * cols : (c + 1) * cols]
        if np.isnan(block).all():
            assert np.ma.getmaskarray(shown)[r, c]
        else:
            assert shown[r, c] == pytest.approx(np.nanmax(block), rel=1e-5)
    assert f"each cell is the largest of up to {rows} × {cols} weights" in written(figure)
    # A row or column is found at its own number.
    assert figure.axes[0].get_ylim() == (1202.5, -0.5)
    assert figure.axes[0].get_xlim() == (-0.5, 2500.5)


@pytest.mark.parametrize(("scale", "middle"), [("linear", 0.5), ("root", 0.25), ("log", 0.01)])
def test_scales(seen: Seen, scale: Any, middle: float) -> None:
    figure = heatmap(seen, layer=0, scale=scale)
    norm = figure.axes[0].images[0].norm
    assert norm(norm.vmax) == pytest.approx(1.0)
    assert norm(middle * norm.vmax) == pytest.approx(0.5)
    assert norm(0.0) == pytest.approx(0.0)
    assert norm.vmax == pytest.approx(weights_of(seen[0]).max())
    np.testing.assert_array_equal(cells(figure), weights_of(seen[0]))
    assert heatmap(seen, layer=0, scale=scale, vmax=0.9).axes[0].images[0].norm.vmax == 0.9


def test_printed_weights_can_be_read_on_their_cells(seen: Seen) -> None:
    for cmap in ("ember", "viridis", "gray"):
        figure = heatmap(seen, layer=2, head=1, cmap=cmap, scale="root")
        image = figure.axes[0].images[0]
        weights = weights_of(seen[2], 1)
        printed = {text.get_position(): text for text in figure.axes[0].texts}
        assert len(printed) == weights.size
        for (row, col), weight in np.ndenumerate(weights):
            text = printed[col, row]
            assert float(text.get_text()) == pytest.approx(weight, abs=0.0051)
            ground = image.cmap(image.norm(weight))
            assert text.get_color() == ink_on(ground)
            assert contrast(text.get_color(), ground) >= 4.5


def contrast(a: Any, b: Any) -> float:
    """WCAG 2's, worked out here by itself."""

    def luminance(colour: Any) -> float:
        rgb = np.array(matplotlib.colors.to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


def test_values_are_printed_where_they_can_be_read() -> None:
    small, large = make_record(20, 20), make_record(21, 21)
    assert len(heatmap(small).axes[0].texts) == 400
    assert not heatmap(small, values=False).axes[0].texts
    assert not heatmap(small, width=3.0).axes[0].texts  # too small
    assert not heatmap(large).axes[0].texts
    assert len(heatmap(large, values=True).axes[0].texts) == 441
    with pytest.raises(ArgumentError, match=r"values: too many weights to be readable.*Received: 60 × 60"):
        heatmap(make_record(60, 60), values=True)


def test_names_never_lie_over_one_another() -> None:
    for length in (5, 17, 60, 200):
        labels = [("word", "w", "##ing", "characterisation")[i % 4] + str(i) for i in range(length)]
        for width in (None, 3.3):
            figure = heatmap(make_record(length, length), tokens=labels, width=width)
            for side, low, high in (("rows", "y0", "y1"), ("cols", "x0", "x1")):
                boxes = sorted(extents(figure, side), key=lambda box, low=low: getattr(box, low))
                # Boxes have room for accents above and below, which may meet those of the next line.
                overlap = 0.25 * min(getattr(box, high) - getattr(box, low) for box in boxes)
                for box, following in itertools.pairwise(boxes):
                    assert getattr(box, high) <= getattr(following, low) + overlap
                title = figure.axes[0].get_ylabel() if side == "rows" else figure.axes[0].get_xlabel()
                shown = names(figure, side)
                step = length if len(shown) == 1 else next(i for i in range(1, length) if labels[i] == shown[1])
                word = "query" if side == "rows" else "key"
                assert (title == word) if step == 1 else title.startswith(f"{word} (every {step}")


def test_figures_are_as_wide_as_a_column_or_a_page() -> None:
    widths = {n: heatmap(make_record(n, n), values=False).get_size_inches()[0] for n in (2, 8, 40, 300)}
    assert widths[8] == pytest.approx(3.3, abs=0.3)
    assert widths[300] == pytest.approx(7.0, abs=0.05)
    assert widths[2] <= widths[8] <= widths[40] <= widths[300]
    assert heatmap(make_record(), width=4.5).get_size_inches()[0] == pytest.approx(4.5, abs=0.02)


@pytest.mark.parametrize(("rows", "cols"), [(6, 6), (5, 12), (30, 30), (300, 200)])
def test_cells_are_square(rows: int, cols: int) -> None:
    box = heatmap(make_record(rows, cols)).axes[0].get_window_extent()
    assert box.width / cols == pytest.approx(box.height / rows, rel=1e-3)


def test_columns_are_named_upright_where_that_can_be_read() -> None:
    labels = ["word", "a", "我", "注意", ".", "ing"]
    columns = heatmap(make_record(2, 18), col_labels=labels * 3, width=3.3).axes[0].get_xticklabels()
    assert [label.get_rotation() for label in columns] == [90, 0, 0, 0, 0, 90] * 3
    assert columns[3].get_text() == "注\n意"
    wide = heatmap(make_record(3, 3), col_labels=["a", "an", "is"], width=6).axes[0].get_xticklabels()
    assert [label.get_rotation() for label in wide] == [0, 0, 0]


def test_names_are_drawn_as_they_are() -> None:
    labels = ["$x^2$", "a_b", "\\alpha", "tab\tend", "bell\x07", "lone\ud800"]
    figure = heatmap(make_record(), row_labels=labels)
    assert names(figure, "rows") == ["$x^2$", "a_b", "\\alpha", "tab⇥end", "bell<U+0007>", "lone<U+D800>"]
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())
    figure.draw_without_rendering()


def test_both_sides_have_names_of_their_own() -> None:
    record = make_record(2, 6)
    figure = heatmap(record, tokens=WORDS, row_labels=[f"latent {i}" for i in range(2)])
    assert names(figure, "rows") == ["latent 0", "latent 1"]
    assert names(figure, "cols") == WORDS
    assert names(heatmap(record, tokens=WORDS), "rows") == ["0", "1"]

    seen = make_seen(1, "cross", rows=2, cols=6)
    seen.tokens = {"target": ["Die", "Katze"], "source": WORDS}
    figure = heatmap(seen)
    assert names(figure, "rows") == ["Die", "Katze"]
    assert names(figure, "cols") == WORDS

    record = make_record(batch=2)
    other = [word.upper() for word in WORDS]
    assert names(heatmap(record, example=1, tokens=[WORDS, other]), "rows") == other
    seen = Seen([record])
    seen.tokens = [WORDS, other]
    assert names(heatmap(seen, example=1), "rows") == other


def test_a_hidden_sink_is_said_and_not_rescaled() -> None:
    record = make_record(
        mask=masks.window(100, 100) & masks.padding(torch.tensor([[0, 1, 1, 1, 1, 1]], dtype=torch.bool))
    )
    weights = weights_of(record)
    figure = heatmap(record, tokens=WORDS, hide_sink=True)
    shown = cells(figure)
    assert np.ma.getmaskarray(shown)[:, 1].all()  # the first key that anybody may attend to
    np.testing.assert_array_equal(shown[:, 2:], weights[:, 2:])
    assert figure.axes[0].images[0].norm.vmax == weights[:, 2:].max()
    notes = " ".join(written(figure))
    share = f"{weights[:, 1].mean():.0%}"
    assert f"key 1 (cat) is hidden: it takes {share} of the weight; the others are not rescaled" in notes

    record = make_record()
    assert not any("hidden" in text for text in written(heatmap(record, cols=slice(1, 3), hide_sink=True)))
    assert not np.ma.getmaskarray(cells(heatmap(record, cols=slice(1, 3), hide_sink=True))).any()
    long = make_record(4, 2100, heads=1, key_heads=1)
    weights = weights_of(long)
    shown = cells(heatmap(long, hide_sink=True))
    block = -(-2100 // shown.shape[1])
    np.testing.assert_allclose(shown[:, 0].max(), weights[:, 1:block].max(), rtol=1e-5)


def test_draws_into_axes_of_somebody_else() -> None:
    record = make_record(mask=masks.causal())
    figure = Figure(figsize=(7, 3.5))
    left, right = figure.subplots(1, 2)
    assert heatmap(record, tokens=WORDS, ax=right, title="mine") is figure
    assert not left.images
    np.testing.assert_array_equal(right.images[0].get_array().filled(0), weights_of(record))
    assert [label.get_text() for label in right.get_yticklabels()] == WORDS
    assert right.get_title(loc="left") == "mine"
    assert "hatched: masked, may not be attended to" in written(figure)
    figure.draw_without_rendering()

    record = make_record(14, 14, mask=masks.causal())
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    for ax in figure.subplots(1, 2):
        heatmap(record, ax=ax, tokens=[f"token {i}" for i in range(14)], hide_sink=True)
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert (box.x1, box.y1) <= (7, 3.4)


def test_a_users_style_does_not_change_a_figure() -> None:
    record = make_record()
    plain = heatmap(record)
    with matplotlib.rc_context({"axes.grid": True, "text.usetex": True, "figure.constrained_layout.use": True}):
        styled = heatmap(record)
    assert not styled.axes[0].xaxis.get_gridlines()[0].get_visible()
    assert not any(text.get_usetex() for text in styled.findobj(matplotlib.text.Text))
    assert styled.get_size_inches().tolist() == plain.get_size_inches().tolist()


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a head that is not there": ({"head": 4}, ArgumentError, r"head must be in 0 … 3. Received: head=4"),
    "a head that is no number": ({"head": "max"}, ArgumentError, r'head: expected a number from 0 to 3, or "mean"'),
    "a head that is true": ({"head": True}, DtypeError, r"head: expected a number from 0 to 3. Received: True"),
    "an example that is not there": ({"example": 1}, ArgumentError, r"example must be in 0 … 0. Received: example=1"),
    "a layer that was not seen": ({"layer": "decoder"}, RecordError, r"no attention was seen at 'decoder'"),
    "no layer": ({"layer": None}, ArgumentError, r"layer: choose one of the 3 layers: layer=0 … 2, or a name"),
    "several layers": ({"layer": slice(0, 2)}, ArgumentError, r"layer: expected the number or name of one layer"),
    "rows that are not there": ({"rows": [1, 6]}, ArgumentError, r"rows must be in 0 … 5. Received: rows=6"),
    "no columns": ({"cols": slice(6, 9)}, ArgumentError, r"cols: expected at least one of 0 … 5"),
    "rows that are no numbers": ({"rows": [1.5]}, DtypeError, r"rows: expected a number from 0 to 5. Received: 1.5"),
    "rows that are no tokens": ({"rows": ["a"]}, ArgumentError, r"rows: 'a' is not among the tokens. The nearest"),
    "a scale": ({"scale": "cubic"}, ArgumentError, r'scale: expected "linear", "root" or "log". Received'),
    "values": ({"values": "yes"}, ArgumentError, r'values: expected "auto", True or False. Received: values=.yes'),
    "too few names": ({"row_labels": ["a"]}, ShapeError, r"row_labels: expected 6 names, one for each row"),
    "names that are one": ({"col_labels": "abcdef"}, DtypeError, r"col_labels: expected a list of strings"),
    "tokens of another text": (
        {"tokens": ["a", "b"]},
        ShapeError,
        r"tokens: expected 6 \(rows\) or 6 \(columns\) tokens",
    ),
    "tokens of other examples": ({"tokens": [WORDS, WORDS]}, ShapeError, r"tokens: expected 1 text, or one for each"),
    "a colour map": ({"cmap": "rainbows"}, ArgumentError, r'cmap: expected "ember" or a colour map of matplotlib'),
    "a width": ({"width": -1}, ArgumentError, r"width: expected inches"),
    "a width without room": ({"width": 0.5}, ArgumentError, r"width: names and colour bar need \d\.\d inches"),
    "a largest weight": ({"vmax": 0.0}, ArgumentError, r"vmax: expected a weight above 0. Received: vmax=0.0"),
    "a file of another kind": ({"out": "a.jpg"}, ArgumentError, r"out: expected a file name that ends in .png"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_one_line(seen: Seen, case: str) -> None:
    options, error, message = BAD[case]
    with pytest.raises(error, match=message) as caught:
        heatmap(seen, **{"layer": 0, **options})
    assert "\n" not in str(caught.value)


def test_a_record_has_no_layers_and_weights_are_no_record(seen: Seen) -> None:
    with pytest.raises(ArgumentError, match="layer: expected a Seen"):
        heatmap(seen[0], layer=0)
    with pytest.raises(DtypeError, match=r"expected a Seen or an AttentionRecord\. Received: Tensor"):
        heatmap(seen[0].weights())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="nothing to draw"):
        heatmap(make_record(0, 6))
    with pytest.raises(ArgumentError, match="layer: expected at least one recorded layer"):
        heatmap(Seen())
