"""What changes nothing about a healthy module must yield nothing: wrappers, hooks, parametrizations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import headwise
from headwise.doctor.calling.copying import copied
from tests.doctor.laws.specimens import Attention, altered


class Keeps(Attention):
    """Keeps a method of its own as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scored = self.score

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        return self.out(self.merge(self.scored(q, k).softmax(-1) @ v))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)


def wrapped(module: nn.Module) -> nn.Module:
    forward = module.forward

    @functools.wraps(forward)
    def through(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    module.forward = through  # type: ignore[method-assign]
    return module


def hooked(module: nn.Module) -> nn.Module:
    def check(_: nn.Module, args: Any) -> None:
        assert args[0].shape[-1] == module.q.in_features  # type: ignore[union-attr]

    module.register_forward_pre_hook(check)
    return module


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def parametrized(module: nn.Module) -> nn.Module:
    for name in ("q", "k", "v", "out"):
        parametrize.register_parametrization(getattr(module, name), "weight", Same())
    return module


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize("change", [wrapped, lambda module: wrapped(wrapped(module)), hooked, parametrized, Around])
def test_what_changes_nothing_yields_nothing(change: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    diagnosis = headwise.diagnose(change(Keeps()))
    assert diagnosis.healthy, str(diagnosis)
    assert not [x.name for x in diagnosis.findings if x.severity == "risk"]


def test_a_copy_computes_with_its_own_parameters() -> None:
    module = wrapped(wrapped(Keeps()))
    copy, x = copied(module), torch.randn(1, 3, 16)
    before = module(x)
    with torch.no_grad():
        for p in copy.parameters():
            p.zero_()
    assert torch.equal(module(x), before)
    assert not copy(x).any()


def test_a_wrapper_does_not_hide_a_mistake() -> None:
    by_the_width = altered(Keeps, score=lambda self, q, k: q @ k.mT / self.width**0.5)
    assert [x.name for x in headwise.diagnose(wrapped(by_the_width)).bugs] == ["wrong-scale"]
