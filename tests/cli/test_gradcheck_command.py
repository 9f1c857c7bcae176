"""`headwise gradcheck`: its table, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

CODE = """
import torch
from torch import nn


class Right(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.heads = 2
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        return self.out((self.weigh(q @ k.mT) @ v).transpose(1, 2).flatten(2))

    def weigh(self, scores):
        return scores.softmax(-1)


class Wrong(Right):
    def weigh(self, scores):
        return scores.softmax(-1).detach()


class Strings(Right):
    def forward(self, x):
        return "attention"
"""


@pytest.fixture(autouse=True)
def _file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE, encoding="utf-8")


def test_right_gradients_give_0(run: Run) -> None:
    result = run("gradcheck", "mine.py:Right", "--set", "width=12")
    assert result.code == 0
    assert "Gradients of Right, in float64" in result.out
    assert "36 × 12" in result.out
    assert "The gradients are right: 168 numbers checked" in result.out
    assert result.err == "headwise: importing mine.py (this executes its code)\n"


def test_wrong_gradients_give_1(run: Run) -> None:
    result = run("gradcheck", "mine.py:Wrong")
    assert result.code == 1
    assert "gradients are wrong" in result.out


def test_all_numbers_and_json(run: Run) -> None:
    result = run("gradcheck", "mine.py:Right", "--all", "--json", "-")
    told = json.loads(result.out)
    assert (result.code, told["right"], told["subject"]) == (0, True, "Right")
    assert {x["name"]: x["checked"] for x in told["tensors"]} == {
        "input query": 64,
        "qkv.weight": 192,
        "qkv.bias": 24,
        "out.weight": 64,
        "out.bias": 8,
    }
    result = run("gradcheck", "mine.py:Right", "--samples", "5", "--seed", "3", "--json", "-")
    assert {x["checked"] for x in json.loads(result.out)["tensors"]} == {5}


def test_a_bar_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("gradcheck", "mine.py:Right")
    assert "152/152" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine.py:Nothing",), "mine.py has no such class. Received: Nothing"),
        (("mine.py:Right", "--set", "wide=8"), "wide"),
        (("mine.py:Strings",), "Strings"),
        (("mine.py:Right", "--samples", "0"), "--samples"),
        (("mine.py:Right", "--spec", "haeds=2"), "haeds"),
    ],
)
def test_bad_input_gets_a_sentence(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run("gradcheck", *arguments)
    assert result.code == 2
    assert said in result.err.splitlines()[-1]
    assert result.out == ""
