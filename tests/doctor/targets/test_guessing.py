"""Constructor arguments that nobody stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.doctor.targets.guessing import guessing
from headwise.doctor.targets.load import parse
from headwise.errors import DoctorError

FILE = """
from __future__ import annotations
import dataclasses
from collections.abc import Callable
from torch import nn

@dataclasses.dataclass
class Sizes:
    width: int = 32
    heads: int = 2

@dataclasses.dataclass
class Needed:
    n_embd: int
    n_head: int | None

class Plain(nn.Module):
    def __init__(self, embed_size, heads, dropout, causal: bool, depth: int, other=3):
        super().__init__()
        self.got = embed_size, heads, dropout, causal, depth, other

class Loose(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.got = config.n_embd, config.n_head, getattr(config, "bias", None)

class OfSizes(nn.Module):
    def __init__(self, config: Sizes):
        super().__init__()
        self.got = config.width, config.heads

class OfNeeded(nn.Module):
    def __init__(self, sizes: Needed):
        super().__init__()
        self.got = sizes.n_embd, sizes.n_head

class Unknown(nn.Module):
    def __init__(self, width, block: nn.Module): ...

class Function(nn.Module):
    def __init__(self, width, head_function: Callable[[int], int]): ...

class Untold(nn.Module):
    def __init__(self, thing): ...

class Odd(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.got = config.what_is_it
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "got", "remark"),
    [
        (
            "Plain",
            (64, 4, 0.0, True, 2, 3),
            "arguments guessed: embed_size=64, heads=4, dropout=0.0, causal=True, depth=2",
        ),
        # What it may do without stays at its default.
        ("Loose", (64, 4, None), "arguments guessed: config.n_embd=64, config.n_head=4"),
        ("OfNeeded", (64, 4), "arguments guessed: sizes.n_embd=64, sizes.n_head=4"),
    ],
)
def test_arguments_by_their_names(file: Path, name: str, got: tuple[object, ...], remark: str) -> None:
    target = guessing(parse(f"{file}:{name}"))
    assert target.build().got == got
    assert target.remarks == (remark,)


def test_what_is_stated_is_not_guessed(file: Path) -> None:
    target = guessing(parse(f"{file}:Plain(32, heads=8)", ["dropout=0.5"]))
    assert target.build(depth=1).got == (32, 8, 0.5, True, 1, 3)
    assert target.remarks == ("arguments guessed: causal=True, depth=2",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unknown", r"needs block, which cannot be guessed: headwise doctor .*model.py:Unknown --set block=VALUE"),
        ("Function", r"needs head_function, which cannot be guessed"),
        ("Untold", r"needs thing, which cannot be guessed"),
        ("Odd", r"config has no what_is_it: add --set config\.what_is_it=VALUE"),
    ],
)
def test_what_cannot_be_guessed_is_said(file: Path, name: str, said: str) -> None:
    with pytest.raises(DoctorError, match=said):
        guessing(parse(f"{file}:{name}")).build()
