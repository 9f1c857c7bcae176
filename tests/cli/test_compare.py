"""`headwise compare`: its report, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

MINE = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, width, heads, scale=None):
        super().__init__()
        self.heads = heads
        self.scale = scale or (width // heads) ** -0.5
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        weights = torch.softmax(q @ k.mT * self.scale, -1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class Theirs(Mine):
    pass
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "other.py").write_text(MINE, encoding="utf-8")


SETTINGS = ("--set", "width=12", "--set", "heads=3")


def test_the_same_is_said_and_gives_0(run: Run) -> None:
    result = run("compare", "mine.py:Mine", "torch", *SETTINGS)
    assert result.code == 0
    assert "They compute the same: largest difference " in result.out
    assert "to_q.weight = in_proj_weight [1 of 3]" in result.out
    assert "random by example" in result.out
    assert result.err == "headwise: importing mine.py (this executes its code)\n"
    assert all(line == line.rstrip() for line in result.out.splitlines())


def test_a_difference_gives_1_and_its_line(run: Run) -> None:
    result = run("compare", "mine.py:Mine", "torch", *SETTINGS, "--set", "scale=0.25")
    assert result.code == 1
    assert "They agree in queries, keys, values, and differ at the scores" in result.out
    assert "mine.py:15" in result.out
    assert "weights = torch.softmax(q @ k.mT * self.scale, -1)" in result.out


def test_two_files_with_settings_of_their_own(run: Run) -> None:
    other = ("--set-other", "width=12", "--set-other", "heads=3")
    result = run("compare", "mine.py:Mine", "other.py:Mine", *SETTINGS, *other)
    assert result.code == 0
    assert "mine.py:Mine and other.py:Mine, in float64" in result.out
    result = run("compare", "mine.py:Mine", "other.py:Theirs", *SETTINGS, *other, "--set-other", "scale=1.0")
    assert result.code == 1
    assert "0.5 times" in result.out


def test_json_on_standard_output_and_in_a_file(run: Run, tmp_path: Path) -> None:
    result = run("compare", "mine.py:Mine", "torch", *SETTINGS, "--json", "-")
    told = json.loads(result.out)
    assert (result.code, told["same"], told["first"], told["second"]) == (0, True, "Mine", "torch")
    masked = [row for row in told["rows"] if row["mask"] != "none"]
    assert all(row["output"] is None and "no mask argument" in row["problem"] for row in masked)
    assert run("compare", "mine.py:Mine", "torch", *SETTINGS, "--json", "found.json").code == 0
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["mapping"] == told["mapping"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine.py:Mine", "numpy"), "OTHER: expected FILE.PY:CLASS or one of torch, headwise, keras"),
        (("mine.py:Mine", "hf:brt", *SETTINGS), "has no model called 'brt'"),
        (("mine.py:Nothing", "torch"), "mine.py has no such class. Received: Nothing"),
        (("nowhere.py:Mine", "torch"), "no such file: nowhere.py"),
        (("mine.py:Mine", "torch"), "width"),
        (("mine.py:Mine", "torch", *SETTINGS, "--set-other", "width=1"), "--set-other: OTHER must be a FILE.PY:CLASS"),
        (("mine.py:Mine", "torch", *SETTINGS, "--json", "no/such/folder.json"), "--json"),
        (
            ("mine.py:Mine", "other.py:Mine", *SETTINGS, "--set-other", "width=8", "--set-other", "heads=2"),
            "must have the same width. Received: 12 and 8",
        ),
    ],
)
def test_bad_input_gets_a_sentence(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run("compare", *arguments)
    assert result.code == 2
    assert said in result.err.splitlines()[-1]
    assert result.out == ""
