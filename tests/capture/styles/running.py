"""Unusual ways to run: threads, compiled and scripted code, functional calls, checkpoints, code outside of modules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import B, D, H, M, Q, style

Two = tuple[Tensor, Any]


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What each of these runs."""
    w = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.3, dim=-1)
    return torch.matmul(w, v), w


@style
class AMethod(nn.Module):
    """Not forward: model.encode(x)."""

    def outside(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        return attend(q, k, v)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        raise NotImplementedError


@style
class OutsideOfModules(nn.Module):
    """A function that reads the model's parameters; no module of it runs."""

    @staticmethod
    def outside(q: Tensor, k: Tensor, v: Tensor) -> Two:
        return attend(q, k, v)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        raise NotImplementedError


@style
class FunctionalCall(nn.Module):
    """The model with other parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()

    def forward(self, x: Tensor) -> Two:
        parameters = {name: 2 * p for name, p in self.layer.named_parameters()}
        return torch.func.functional_call(self.layer, parameters, (x,))


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(M, 3 * M)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).view(B, -1, 3, H, D).permute(2, 0, 3, 1, 4)
        return attend(q, k, v)


@style
def sdpa_in_a_pool_of_threads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """An example in each."""
    with ThreadPoolExecutor(2) as pool:
        outs = pool.map(functional.scaled_dot_product_attention, q, k, v)
    return torch.stack(list(outs)), lambda: (q @ k.mT * D**-0.5).softmax(-1)


@style
class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.jit.script(_Scriptable())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        return self.layer(q, k, v)


class _Scriptable(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        w = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.3, dim=-1)
        return torch.matmul(w, v), w


@style
class ScriptedFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = torch.jit.script(attend)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        return self.attend(q, k, v)


@style
class Compiled(nn.Module):
    """A compiled submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.compile(_Layer(), backend="aot_eager")

    def forward(self, x: Tensor) -> Two:
        return self.layer(x)


@style
class Exported(nn.Module):
    """torch.export's program as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.export.export(_Scriptable(), tuple(torch.randn(3, B, H, Q, D))).module()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        return self.layer(q, k, v)


@style
class GradientInside(nn.Module):
    """The forward pass itself takes a gradient, as in energy models."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            out, w = attend(q, k, v)
            (grad,) = torch.autograd.grad(out.sum(), q)
        return out + grad, w


@style
def the_gradient_of_a_function(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """torch.func.vjp."""
    out, pull, w = torch.func.vjp(lambda q: attend(q, k, v), q, has_aux=True)
    return out + pull(out)[0], w


@style
class ModuleCalledTwice(nn.Module):
    """Shared weights: one module, two calls in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()

    def forward(self, x: Tensor) -> Two:
        out, first = self.layer(x)
        out, second = self.layer(out.transpose(1, 2).reshape(B, Q, M))
        return out, (first, second)


@style
class Unregistered(nn.Module):
    """A module that its owner keeps in a list, as a teacher whose weights are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [_Layer()]

    def forward(self, x: Tensor) -> Two:
        return self.teacher[0](x)
