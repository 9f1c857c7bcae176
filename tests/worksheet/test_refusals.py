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
    "another module": (lambda: make(torch.nn.Linear(4, 4), x(3, 4)), WorksheetError, r"Received: Linear\. Pass one of"),
    "no module": (lambda: make("attention", x(3, 4)), WorksheetError, "Received: str"),
    "a subclass with a forward of its own": (lambda: make(Mine(4, 2), x(3, 4)), WorksheetError, "Received: Mine"),
    "a hook": (lambda: make(hooked(), x(3, 4)), WorksheetError, "differs from the module's by.*Check for hooks"),
    "a wrapped projection": (
        lambda: make(wrapped(), x(3, 4)),
        WorksheetError,
        "out must be an nn.Linear.*Sequential",
    ),
    "a scheme of positions of one's own": (
        lambda: make(attention(positions=Own()), x(3, 4)),
        WorksheetError,
        "does not show positions of type Own",
    ),
    "too many tokens": (
        lambda: make(attention(), x(17, 4)),
        WorksheetError,
        "at most 16 tokens. Received: 17 tokens.*up to 16 tokens",
    ),
    "too wide": (
        lambda: make(attention(dim=24), x(3, 24)),
        WorksheetError,
        r"X is \[3 × 24\], too large.*at most 16 for M, width of the model.*matrices up to 16 wide",
    ),
    "too many heads": (
        lambda: make(attention(dim=9, num_heads=9), x(3, 9)),
        WorksheetError,
        "at most 8 heads. Received: 9 heads",
    ),
    "far too large": (
        lambda: make(attention(dim=1200), x(3, 1200)),
        WorksheetError,
        "too large to follow.*5,764,800 parameters.*up to 16 tokens",
    ),
    "dropout": (lambda: make(attention(dropout=0.1).train(), x(3, 4)), WorksheetError, r"Call module.eval\(\)"),
    "several examples": (
        lambda: make(attention(), torch.randn(2, 3, 4)),
        ShapeError,
        r"query: expected one example.*\[:1\]",
    ),
    "no tokens": (lambda: make(attention(), torch.zeros(1, 0, 4)), ShapeError, "at least one token"),
    "no tensor": (lambda: make(attention(), [[1.0]]), ShapeError, "query: expected a tensor.*Received: list"),
    "another width": (lambda: make(attention(), x(3, 5)), ShapeError, r"query: expected \[B, S, 4\]"),
    "no numbers": (
        lambda: make(nn.MultiHeadAttention(4, 2, device="meta"), x(3, 4)),
        WorksheetError,
        "on the meta device",
    ),
    "NaN": (lambda: make(attention(), x(3, 4) * torch.nan), WorksheetError, "X: every number must be finite"),
    "an overflow": (lambda: make(attention(), x(3, 4) * 1e200), WorksheetError, "it overflows"),
    "a mask that does not fit": (
        lambda: make(attention(), x(3, 4), mask=torch.ones(4, 4).bool()),
        MaskError,
        "the mask was made for Q = 4 and K = 4, the call has Q = 3 and K = 3",
    ),
    "a mask of floats": (lambda: make(attention(), x(3, 4), mask=torch.ones(3, 3)), DtypeError, "bool"),
    "a cache": (lambda: make(attention(), x(3, 4), cache=nn.Cache()), WorksheetError, "cache: .* remove cache="),
    "an unknown argument": (lambda: make(attention(), x(3, 4), foo=1), ArgumentError, "unexpected keyword.*foo"),
    "names that are too few": (lambda: make(attention(), x(3, 4), tokens=["a"]), ArgumentError, "tokens: expected 3"),
    "names that are a text": (lambda: make(attention(), x(3, 4), tokens="abc"), ArgumentError, "expected 3 strings"),
    "names of a memory that is not there": (
        lambda: make(attention(), x(3, 4), memory_tokens=["a"]),
        ArgumentError,
        "memory_tokens needs a second input sequence",
    ),
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
