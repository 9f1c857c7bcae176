"""The texts of files and data sets."""

from __future__ import annotations

import gzip
from pathlib import Path

import datasets
import pytest

from headwise.errors import ArgumentError, FileError
from headwise.profiles.corpus import LONGEST, of_dataset, of_file

ROWS = {"text": ["one", "", "two words"], "label": [0, 1, 0]}


def test_paragraphs_or_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\ufeffone\nstill one\n\n\n  \ntwo\n", encoding="utf-8")
    assert list(of_file(path)) == ["one\nstill one", "two"]
    assert list(of_file(path, lines=True)) == ["one", "still one", "two"]
    with gzip.open(packed := tmp_path / "corpus.txt.gz", "wb") as file:
        file.write(path.read_bytes())
    assert list(of_file(packed)) == ["one\nstill one", "two"]


def test_a_paragraph_without_end_is_cut_at_a_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("word " * 20 + "\n" + ("word " * 100 + "\n") * 300)
    texts = list(of_file(path))
    assert len(texts) > 2
    assert max(map(len, texts)) < LONGEST + 600
    assert sum(text.count("word") for text in texts) == 20 + 100 * 300


def test_a_column_of_a_table(tmp_path: Path) -> None:
    frame = datasets.Dataset.from_dict(ROWS)
    frame.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text('text,label\none,0\n,1\n"two words",0\n')
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n{"text": ""}\n{"text": "two words"}\n')
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        corpus = of_file(tmp_path / name)
        assert list(corpus) == list(corpus) == ["one", "two words"]  # again from the first on
        assert corpus.name == name
        with pytest.raises(ArgumentError, match=r"there is no column 'words'\. The columns are: 'text'"):
            list(of_file(tmp_path / name, "words"))
    with pytest.raises(ArgumentError, match="Leave --lines out"):
        of_file(tmp_path / "rows.csv", lines=True)


def test_a_data_set(tmp_path: Path) -> None:
    frame = datasets.Dataset.from_dict(ROWS)
    frame.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": frame, "test": frame.select([2])}).save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    frame.to_parquet(tmp_path / "files" / "train.parquet")
    assert list(of_dataset(str(tmp_path / "one"))) == ["one", "two words"]
    assert list(of_dataset(str(tmp_path / "splits"))) == ["one", "two words"]
    assert list(of_dataset(f"{tmp_path / 'splits'}:test")) == ["two words"]
    assert list(of_dataset(str(tmp_path / "files"))) == ["one", "two words"]
    with pytest.raises(ArgumentError, match=r"there is no column 'words'\. The columns are: 'text', 'label'"):
        list(of_dataset(str(tmp_path / "one"), "words"))
    with pytest.raises(FileError, match="no data set of that name can be read"):
        list(of_dataset(str(tmp_path / "none")))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        list(of_file(tmp_path / "none.txt"))
    (tmp_path / "latin.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(FileError, match="byte 0xe9 in line 2"):
        list(of_file(tmp_path / "latin.txt"))
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ArgumentError, match="there are no rows"):
        list(of_file(tmp_path / "empty.csv"))
    (tmp_path / "empty.txt").write_text("\n \n")
    assert list(of_file(tmp_path / "empty.txt")) == []
