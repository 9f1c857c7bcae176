"""A trail: how a tensor of scores was made from the product q kᵀ, operation by operation, until the softmax and beyond.

Hand-written attention is recognised by what it computes, whatever the module is called:

    s = q @ k.mT · scale;  s = cap · tanh(s / cap);  s = s + bias;  s = s.masked_fill(m, -inf);  softmax(s) @ v

A `Trail` describes one such tensor. It begins and ends at a product (products.py); operations.py says how each
operation in between changes it. Operations that these terms cannot describe, but which keep each score in its place,
make it `loose`: the scores themselves are then kept as a bias. Any other operation sets `problem`: the computation is
then refused with that reason, and no wrong record is made. A softmax of a tensor that has no trail begins a trail
without q and k.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.capture.ledger import Softmax


@dataclasses.dataclass(frozen=True)
class Trail:
    """How a tensor was computed: s = Σ terms + factor · [tanh](inner · q kᵀ), -inf where one of `fills` is True.

    The tensor is s, or after the softmax the weights softmax(s), perhaps changed since.
    """

    q: Tensor | None  # [*lead, Q, D]; None: the scores come from no product
    k: Tensor | None  # [*lead, K, D]
    lead: tuple[int, ...]  # the scores are [*lead, Q, K]
    dtype: torch.dtype  # of the scores
    rows: int  # Q
    keys: int  # K
    order: tuple[int, ...] | None = None  # the tensor is the scores permuted by this; None = it is [*lead, Q, K]
    view: tuple[int, ...] | None = None  # the tensor is a view of these sizes; None = it has all dimensions
    factor: float = 1.0
    inner: float | None = None  # the factor inside tanh; None = no tanh
    terms: tuple[tuple[Tensor, float], ...] = ()  # (tensor that was added, its factor)
    shifted: bool = False  # numbers were added that are the same for all keys of a row, and are not among the terms
    fills: tuple[tuple[Tensor, float], ...] = ()  # (True = forbidden, the value written there)
    sinks: Tensor | None = None  # a column of scores beside the keys, [*lead, Q, 1]
    sinks_first: bool = False
    sinks_cut: bool = False  # that column was removed after the softmax
    loose: bool = False  # the scores are not as described above: they have to be kept themselves
    scores: Tensor | None = None  # the scores, [*lead, Q, K], where the trail is loose
    logs: bool = False  # the tensor is the logarithm of the weights
    exps: bool = False  # the tensor is exp(scores)
    of: Softmax | None = None  # the softmax that the tensor is of, or comes from
    softmax: Tensor | None = None  # the weights right after the softmax; None = the tensor itself
    used: str = ""  # the operation that changed the weights after the softmax: the tensor is the weights that were used
    intact: Trail | None = None  # the trail of the weights before that change, or before they were lost
    also: tuple[Trail, ...] = ()  # the trails of other softmaxes that are part of the weights that were used
    values: Tensor | None = None  # the tensor is the weights times these, element by element
    dropout: float = 0.0
    heads: int | None = None  # the number of heads, if shapes showed it before batch and heads became one dimension
    problem: str = ""
    product: object = dataclasses.field(default_factory=object)  # shared by all trails that come from one q kᵀ
    born: Any = None  # the node of that product on the tape; None = its queries and keys are not the trail's

    def but(self, **changes: Any) -> Trail:
        """Return a copy with some fields changed: as `dataclasses.replace`, in a tenth of the time."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def with_problem(self, problem: str) -> Trail:
        """Return this trail with the reason why its attention is refused; an earlier reason is kept."""
        return self if self.problem else self.but(problem=problem)

    @property
    def is_bare_exp(self) -> bool:
        """Whether the tensor is an exp, not normalised yet, whose input comes from no product of queries and keys."""
        return self.exps and self.q is None

    @property
    def width(self) -> int:
        """The number of columns of the scores: the keys, and perhaps a sink."""
        return self.keys if self.sinks is None or self.sinks_cut else self.keys + 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes [*lead, Q, K] of the scores, where K counts a sink too."""
        return (*self.lead, self.rows, self.width)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that the trail describes."""
        if self.view is not None:
            return self.view
        sizes = self.sizes
        return sizes if self.order is None else tuple(sizes[at] for at in self.order)

    def canonical(self, x: Tensor) -> Tensor:
        """Arrange `x`, which broadcasts to the trail's tensor, so that it broadcasts to [*lead, Q, K]."""
        if self.order is None:
            return x
        x = x[(None,) * (len(self.order) - x.ndim)]
        return x.permute([self.order.index(at) for at in range(len(self.order))])


