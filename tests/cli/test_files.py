"""The texts a command reads: what is kept of them, and what they are called."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headwise.cli.files import NamedText, check_writable, read_texts
from headwise.errors import FileError

from .conftest import Run, refused


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


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    check_writable(tmp_path / "page.html", "--out", [tmp_path / "loop"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such devices here")
def test_a_device_is_not_waited_for(run: Run, reviews_run: Path, tmp_path: Path) -> None:
    for name in ("in.csv", "in.txt"):
        os.mkfifo(tmp_path / name)
    shutil.copytree(reviews_run, tmp_path / "run")
    for arguments in (
        ("predict", "run", "--file", "in.csv", "--out", "out.csv"),
        ("predict", "run", "--file", "in.csv", "--out", "out.json"),
        ("evaluate", "run", "in.csv"),
        ("embed", "--file", "in.txt", "--out", "out.npy"),
        ("profile", "--file", "in.txt", "--out", "out.hw"),
    ):
        refused(run(*arguments), arguments[arguments.index("--file") + 1 if "--file" in arguments else 2], "a device")
    (tmp_path / "run" / "config.yaml").unlink()
    os.mkfifo(tmp_path / "run" / "config.yaml")
    refused(run("predict", "run", "a film"), "config.yaml", "expected a file. Received: a device")
