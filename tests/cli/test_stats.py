"""`headwise stats` as a person uses it: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.records import CallSite, Coverage, Seen
from tests.viewer.conftest import placed, record

from .conftest import Run, Terminal, contents, refused

COVERAGE = Coverage(
    (
        *(CallSite(f"encoder.{i}.attn", "seen", 1, "scaled_dot_product_attention") for i in range(4)),
        CallSite("decoder.0.attn", "refused", 2, "linear attention has no weights"),
    ),
    ("the fused encoder layer was turned off",),
)


@pytest.fixture
def seen() -> Seen:
    """Four layers of two heads; the last is a cross-attention."""
    kinds = ["self"] * 3 + ["cross"]
    found = Seen(
        [placed(record(length=6), f"encoder.{i}.attn", i, kind=kind) for i, kind in enumerate(kinds)], COVERAGE
    )
    found.tokens = {"target": [list("abcdef")], "source": [list("uvwxyz")]}
    return found


@pytest.fixture
def run_hw(seen: Seen, tmp_path: Path) -> Path:
    seen.save(tmp_path / "run.hw")
    return tmp_path / "run.hw"


def rows(out: str) -> list[list[str]]:
    """The table's rows, in words."""
    return [line.split() for line in out.splitlines() if "→" in line and line.split()[0].isdigit()]


def test_prints_a_row_a_head_and_what_was_not_seen(run: Run, run_hw: Path, seen: Seen) -> None:
    result = run("stats", run_hw)
    assert (result.code, result.err) == (0, "")
    assert [row[:2] for row in rows(result.out)] == [[str(layer), str(head)] for layer in range(4) for head in range(2)]
    expected = next(iter(seen.summary()))
    assert rows(result.out)[0][3] == f"{expected.entropy:.2f}"
    assert f"{expected.looks_label} → {expected.looked_at_label}" in result.out
    assert "layer 0 … 3: encoder.*.attn" in result.out
    (refused,) = (line for line in result.out.splitlines() if "refused" in line)
    assert refused.split() == ["refused", "2", "decoder.0.attn", "linear", "attention", "has", "no", "weights"]
    assert "encoder.0.attn" not in result.out  # that which was seen is in the table
    assert result.out.splitlines()[-1] == "note: the fused encoder layer was turned off"


def test_layers_chooses_what_is_shown_and_written(run: Run, run_hw: Path, tmp_path: Path) -> None:
    every = rows(run("stats", run_hw).out)
    result = run("stats", run_hw, "--layers", "3,0-1", "--json", "some.json")
    assert [row[:2] for row in rows(result.out)] == [[str(layer), str(head)] for layer in (0, 1, 3) for head in (0, 1)]
    assert rows(result.out)[:4] == every[:4]
    written = json.loads((tmp_path / "some.json").read_text(encoding="utf-8"))
    assert [row["index"] for row in written] == [0, 0, 1, 1, 3, 3]


def test_writes_the_rows_as_csv_and_json(run: Run, run_hw: Path, seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("of yesterday", encoding="utf-8")
    result = run("stats", run_hw, "--csv", "rows.csv", "--json", "rows.json", "--verify")
    assert result.code == 0
    assert result.out.splitlines()[-2:] == ["Wrote rows.csv (8 rows).", "Wrote rows.json (8 rows)."]
    assert {path.name for path in tmp_path.iterdir()} == {"run.hw", "rows.csv", "rows.json"}
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    objects = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    for line, row, expected in zip(table, objects, seen.summary(), strict=True):
        assert line.keys() == row.keys()
        assert row["entropy"] == expected.entropy
        assert line["layer"] == row["layer"] == expected.layer
        for name in ("distance", "previous"):
            value = getattr(expected, name)
            assert row[name] == (None if math.isnan(value) else value)
            assert line[name] == ("" if math.isnan(value) else str(value))
    assert [row["distance"] is None for row in objects] == [False] * 6 + [True] * 2


def test_nothing_seen_is_a_sentence(run: Run, tmp_path: Path) -> None:
    Seen([], Coverage(notes=("looked for [bold] calls",))).save(tmp_path / "empty.hw")
    result = run("stats", "empty.hw", "--layers", "0")
    assert result.code == 0
    assert "no attention was seen" in result.out
    assert "note: looked for [bold] calls" in result.out


def test_a_terminal_sees_how_far_it_is(
    run: Run, run_hw: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    assert run("stats", run_hw).code == 0
    assert "records" in shown.getvalue()
    assert "4/4" in shown.getvalue()


BAD: dict[str, tuple[Any, ...]] = {
    # what is given, and what the one line must say
    "a file that is missing": ("nowhere.hw", "there is no file nowhere.hw"),
    "a folder": (".", "Received: a folder"),
    "a text": ("words.txt", "words.txt is not a file of records"),
    "a file cut short": ("short.hw", "short.hw is cut short"),
    "a layer that there is not": ("run.hw --layers 0,4", "--layers", "0 to 3", "Received: layer 4"),
    "a table that is a folder": ("run.hw --json .", "--json .", "Received: a folder"),
    "a table over the records": ("run.hw --csv run.hw", "--csv run.hw: this is the file of the records"),
    "two tables in one": ("run.hw --csv a --json ./a", "--json a: this is the file of --csv"),
    "changed bytes of a small file": ("changed.hw", "changed.hw is damaged", "records.0.q"),
    "changed bytes": ("changed.hw --verify", "changed.hw is damaged", "records.0.q"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(run: Run, run_hw: Path, tmp_path: Path, case: str) -> None:
    data = run_hw.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    (tmp_path / "words.txt").write_text("some words", encoding="utf-8")
    (tmp_path / "short.hw").write_bytes(data[:-10])
    (tmp_path / "changed.hw").write_bytes(data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :])
    before = contents(tmp_path)
    arguments, *expected = BAD[case]
    refused(run("stats", *arguments.split()), *expected)
    assert contents(tmp_path) == before


def test_one_query_is_chosen_by_its_text(run: Run, run_hw: Path, seen: Seen) -> None:
    result = run("stats", run_hw, "--row", "x", "--layers", "0-2")
    assert result.code == 0
    for layer, head, row in zip([0, 0, 1, 1, 2, 2], [0, 1] * 3, rows(result.out), strict=True):
        weights = seen[layer].weights(rows=3, heads=head).flatten()
        assert row[2] == f"{float(seen[layer].entropy()[0, head, 3]):.2f}"
        assert f"x → {'uvwxyz'[weights.argmax()]}" in " ".join(row)
        assert row[-1] == f"{float(weights.max()):.2f}"
    assert rows(run("stats", run_hw, "--row", "3", "--layers", "0-2").out) == rows(result.out)
    refused(run("stats", run_hw, "--row", "x"), "--row: 'x' is not among the tokens")  # layer 3 reads the other text
    refused(run("stats", run_hw, "--row", "6"), "--row", "0 … 5")
