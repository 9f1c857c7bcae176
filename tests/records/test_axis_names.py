"""Records whose rows or columns have names of their own, such as learned latents: labels, files, figures, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headwise
from headwise.errors import ArgumentError, RecordError
from headwise.plot.subject import find_subject
from headwise.records import AttentionRecord, Seen, Site
from headwise.records.tensor_file import TensorFile
from headwise.viewer.inputs import inputs_of

WORDS = ["the", "cat", "sat", "down"]
LATENTS = ("subject", "verb")


def record(path: str, kind: Any, rows: int, cols: int, **names: Any) -> AttentionRecord:
    kept = headwise.attention(*(torch.randn(2, 1, n, 4) for n in (rows, cols, cols)), record=True)[1]
    kept.site = Site(path, 0, kind, False, 1, 1)
    for side, given in names.items():
        setattr(kept, side, given)
    return kept


def perceiver() -> Seen:
    """Latents that read a text, attend to themselves, and are read by the text."""
    return Seen(
        [
            record("reads.0", "cross", 2, 4, row_names=LATENTS),
            record("layers.0", "self", 2, 2, row_names=LATENTS, col_names=list(LATENTS)),
            record("read_out", "cross", 4, 2, col_names=LATENTS),
            record("encoder.0", "self", 4, 4),
        ]
    )


def labels(seen: Seen) -> list[Any]:
    return [(seen.row_labels(each), seen.col_labels(each)) for each in seen]


def test_names_are_labels_and_the_text_is_the_other_sides() -> None:
    seen, text = perceiver(), tuple(WORDS)
    assert labels(seen) == [(LATENTS, None), (LATENTS, LATENTS), (None, LATENTS), (None, None)]
    seen.tokens = [WORDS, WORDS]
    assert labels(seen) == [(LATENTS, text), (LATENTS, LATENTS), (text, LATENTS), (text, text)]
    assert labels(seen.only("layers.0")) == [(LATENTS, LATENTS)]
    with pytest.raises(RecordError, match=r"reads\.0 has B = 2, Q = 2, K = 4\. Received: target tokens=\[3, 3\]"):
        seen.tokens = [WORDS[:3]] * 2
    seen.tokens = {"source": [WORDS] * 2, "target": [["a", "b"]] * 2}
    assert labels(seen)[0] == (LATENTS, text)
    seen.tokens = {"source": [WORDS] * 2, "target": [list("abcd")] * 2}  # what is read, and what reads the latents
    assert labels(seen)[:3:2] == [(LATENTS, text), (tuple("abcd"), LATENTS)]


def test_names_of_another_number_are_refused() -> None:
    kept = record("reads.0", "cross", 2, 4)
    with pytest.raises(
        ArgumentError,
        match=r"row_names: expected a name for each of the 2 queries\. Received: len\(row_names\)=4, row_names=",
    ):
        kept.row_names = WORDS
    with pytest.raises(
        ArgumentError,
        match=r"col_names: expected a name for each of the 4 keys\. Received: len\(col_names\)=4, col_names='abcd'",
    ):
        kept.col_names = "abcd"
    with pytest.raises(ArgumentError, match="row_names"):
        kept.row_names = [1, 2]  # type: ignore[list-item]
    assert (kept.row_names, kept.col_names) == (None, None)


def test_a_file_keeps_names_once(tmp_path: Path) -> None:
    seen = perceiver()
    seen.tokens = [WORDS, WORDS]
    seen.save(tmp_path / "run.hw")
    again = headwise.load(tmp_path / "run.hw", verify=True)
    assert labels(again) == labels(seen)
    assert [(each.row_names, each.col_names) for each in again] == [(each.row_names, each.col_names) for each in seen]
    metadata = TensorFile(tmp_path / "run.hw").metadata
    assert metadata["headwise"] == "2"
    assert json.loads(metadata["description"])["names"] == [list(LATENTS)]


def test_a_file_without_names_is_one_that_older_programs_read(tmp_path: Path) -> None:
    Seen([record("encoder.0", "self", 4, 4)]).save(tmp_path / "run.hw")
    metadata = TensorFile(tmp_path / "run.hw").metadata
    assert metadata["headwise"] == "1"
    assert "row_names" not in json.loads(metadata["description"])["records"][0]


@pytest.mark.parametrize(
    ("names", "place"), [([["a"]], 0), ([["a", 1]], 0), ([["a", "b"]], 1), ([["a", "b"]], "0"), ("ab", 0), ([3], 0)]
)
def test_forged_names_are_refused(names: Any, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = json.dumps

    def forge(value: Any, **options: Any) -> str:
        if isinstance(value, dict) and "names" in value:
            value["names"], value["records"][0]["row_names"] = names, place
        return dumps(value, **options)

    with monkeypatch.context() as patch:
        patch.setattr("headwise.records.saving.json.dumps", forge)
        Seen([record("reads.0", "cross", 2, 4, row_names=LATENTS)]).save(tmp_path / "run.hw")
    with pytest.raises(RecordError, match=r"run\.hw"):
        headwise.load(tmp_path / "run.hw")


class Reader(nn.Module):
    """An attention of somebody's own that says what its rows stand for."""

    row_names = LATENTS

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(
            self.latents.expand(len(x), 1, -1, -1), x[:, None], x[:, None]
        )


def test_a_watch_asks_the_module_that_runs() -> None:
    model = nn.Sequential(Reader())
    with headwise.watch(model, tokens=WORDS) as seen:
        model(torch.randn(1, 4, 4))
    assert labels(seen) == [(LATENTS, tuple(WORDS))]


def test_a_figure_and_the_page_show_names() -> None:
    seen = perceiver()
    subject = find_subject(seen, 0, 0, 0, None, None, None, None, None)
    assert subject.rows.names == list(LATENTS)
    assert subject.cols.names == ["0", "1", "2", "3"]
    for what, layer in ((seen, 0), (seen[0], None)):
        subject = find_subject(what, layer, 0, 0, None, None, WORDS, None, None)
        assert (subject.rows.names, subject.cols.names) == (list(LATENTS), WORDS)
    assert find_subject(seen[0], None, 0, 0, None, None, None, None, None).rows.names == list(LATENTS)

    def axes() -> dict[str, Any]:
        return {x.name: (x.rows.tokens.labels, x.cols.tokens.labels) for x in inputs_of(seen)[0].stacks}

    numbers = ("0", "1", "2", "3")
    assert axes() == {
        "cross · 2 × 4": (LATENTS, numbers),
        "latents": (LATENTS, LATENTS),
        "cross · 4 × 2": (numbers, LATENTS),
        "encoder": (numbers, numbers),
    }
    seen.tokens = [WORDS, WORDS]
    assert axes()["cross · 2 × 4"] == (LATENTS, tuple(WORDS))
    rows = seen.summary().rows
    assert {row.looks_label for row in rows if row.layer == "reads.0"} <= set(LATENTS)
    assert {row.looked_at_label for row in rows if row.layer == "reads.0"} <= set(WORDS)


def test_layers_with_the_same_names_are_one_stack() -> None:
    several = Seen([record(f"reads.{i}", "cross", 2, 4, row_names=list(LATENTS)) for i in range(3)])
    (stack,) = inputs_of(several)[0].stacks
    assert len(stack.layers) == 3
