"""Extras: what is missing is said before work begins, with the command that installs it where the user is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headwise import extras
from headwise.errors import ArgumentError
from headwise.extras import PACKAGES, install, need

ROOT = Path(__file__).parents[1]


def test_what_is_missing_is_named_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "starlette", raising=False)
    with pytest.raises(
        ArgumentError, match=r"^the server needs the extra view\. Not installed: uvicorn\. Install it: "
    ):
        need("the server", "view")
    need("the server", "view", "starlette")
    assert "starlette" not in sys.modules


def test_in_a_clone_the_command_is_one_of_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    (clone / "headwise").mkdir(parents=True)
    monkeypatch.setattr(extras, "__file__", str(clone / "headwise" / "extras.py"))
    monkeypatch.setattr(sys, "prefix", str(clone / ".venv"))
    monkeypatch.setattr(sys, "executable", str(clone / "env" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert install("plot") == 'pip install "headwise[plot]"'
    (clone / "pyproject.toml").touch()
    assert install("plot") == "clone/scripts/install plot"
    monkeypatch.chdir(clone)
    assert install("plot") == "scripts/install plot"
    monkeypatch.setattr(sys, "prefix", str(clone / "env"))
    assert install("plot") == 'env/bin/python -m pip install -e ".[plot]"'


def test_every_extra_is_one_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in project for extra in PACKAGES)


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (["view", "nothing", "--serve", "--model", "no/such"], "uvicorn", "view"),
        (["train", "classify", "no.csv"], "pytorch_lightning", "train"),
        (["predict", ".", "text"], "pytorch_lightning", "train"),
        (["export", "no-run", "--to", "onnx", "--out", "out"], "onnxscript", "export"),
        (["export", "no-run", "--to", "onnx", "--out", "out"], "pytorch_lightning", "train"),
        (["embed", "--file", "no.txt", "--out", "vectors.parquet"], "pyarrow", "train"),
        (["serve", "."], "kserve", "serve"),
    ],
)
def test_a_command_says_so_before_it_loads_anything(
    words: list[str], package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headwise import tasks
    from headwise.cli import main

    for name in ("Classify", "load"):
        monkeypatch.delitem(vars(tasks), name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(words) == 2
    assert f"needs the extra {extra}. Not installed: {package}. Install it: " in capsys.readouterr().err
