"""What the rows of a table ask a `Match`; rows without an image are left out, and not the end of all others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headwise.errors import ArgumentError
from headwise.tasks.options.match import MatchOptions
from headwise.tasks.rows.gallery import Question, asked_in, questions
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import NoUsableRows

OPTIONS = MatchOptions(image_size=4, patch_size=2)


def table(folder: Path, images: list[str | None], numbers: list[int]) -> Table:
    columns = {"image": images, "text": [f"text {number}" for number in numbers]}
    return Table(str(folder / "a.csv"), columns, numbers, "line")


def test_rows_without_an_image_are_left_out_with_their_lines(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4, 3), 7, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    data = asked_in(table(tmp_path, ["a.png", "none.png", "", "b.png"], [5, 6, 7, 8]), OPTIONS)
    assert (data.numbers, data.left_out) == (
        [5],
        (
            "1 row left out: no such image (line 6)",
            "1 row left out: no image (line 7)",
            "1 row left out: an image that cannot be read (line 8)",
        ),
    )
    (asked,) = data.columns["question"]
    assert (asked.name, asked.text, asked.wants, int(asked.pixels.min())) == ("a.png", "text 5", "pair", 7)
    assert questions([asked], OPTIONS) == [asked]


def test_where_no_row_has_an_image_there_is_a_black_one_to_ask_with(tmp_path: Path) -> None:
    with pytest.raises(
        NoUsableRows, match=r"no row can be used: 2 rows left out: no such image \(lines 2, 3\)"
    ) as found:
        asked_in(table(tmp_path, ["x.png", "y.png"], [2, 3]), OPTIONS)
    asked = found.value.data.columns["question"][0]
    assert (asked.pixels.shape, int(asked.pixels.max()), asked.wants) == ((4, 4, 3), 0, "pair")


def test_texts_alone_ask_for_images_and_one_of_the_columns_must_be_there() -> None:
    texts = Table("a.csv", {"text": ["a", 3]}, [2, 3], "line")
    assert asked_in(texts, OPTIONS).columns["question"] == [Question(text="a"), Question(text="3")]
    with pytest.raises(ArgumentError, match="no column 'image' and no column 'text'"):
        asked_in(Table("a.csv", {"x": [1]}, [2]), OPTIONS)
    with pytest.raises(ArgumentError, match="column 'text', row 2: expected a text in UTF-8"):
        asked_in(Table("a.parquet", {"text": ["a", b"\xff"]}, [1, 2]), OPTIONS)
