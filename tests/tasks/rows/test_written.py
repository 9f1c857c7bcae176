"""Parts that are joined are the file that would have been written whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from headwise.errors import ArgumentError, FileError
from headwise.tasks.rows.sources import open_table
from headwise.tasks.rows.written import join_parts, write_part, write_table

COLUMNS: dict[str, list[Any]] = {
    "text": [None, None, 'a "b",\n', "c\td"],
    "number": [None, 1, 2.5, 3],
    "cells": [None, [1, None], [], [2]],
}


def in_parts(target: Path, columns: dict[str, list[Any]], rows: int = 1) -> None:
    parts = []
    for first in range(0, len(next(iter(columns.values()))), rows):
        parts.append(target.with_name(f"{first}{target.suffix}"))
        write_part(parts[-1], {name: cells[first : first + rows] for name, cells in columns.items()}, {})
    join_parts(target, parts, list(columns))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("rows", [1, 3])
def test_parts_are_joined_to_what_is_written_whole(tmp_path: Path, suffix: str, rows: int) -> None:
    whole, joined = tmp_path / f"whole{suffix}", tmp_path / f"joined{suffix}"
    write_table(whole, COLUMNS)
    in_parts(joined, COLUMNS, rows)
    if suffix == ".parquet":
        assert parquet.read_table(joined).equals(parquet.read_table(whole))
        assert parquet.read_table(joined)["text"].to_pylist() == COLUMNS["text"]
    else:
        assert joined.read_bytes() == whole.read_bytes()


def test_a_column_with_nothing_at_all_and_one_of_whole_numbers_with_gaps_stay_so(tmp_path: Path) -> None:
    in_parts(tmp_path / "a.parquet", {"none": [None, None], "whole": [None, 3]})
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.schema.types == [pyarrow.null(), pyarrow.int64()]
    assert table.to_pydict() == {"none": [None, None], "whole": [None, 3]}


def test_types_of_arrow_are_kept(tmp_path: Path) -> None:
    days = pyarrow.array([0, 1], pyarrow.date32())
    write_part(tmp_path / "0.parquet", {"day": days.to_pylist(), "x": [1, 2]}, {"day": days})
    join_parts(tmp_path / "a.parquet", [tmp_path / "0.parquet"], ["day", "x"])
    assert parquet.read_schema(tmp_path / "a.parquet").types == [pyarrow.date32(), pyarrow.int64()]


def test_kinds_that_are_no_column_of_parquet_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"column 'x': Parquet has one type a column"):
        write_table(tmp_path / "a.parquet", {"x": [1, "a"]})
    with pytest.raises(ArgumentError, match=r"Received: bool, float, int; write JSON"):  # Arrow takes true for 1.0
        write_table(tmp_path / "a.parquet", {"x": [1, 2.5, None, True]})
    with pytest.raises(ArgumentError, match=r"Parquet has one type a column\. .*int64 vs string; write JSON lines"):
        in_parts(tmp_path / "a.parquet", {"x": [1, "a"]})
    assert not (tmp_path / "a.parquet").exists()


def test_json_has_no_nan(tmp_path: Path) -> None:
    columns = {"x": [float("nan"), 1.0], "y": [[float("inf")], {"a": float("nan")}]}
    for name in ("a.jsonl", "a.json"):
        write_table(tmp_path / name, columns)
    rows = [{"x": None, "y": [None]}, {"x": 1.0, "y": {"a": None}}]
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == rows
    assert json.loads((tmp_path / "a.json").read_text()) == rows


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("kept", [0, 130])  # of the file; the header of a .npy has 128 bytes
def test_a_damaged_part_is_not_joined(tmp_path: Path, suffix: str, kept: int) -> None:
    part = tmp_path / f"0{suffix}"
    write_part(part, {"vector": np.arange(20.0).reshape(5, 4)} if suffix == ".npy" else {"x": [1, 2]}, {})  # type: ignore[dict-item]
    part.write_bytes(part.read_bytes()[:kept])
    with pytest.raises(FileError, match=rf"0\{suffix}: is damaged\. Delete it"):
        join_parts(tmp_path / f"a{suffix}", [part], ["x"])
    assert not (tmp_path / f"a{suffix}").exists()


@pytest.mark.parametrize("rows", [1, 3])
def test_parts_of_vectors_are_joined_to_one_array(tmp_path: Path, rows: int) -> None:
    vectors = np.arange(20, dtype=np.float32).reshape(5, 4)
    in_parts(tmp_path / "joined.npy", {"vector": vectors}, rows)  # type: ignore[dict-item]
    np.save(tmp_path / "whole.npy", vectors)
    assert (tmp_path / "joined.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_carriage_return_in_a_cell_ends_no_row(tmp_path: Path, suffix: str) -> None:
    columns = {"text": ["a\rb", "c"], "id": ["1", "2"]}
    write_table(tmp_path / f"a.{suffix}", columns)
    assert open_table(tmp_path / f"a.{suffix}").columns == columns


def test_values_that_parquet_cannot_have_together_are_one_error(tmp_path: Path) -> None:
    parts = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for part, cell in zip(parts, (2**53 + 1, 1.5), strict=True):
        write_part(part, {"x": [cell]}, {})
    with pytest.raises(ArgumentError, match="one type a column"):
        join_parts(tmp_path / "a.parquet", parts, ["x"])
    with pytest.raises(ArgumentError, match="one type a column"):
        write_table(tmp_path / "a.parquet", {"x": [{}]})


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_bytes_are_not_written_as_python_shows_them(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ArgumentError, match="Write bytes to a"):
        write_table(tmp_path / f"a.{suffix}", {"x": [b"\xff"]})
