"""Records torch functions while a module runs: random functions, softmaxes, and any that are asked for.

The first distinguish dropout that is active in eval mode from other randomness. Dropout can also be disabled here
without changing the module, so that the module still takes the code paths of active dropout. The second show how large
scores are, and to what value masked scores are set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.doctor.finding import Where
from headwise.doctor.lines import running_line

# name -> position of its probability and its default; position of its switch (None: the probability is the switch).
_DROPOUTS: dict[str, tuple[int, str, float, int | None, str]] = {
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
        (1, "p", 0.5, 2, "training"),
    ),
    **dict.fromkeys(("native_dropout", "dropout_"), (1, "p", 0.5, 2, "train")),
    "scaled_dot_product_attention": (4, "dropout_p", 0.0, None, ""),
    "multi_head_attention_forward": (10, "dropout_p", 0.0, 13, "training"),
}
# What hand-written dropout is made of: uniform random numbers that are compared with p.
_EVEN = ("rand", "rand_like", "bernoulli", "bernoulli_", "uniform_")
_OTHER = (
    *("randn", "randn_like", "normal", "normal_", "randint", "randint_like"),
    *("randperm", "multinomial", "exponential_"),
)


@dataclasses.dataclass(frozen=True)
class Throw:
    """One call of a random function."""

    function: str
    p: float | None  # of dropout
    where: Where | None

    @property
    def dropout(self) -> bool:
        """Whether it is dropout, or a part of hand-written dropout."""
        return self.p is not None or self.function in _EVEN


class Dice(TorchFunctionMode):
    """Every call of a random function that has an effect; with `still`, dropout passes everything through."""

    def __init__(self, *, still: bool = False) -> None:
        super().__init__()
        self.still = still
        self.heard: list[Throw] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _DROPOUTS:
            at, word, default, switch_at, switch = _DROPOUTS[name]
            p = _argument(args, kwargs, at, word, default)
            acts = p and (switch_at is None or _argument(args, kwargs, switch_at, switch, True))
            if acts:
                self.heard.append(Throw(name, float(p), running_line()))
                if self.still:
                    args, kwargs = _replaced(args, kwargs, at, word, 0.0)
        elif name in _EVEN or name in _OTHER:
            self.heard.append(Throw(name, None, running_line()))
        return func(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Scores:
    """The input of one softmax."""

    scores: Tensor
    dtype: torch.dtype  # in which it was computed
    where: Where | None
    dim: int  # that sums to 1


class Softmaxes(TorchFunctionMode):
    """The input of every call of a softmax function."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Scores] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("softmax", "log_softmax", "_softmax"):
            x = args[0] if args else kwargs.get("input")
            if isinstance(x, Tensor) and x.is_floating_point():
                asked = next((y for y in (*args[1:], *kwargs.values()) if isinstance(y, torch.dtype)), x.dtype)
                dim = next((y for y in (*args[1:2], kwargs.get("dim")) if isinstance(y, int)), -1)
                self.heard.append(Scores(x.detach().clone(), asked, running_line(), dim))
        return func(*args, **kwargs)


def _argument(args: Sequence[Any], kwargs: dict[str, Any], at: int, word: str, default: Any) -> Any:
    return args[at] if len(args) > at else kwargs.get(word, default)


def _replaced(
    args: Sequence[Any], kwargs: dict[str, Any], at: int, word: str, value: Any
) -> tuple[Sequence[Any], dict[str, Any]]:
    if len(args) > at:
        return (*args[:at], value, *args[at + 1 :]), kwargs
    return args, {**kwargs, word: value}


class Calls(TorchFunctionMode):
    """How many calls there were of some torch functions."""

    def __init__(self, *functions: Any) -> None:
        super().__init__()
        self.functions, self.number = set(functions), 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func in self.functions
        return func(*args, **(kwargs or {}))


def given_to(parts: Iterable[nn.Module], call: Callable[[], object]) -> list[Tensor]:
    """Copies of the first argument of each of these parts, each time that the call calls one."""
    found: list[Tensor] = []
    hooks = [x.register_forward_pre_hook(lambda _, given: found.append(given[0].clone())) for x in parts]
    call()
    for hook in hooks:
        hook.remove()
    return found


class NaNs(TorchFunctionMode):
    """Where the first torch function makes NaN of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.began: Where | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.began is None and isinstance(out, Tensor) and bool(out.isnan().any()):
            self.began = running_line()
        return out


class Dispatching(TorchDispatchMode):
    """A TorchDispatchMode whose `__torch_dispatch__` stays as it is written.

    torch wraps that of a subclass so that it is not compiled, and imports the compiler for it at the first operation.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        written = cls.__dict__.get("__torch_dispatch__")
        super().__init_subclass__(**kwargs)
        if written is not None:
            cls.__torch_dispatch__ = written  # type: ignore[method-assign]
