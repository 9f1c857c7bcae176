"""Finds by trial how a language model computes logits from its residual stream: the terms, the last norm, W_U, W_E.

logits = (norm(Σ terms)) W_U + b_U,        terms: embeddings, the outputs of each attention and each MLP
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headwise.errors import ProjectionError
from headwise.experiments.linear import close, in_rows
from headwise.experiments.norms import Norm, find_norm
from headwise.experiments.observing import Observed, tensors_in


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """One tensor that is added to the residual stream."""

    name: str  # the name of the module that gave it, or of a parameter
    x: Tensor  # the tensor as the module gave it
    factor: float
    value: Tensor  # [B, N, M], the tensor times the factor, float64


@dataclasses.dataclass(frozen=True, eq=False)
class Readout:
    """How the logits of one run were computed from the residual stream. Tensors are float64."""

    logits: Tensor  # [B, N, V]
    unembedding: Tensor  # W_U [M, V], as the model has it
    bias: Tensor  # b_U [V]
    norm: Norm | None
    terms: Sequence[Term]
    dtype: torch.dtype  # the dtype of the model's own logits

    @property
    def folded(self) -> Tensor:
        """W_U [M, V], multiplied by the gain of the last norm, and centred if this norm subtracts the mean."""
        return self.unembedding if self.norm is None else self.norm.folded(self.unembedding)

    def direct(self, part: Tensor) -> Tensor:
        """Return a part [B, N, M] of the residual stream as W_U gets it: divided by the norm's σ of this run."""
        return part if self.norm is None else self.norm.apply(part)

    @property
    def constant(self) -> Tensor:
        """The part [V] of the logits that comes from no term of the stream: b_U, and the norm's bias times W_U."""
        return self.bias if self.norm is None else self.bias + self.norm.bias @ self.unembedding


def readout(observed: Observed, whole: Callable[[Tensor], bool] = lambda x: False) -> Readout:
    """Find how the logits of a run were computed. Terms for which `whole` is true are not split into their own terms.

    Raises ProjectionError, which says what was not found.
    """
    logits = find_logits(observed.result)
    (inner, scaling), *others = observed.sums.of(logits)  # some models multiply their logits by a number
    found = None if others else _unembedding(observed, inner)
    if found is None:
        raise ProjectionError(
            "expected logits [B, N, V] that are a parameter times what its module was given, plus a bias. Received: "
            f"logits {list(logits.shape)} that no module gives so; they may be capped or scaled afterwards"
        )
    x, weight, bias = found[0], scaling * found[1], scaling * found[2]
    norm = find_norm(observed, x)
    named = [
        Term(_name(observed, each), each, times, _value(each, times, x.shape))
        for each, times in observed.sums.of(x if norm is None else norm.x, whole)
    ]
    return Readout(logits.double(), weight, bias, norm, named, logits.dtype)


def find_logits(result: object) -> Tensor:
    """Return the logits in a model's result: `.logits`, or the first tensor [B, N, V].

    Raises ProjectionError if there are none.
    """
    named = getattr(result, "logits", None)
    for x in [named] if isinstance(named, Tensor) else tensors_in(result):
        if x.ndim == 3 and x.is_floating_point():
            return x
    raise ProjectionError(f"expected a model that returns logits [B, N, V]. Received: {type(result).__name__}")


def embedding(observed: Observed, size: int) -> Tensor:
    """Find W_E [V, M], in float64: a parameter whose rows a module looked up by integers; `size` is V.

    Raises ProjectionError if none is found.
    """
    for event in observed.events:
        for ids in (x for x in event.inputs if x.dtype in (torch.int64, torch.int32)):
            for p in event.parameters.values():
                if p.ndim != 2 or len(p) != size or not event.outputs:
                    continue
                y, row = event.outputs[0], p[ids.flatten().clamp(0, size - 1).long()].double()
                if y.numel() == row.numel() and bool(row.any()):
                    factor = float((y.double().flatten() * row.flatten()).sum() / (row * row).sum())
                    if close(y.double().flatten(), factor * row.flatten(), y, y.dtype):
                        return factor * p.double()
    raise ProjectionError(f"expected a table [{size}, M] of embeddings that a module looks up. Received: none")


def _unembedding(observed: Observed, logits: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Find W_U; return (its input, W_U [M, V], b_U [V]), or None if W_U is not found."""
    vocabulary = logits.shape[-1]
    rows = logits.double().flatten(0, 1)
    for p, x, biases in _candidates(observed, logits):
        for weight in (p.mT, p) if p.ndim == 2 else ():
            if weight.shape != (x.shape[-1], vocabulary):
                continue
            added = [*(b.double() for b in biases if b.shape == (vocabulary,)), torch.zeros_like(rows[0])]
            for given in in_rows(x, len(rows), len(logits)):
                bias = _added(given, weight, rows, added, logits.dtype)
                if bias is not None:
                    return x, weight.double(), bias
    return None


def _added(x: Tensor, weight: Tensor, rows: Tensor, biases: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """Find the bias with which x W + bias equals `rows`, or None. 64 columns are tried first, to save time."""
    for some in (slice(64), slice(None)):
        z = x.double() @ weight[:, some].double()
        biases = [b for b in biases if close(rows[:, some], z + b[some], rows, dtype)]
        if not biases:
            return None
    return biases[0]


def _candidates(observed: Observed, logits: Tensor) -> Iterator[tuple[Tensor, Tensor, Sequence[Tensor]]]:
    """Yield candidates for W_U: (a parameter, a tensor that it may have been multiplied by, its possible biases).

    First come the parameters of the module that returned the logits. Then, because a model may multiply outside of such
    a module, any parameter is tried with the outputs of the last modules.
    """
    for event in reversed(observed.makers(logits)):
        own = [*event.parameters.values()]
        yield from ((p, x, own) for p in own for x in event.inputs)
    given: dict[int, Tensor] = {}
    for event in reversed(observed.events):
        given |= {id(y): y for y in event.outputs if y.is_floating_point() and y is not logits}
        if len(given) > 8:
            break
    own = [p.detach() for p in observed.model.parameters()]
    yield from ((p, x, own) for p in own if logits.shape[-1] in p.shape for x in given.values())


def _name(observed: Observed, x: Tensor) -> str:
    """Return the name of the outermost module that made and returned a tensor; not of a dropout that passed it on.

    For a parameter, or a part of one, return the name of the parameter.
    """
    makers = [event.name for event in observed.makers(x)]
    around = [name for name in makers if makers[0] == name or makers[0].startswith(f"{name}.")]
    if around:
        return around[-1]
    named = observed.model.named_parameters()
    return next((name for name, p in named if p is x or p is x._base), "a tensor that no module gave")


def _value(x: Tensor, factor: float, shape: Sequence[int]) -> Tensor:
    """Return a term, multiplied by its factor, as [B, N, M]; tables of positions are the same in all examples."""
    x = factor * x.detach().double()
    return x.reshape(*shape) if x.numel() == math.prod(shape) else x.expand(*shape)
