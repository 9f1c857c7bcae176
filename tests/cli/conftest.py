"""Running the command inside the test's process, in an empty folder."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwise import tasks
from headwise.cli import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Run = Callable[..., Result]


def refused(result: Result, *words: str) -> None:
    """Exit code 2, nothing on standard output, and one line in which these words stand."""
    assert (result.code, result.out) == (2, ""), result
    (line,) = result.err.splitlines()
    assert line.startswith(("headwise: ", "Usage: ")), line
    for each in words:
        assert each in line


def contents(folder: Path) -> dict[str, bytes | None]:
    """Of all files in a folder, and of folders None."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("view", "a text", stdin=b"...")`, with the current folder `tmp_path`; stdin=None is a terminal."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path, stdin: bytes | None = b"") -> Result:
        monkeypatch.setattr("sys.stdin", Terminal() if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def reviews_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `classify`, of a model that is too small to have learned much."""
    words = ("good", "bad")
    rows = {"sentence": [f"a {word} film {row}" for row in range(6) for word in words], "label": [*words] * 6}
    folder = tmp_path_factory.mktemp("runs") / "reviews"
    small = {"model": "scratch", "dim": 16, "heads": 2, "vocab_size": 100, "epochs": 1, "monitor_every": 0}
    tasks.Classify.fit(rows, text="sentence", out=folder, **small)
    return folder


def facts(page: Path) -> dict[str, Any]:
    """What a page is told of what it shows."""
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page.read_text(encoding="utf-8"))
    return json.loads(found[1])
