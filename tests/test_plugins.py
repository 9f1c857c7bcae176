"""What an installed package adds by entry points: found by name, imported when it is used, refused if it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from headwise.errors import ArgumentError
from headwise.export import FORMATS
from headwise.export.exporting import check_options
from headwise.plugins import Plugins

ENTRIES = """
[toys]
good = toys_of_a_test:good
own = toys_of_a_test:good
text = toys_of_a_test:__name__
gone = toys_of_a_test:gone
other = toys_of_a_test:Path.home
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins[Path]:
    (tmp_path / "toys_of_a_test.py").write_text("from pathlib import Path\n\ngood = Path('good')\n", encoding="utf-8")
    (tmp_path / "toys-1.0.dist-info").mkdir()
    (tmp_path / "toys-1.0.dist-info/entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toys_of_a_test", raising=False)
    return Plugins("toys", Path, {"own": Path("own")})


def test_names_are_known_without_an_import(toys: Plugins[Path]) -> None:
    assert list(toys) == ["own", "good", "text", "gone", "other"]
    assert ("gone" in toys, "no" in toys, len(toys)) == (True, False, 5)
    assert toys["own"] == Path("own")
    assert "toys_of_a_test" not in sys.modules


def test_a_value_is_imported_and_others_may_be_added(toys: Plugins[Path]) -> None:
    assert toys["good"] == Path("good")
    toys["mine"] = Path("mine")
    assert toys.usable() == [Path("own"), Path("good"), Path("mine")]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", r"entry point 'gone' of toys cannot be imported from toys_of_a_test:gone: AttributeError: .*'gone'$"),
        ("text", r"entry point 'text' of toys: expected a Path. Received: toys_of_a_test:__name__, a str$"),
        ("other", r"entry point 'other' of toys: expected a Path\. .*a method$"),
    ],
)
def test_a_broken_one_says_so_when_it_is_used(toys: Plugins[Path], name: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        toys[name]


def test_a_broken_format_fails_only_where_it_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no.where:gone", FORMATS.group)
    monkeypatch.setitem(FORMATS, "broken", broken)
    check_options("onnx", precision="fp32")
    with pytest.raises(ArgumentError, match=r"the entry point 'broken' of headwise\.formats cannot be imported"):
        check_options("broken", precision="fp32")
    (tmp_path / "no-1.0.dist-info").mkdir()
    (tmp_path / "no-1.0.dist-info/entry_points.txt").write_text(f"[{broken.group}]\nbroken = {broken.value}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    program = [sys.executable, "-m", "headwise", "export", "--help"]
    shown = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    assert "--to [onnx|torch|savedmodel|broken]" in shown