def at_home(trail: Trail, x: Tensor) -> Tensor:
    """Bring `x`, the tensor that a trail describes, to the shape [*lead, Q, K]."""
    if trail.view is not None:
        x = x.reshape(trail.but(view=None).shape)
    return trail.canonical(x)


def is_learned(trail: Trail) -> bool:
    """Whether the queries or the keys are parameters."""
    return any(x is not None and is_parameter(x) for x in (trail.q, trail.k))


# Operations that may copy their first argument without changing its numbers.
COPIES = frozenset(("reshape", "contiguous", "clone", "flatten", "to", "float", "half", "bfloat16", "type"))
_COPY = "_headwise_copy_of_a_parameter"


def is_parameter(x: Tensor) -> bool:
    """Whether a tensor is a parameter, a view of a parameter, or a rearranged copy of one (`copied`)."""
    return any(isinstance(each, nn.Parameter) or hasattr(each, _COPY) for each in (x, x._base) if each is not None)


def copied(name: str, args: Sequence[Any], out: Any) -> None:
    """Mark the result of an operation as a parameter's copy, if it has the same numbers: W [H, M, D] as [H · D, M]."""
    if name not in COPIES or not args or not isinstance(args[0], Tensor) or not isinstance(out, Tensor):
        return
    if is_parameter(args[0]) and not is_parameter(out):
        setattr(out, _COPY, True)


class Trails:
    """The trails (how each tensor was computed) of all tensors of scores and weights that are alive."""

    def __init__(self) -> None:
        # id -> tensor, its trail, the versions it was written with. (Every torch call asks for its arguments here: a
        # WeakTensorKeyDictionary would take 4 times as long.) A trail never holds its own tensor, which would live on.
        self.known: dict[int, tuple[weakref.ref[Tensor], Trail, tuple[int | None, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self.known)

    def get(self, x: Any, *, changed: bool = False) -> Trail | None:
        """Return the trail (how it was computed) of `x`; with a problem if `x` was changed in place unseen.

        `changed`: the caller has seen one change in place, which is no problem.
        """
        found = self.known.get(id(x))
        if found is None:
            return None
        alive, trail, versions = found[0](), *found[1:]
        if alive is None or alive is not x:
            return None
        now = _versions(alive, trail)
        if versions[0] is not None and changed:
            now = (versions[0], *now[1:]) if now[0] in (versions[0], versions[0] + 1) else now
        if now != versions:
            what = "scores" if trail.of is None else "weights"
            return trail.with_problem(f"the {what} were changed in place through another tensor")
        if trail.of is None or trail.softmax is not None:
            return trail
        if trail.values is not None or (trail.order is None and trail.view is None):
            return trail.but(softmax=alive)
        if math.prod(trail.shape) != alive.numel():
            return trail.but(softmax=alive).with_problem("the shape of the weights could not be followed")
        return trail.but(softmax=at_home(trail, alive))

    def put(self, x: Tensor, trail: Trail | None) -> None:
        """Set the trail of `x`; None removes it."""
        key, known = id(x), self.known
        if trail is None:
            known.pop(key, None)
            return
        before = known.get(key)
        if trail.softmax is x or (before is not None and before[0]() is x and before[1].softmax is None):
            trail = trail.but(softmax=None)
        known[key] = (weakref.ref(x, lambda _: known.pop(key, None)), trail, _versions(x, trail))


def _versions(x: Tensor, trail: Trail) -> tuple[int | None, ...]:
    """Return torch's counts of changes in place of `x` and of its trail's tensors; None for inference tensors."""
    parts = [x, trail.q, trail.k, *(term for term, _ in trail.terms), *(fill for fill, _ in trail.fills)]
    return tuple(None if part is None or part.is_inference() else part._version for part in parts)
