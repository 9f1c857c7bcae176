"""A label is one text whatever it was read from; labels that look alike are told."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from headwise.tasks.rows.labels import note_alike, read_labels, read_number
from headwise.tasks.rows.tables import read_table


def test_a_number_has_one_form() -> None:
    same = ["1", "1.0", "1.", "+1", " 1 ", "1.00"]
    assert {read_number(text) for text in same} == {"1"}
    assert [read_number(text) for text in ("-2.0", "100000.0", "0.0")] == ["-2", "100000", "0"]
    assert [read_number(text) for text in ("1.10", "1e3")] == ["1.10", "1e3"]  # a version, or a code: no other label
    assert read_number("12345678901234567890") == "12345678901234567890"


@pytest.mark.parametrize("text", ["01", "1,5", "1.0.0", "NA", "nan", "inf", "", " neg", "1_000", "½"])
def test_other_texts_stay(text: str) -> None:
    assert read_number(text) == text


def test_a_column_with_a_text_stays_as_it_is() -> None:
    assert read_labels(["1.0", "", "2"]) == ["1", "", "2"]
    assert read_labels(["1.0", "1", "NA"]) == ["1.0", "1", "NA"]
    assert read_labels(["01", "1.0"]) == ["01", "1.0"]


def test_all_sources_give_the_same_labels(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "label": [1.0, None, 0.0]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    (tmp_path / "b.json").write_text(json.dumps([{"text": "a", "label": "1.0"}, {"text": "c", "label": 0}]))
    cells: list[Any] = [[np.float32(1), Decimal("0.0")], [1, 0], ["1", "0"]]
    sources = [frame, *(tmp_path / name for name in ("a.csv", "a.tsv", "a.parquet", "a.jsonl", "b.json"))]
    for source in (*sources, *({"text": ["a", "c"], "label": each} for each in cells)):
        columns = {"text": "text", "label": "label"}
        assert read_table(source, columns, texts=tuple(columns), labels=("label",)).columns["label"] == ["1", "0"]


def test_labels_that_are_nearly_equal_are_told() -> None:
    (said,) = note_alike(["neg", "neg ", "NEG", "pos", "1.0", "01", "neg", "ＰＯＳ"])
    assert said == (
        "'neg' and 'neg ' and 'NEG', 'pos' and 'ＰＯＳ', '1.0' and '01' count as different labels: write them alike if "
        "they mean the same"
    )
    assert note_alike(["+", "-", "c", "c++", "1", "-1", "non toxic", "nontoxic"]) == ()
