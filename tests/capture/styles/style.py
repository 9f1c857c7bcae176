"""A style of attention: how some code computes it, and the weights that it used itself.

A style is a function or a module with `@style`. It returns its output and its truth: its weights [B, H, Q, K], a
function that computes them afterwards, a tuple of these if it attends several times, a list of them if they can be
arranged in several ways, or `NOT_ATTENTION`. The names of its arguments say what it is given (`INPUTS`). Adding a
style is one function, in the file of its kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

B, H, Q, D = 2, 4, 6, 8
M = H * D
NOT_ATTENTION = "not attention"
CAUSAL = torch.ones(Q, Q, dtype=torch.bool).tril()
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
BIAS = torch.linspace(-2, 2, H * Q * Q).view(1, H, Q, Q)

INPUTS: dict[str, Callable[[], Tensor]] = {
    **dict.fromkeys("qkv", lambda: torch.randn(B, H, Q, D)),
    "x": lambda: torch.randn(B, Q, M),
    "context": lambda: torch.randn(B, 9, M),
    "image": lambda: torch.randn(B, M, 6, 4),
    "ids": lambda: torch.randint(0, 20, (B, Q)),
}

Made = TypeVar("Made", bound=Callable[..., Any])


@dataclass(frozen=True)
class Style:
    """One of `STYLES`."""

    name: str
    group: str  # the file that it is in
    make: Callable[..., Any]  # a function of its inputs, or the class of a module

    def model(self) -> Model:
        """The style in a model."""
        torch.manual_seed(1)
        model = Model(self.make() if inspect.isclass(self.make) else Block(self.make))
        for module in model.modules():  # an exported program has no eval()
            module.training = False
        return model

    def inputs(self) -> list[Tensor]:
        """What it is given, the same every time."""
        torch.manual_seed(2)
        called = self.make.forward if inspect.isclass(self.make) else self.make
        return [INPUTS[name]() for name in inspect.signature(called).parameters if name != "self"]


STYLES: dict[str, Style] = {}


def style(make: Made) -> Made:
    """Add a function or the class of a module to the styles."""
    add(make.__name__, make)
    return make


def add(name: str, make: Callable[..., Any]) -> None:
    """Add a style under a name of its own."""
    name = name.replace("_", " ")
    if name in STYLES:
        raise ValueError(f"two styles are called {name!r}: rename one")
    STYLES[name] = Style(name, make.__module__.rpartition(".")[2], make)


class Block(nn.Module):
    """A module whose class says nothing, and whose forward is a style's function."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.num_heads = body, H

    def forward(self, *inputs: Tensor) -> Any:
        return self.body(*inputs)


class After(nn.Module):
    """An attention that each way of watching sees: it reads the style's output, and must not suffer from it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x.float().reshape(1, 1, -1, 4)[:, :, :5]).chunk(3, -1)
        w = (q @ k.mT).softmax(-1)
        return w @ v, w


class Model(nn.Module):
    """A style, and an ordinary attention after it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.after = block, After()

    def forward(self, *inputs: Tensor) -> Any:
        out, truth = self.block(*inputs)
        return out, truth, self.after(out)[1]


def run(model: Model, *inputs: Tensor) -> Any:
    """(the style's output, its truth, the truth of the attention after it): of the model, or of `block.outside`."""
    if not hasattr(model.block, "outside"):
        return model(*inputs)
    out, truth = model.block.outside(*inputs)
    return out, truth, model.after(out)[1]
