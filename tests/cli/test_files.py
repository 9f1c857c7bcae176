"""The texts a command reads: what is kept of them, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.cli.files import NamedText, check_writable, read_texts
from headwise.errors import FileError


def test_a_file_is_read_as_it_is_but_for_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("\ufeffcafé\r\n 猫 ".encode())
    assert read_texts([], [path]) == [NamedText(name=str(path), title="notes.txt", text="café\r\n 猫 ")]


def test_a_text_on_a_page_is_called_by_its_beginning() -> None:
    short, long = read_texts(["the  cat\nsat", "猫" * 100], [])
    assert (short.name, short.title, short.text) == ("TEXT 1", "the cat sat", "the  cat\nsat")
    assert (long.name, long.title) == ("TEXT 2", "猫" * 59 + "…")


def test_trying_a_page_leaves_it_as_it_was(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check_writable(page, "--out")
    assert list(tmp_path.iterdir()) == []
    page.write_text("of yesterday", encoding="utf-8")
    check_writable(page, "--out")
    assert page.read_text(encoding="utf-8") == "of yesterday"


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--out"):
        check_writable(tmp_path / "file" / "page.html", "--out")
