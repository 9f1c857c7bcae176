"""What a worksheet does not show is refused, in a sentence that says what would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise.worksheet
from headwise import nn
from headwise.errors import ArgumentError, DtypeError, MaskError, ShapeError, WorksheetError
from headwise.nn import positions
from headwise.worksheet import make
from headwise.worksheet.builder import Builder

from .cases import x


def attention(**options: Any) -> nn.MultiHeadAttention:
    return nn.MultiHeadAttention(options.pop("dim", 4), options.pop("num_heads", 2), **options).double()


def made(module: Any = None, length: int = 3, width: int = 4, **given: Any) -> Any:
    return make(attention() if module is None else module, x(length, width), **given)


class Mine(nn.MultiHeadAttention):
    def forward(self, *args: Any, **given: Any) -> Any:
        return 2 * super().forward(*args, **given)


class Own(positions.Positions):
    pass


def hooked() -> nn.MultiHeadAttention:
    module = attention()
    module.out.register_forward_hook(lambda _module, _inputs, output: output + 1)
    return module


def wrapped() -> nn.MultiHeadAttention:
    module = attention()
    module.out = torch.nn.Sequential(module.out)
    return module


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "another module": (lambda: made(torch.nn.Linear(4, 4)), WorksheetError, r"Received: Linear\. Pass one of"),
    "no module": (lambda: made("attention"), WorksheetError, "Received: str"),
    "a subclass with a forward of its own": (lambda: made(Mine(4, 2)), WorksheetError, "Received: Mine"),
    "a hook": (lambda: made(hooked()), WorksheetError, "differs from the module's by.*Check for hooks"),
    "a wrapped projection": (lambda: made(wrapped()), WorksheetError, "out must be an nn.Linear.*Sequential"),
    "a scheme of positions of one's own": (
        lambda: made(attention(positions=Own())),
        WorksheetError,
        "does not show positions of type Own",
    ),
    "too many tokens": (lambda: made(length=17), WorksheetError, "at most 16 tokens. Received: 17 tokens"),
    "too wide": (
        lambda: made(attention(dim=24), width=24),
        WorksheetError,
        r"X is \[3 × 24\], too large.*at most 16 for M",
    ),
    "too many heads": (
        lambda: made(attention(dim=9, num_heads=9), width=9),
        WorksheetError,
        "at most 8 heads. Received: 9 heads",
    ),
    "far too large": (lambda: made(attention(dim=1200), width=1200), WorksheetError, "too large to follow.*5,764,800"),
    "dropout": (lambda: made(attention(dropout=0.1).train()), WorksheetError, r"Call module.eval\(\)"),
    "several examples": (
        lambda: make(attention(), torch.randn(2, 3, 4)),
        ShapeError,
        r"query: expected one example.*\[:1\]",
    ),
    "no tokens": (lambda: make(attention(), torch.zeros(1, 0, 4)), ShapeError, "at least one token"),
    "no tensor": (lambda: make(attention(), [[1.0]]), ShapeError, "query: expected a tensor.*Received: list"),
    "another width": (lambda: made(width=5), ShapeError, r"query: expected \[B, S, 4\]"),
    "no numbers": (lambda: made(nn.MultiHeadAttention(4, 2, device="meta")), WorksheetError, "on the meta device"),
    "NaN": (lambda: make(attention(), x(3, 4) * torch.nan), WorksheetError, "X: every number must be finite"),
    "an overflow": (lambda: make(attention(), x(3, 4) * 1e200), WorksheetError, "it overflows"),
    "a mask that does not fit": (lambda: made(mask=torch.ones(4, 4).bool()), MaskError, "the mask was made for Q = 4"),
    "a mask of floats": (lambda: made(mask=torch.ones(3, 3)), DtypeError, "bool"),
    "a cache": (lambda: made(cache=nn.Cache()), WorksheetError, "cache: .* remove cache="),
    "an unknown argument": (lambda: made(foo=1), ArgumentError, "unexpected keyword.*foo"),
    "names that are too few": (lambda: made(tokens=["a"]), ArgumentError, "tokens: expected 3"),
    "names that are a text": (lambda: made(tokens="abc"), ArgumentError, "expected 3 strings"),
    "names of a memory that is not there": (lambda: made(memory_tokens=["a"]), ArgumentError, "needs a second input"),
    "another ending": (
        lambda: headwise.worksheet.write(attention(), x(3, 4), "steps.pdf"),
        ArgumentError,
        "ends in .xlsx, .md, .html",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_says_what_and_why(what: str) -> None:
    call, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        call()


def test_more_steps_than_anyone_would_follow() -> None:
    b = Builder()
    for number in range(120):
        b.step(f"step {number}", "", "", [b.option(f"Number_{number}", 1.0)])
    with pytest.raises(WorksheetError, match=r"more than 120 steps. Use one of its layers"):
        b.step("one more", "", "", [])
