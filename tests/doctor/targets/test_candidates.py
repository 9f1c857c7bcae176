"""Which classes of a file may compute attention, and which lines they depend on."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from headwise.doctor.targets.candidates import candidates

FILE = """
import torch
from torch import nn

SCALE = 0.5

def scores(q, k):
    return q @ k.transpose(-1, -2) * SCALE

def unused(x):
    return x

class Rotary(nn.Module):
    def forward(self, x):
        return x

class Base(nn.Module):
    def forward(self, x):
        return self.attend(x, x, x)

class Inner(Base):
    def attend(self, q, k, v):
        return torch.softmax(scores(q, k), -1) @ v

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.rotary = Inner(), Rotary()

    def forward(self, x):
        return self.inner(self.rotary(x))

class Head(nn.Module):
    def forward(self, x):
        return x.log_softmax(-1)

class Plain:
    def forward(self, x):
        return x.softmax(-1)

class NoForward(nn.Module):
    softmax = torch.softmax
"""


def numbered(text: str, *texts: str) -> set[int]:
    """The numbers of the lines that begin with one of these texts."""
    return {i for i, line in enumerate(text.splitlines(), start=1) if line.strip().startswith(texts)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_classes_with_a_forward_that_reaches_a_softmax(file: Path) -> None:
    """Also through a base class, a function or a part; not a log of one."""
    found, failed = candidates([file])
    assert [each.name for each in found] == ["Inner", "Outer"]
    assert not failed


def test_the_lines_are_those_that_a_call_runs(file: Path) -> None:
    inner, outer = ({line for _, line in each.lines} for each in candidates([file])[0])
    for own in ("SCALE", "def scores", "return q @ k", "class Base", "return self.attend", "class Inner", "def attend"):
        assert numbered(FILE, own) <= inner, own
    for other in ("def unused", "class Outer", "class Rotary", "class Plain", "import"):
        assert numbered(FILE, other).isdisjoint(inner), other
    assert numbered(FILE, "class Outer", "self.inner, self.rotary", "class Rotary") <= outer
    assert numbered(FILE, "def attend", "def scores").isdisjoint(outer)  # what is examined by itself


def test_a_base_class_of_another_file(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    text = (
        "from model import Base\nclass Mine(Base):\n    def attend(self, q, k, v):\n        return q.softmax(-1) @ v\n"
    )
    other.write_text(text, encoding="utf-8")
    assert [x.name for x in candidates([other])[0]] == []  # nothing tells that Base is a module
    found = candidates([file, other])[0]
    assert [x.name for x in found] == ["Inner", "Outer", "Mine"]
    assert {path.name for path, _ in found[-1].lines} == {"model.py", "other.py"}


@pytest.mark.parametrize(
    ("call", "is_one"),
    [
        ("F.scaled_dot_product_attention(x, x, x)", True),
        ("nn.MultiheadAttention(8, 2)(x, x, x)", True),
        ("self.softmax(x)", True),
        ("flash_attn_func(x, x, x)", True),
        ("nn.TransformerEncoderLayer(8, 2)(x)", True),
        ("F.gumbel_softmax(x)", False),
        ("nn.LogSoftmax(-1)(x)", False),
        ("nn.Linear(8, 8)(x)", False),
    ],
)
def test_what_tells_attention(tmp_path: Path, call: str, is_one: bool) -> None:
    path = tmp_path / "a.py"
    code = f"""
        try:
            import torch
        finally:
            class A(torch.nn.Module):
                def forward(self, x):
                    return {call}
        """
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    assert bool(candidates([path])[0]) is is_one


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    (path := tmp_path / "a.py").write_text("class A:\n  def f(:\n", encoding="utf-8")
    failed = candidates([path])[1]
    assert failed[path].startswith("line 2: ")
