"""The contents of a trace: seeds, where numbers originate; softmaxes; and the steps applied to scores and weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Where
from headwise.doctor.lines import running_line
from headwise.doctor.reading import marks
from headwise.doctor.reading.marks import Marks

Kind = Literal["input", "projection", "product", "parameter"]

FORBIDDEN = -1e3  # a fill or added number this low masks ordinary scores
UNREGISTERED = "(not registered)"  # the name of a parameter that the module has not registered


@dataclasses.dataclass
class Trace:
    """One forward, operation by operation."""

    seeds: list[Seed] = dataclasses.field(default_factory=list)
    softmaxes: list[Softmax] = dataclasses.field(default_factory=list)
    blocks: list[Softmax] = dataclasses.field(default_factory=list)  # summed, and divided later, with others
    steps: list[Step] = dataclasses.field(default_factory=list)
    result: Any = None
    out: Marks | None = None  # of the module's output
    problem: str = ""
    exponentials: int = 0  # how many exponentials of tensors that depend on the inputs
    # cos, sin, and their dtype
    functions: list[tuple[str, torch.dtype, Where | None]] = dataclasses.field(default_factory=list)
    angles: list[Tensor] = dataclasses.field(default_factory=list)  # of each of them
    roots: int = 0  # how many square roots of numbers that depend on the inputs
    norms: list[Norm] = dataclasses.field(default_factory=list)
    reshapes: list[Reshape] = dataclasses.field(default_factory=list)

    def seed(self, number: int) -> Seed:
        return self.seeds[number]


@dataclasses.dataclass
class Norm:
    """A size or a spread that was computed over the numbers of several tokens."""

    name: str
    where: Where | None
    order: int


@dataclasses.dataclass(frozen=True)
class Reshape:
    """A view or reshape that divides its numbers into rows anew."""

    shape: tuple[int, ...]
    into: tuple[int, ...]
    cuts: bool  # across axes; [N, 2 N] as [2 N, N] splits and merges, and may be the way there of a shift
    padded: bool  # whether some of its numbers were padded
    where: Where | None


def exchanges(shape: Sequence[int], into: Sequence[int]) -> bool:
    """Whether a reshape gives the same sizes in another order."""
    return tuple(shape) != tuple(into) and sorted(shape) == sorted(into)


def regroups(shape: Sequence[int], into: Sequence[int]) -> bool:
    """Whether a reshape does more than to split axes, and then to merge adjacent ones."""
    runs = sorted({math.prod(x[i:]) for x in (shape, into) for i in range(len(x))})  # of numbers that stay together
    return any(longer % run for run, longer in itertools.pairwise(runs))


@dataclasses.dataclass
class Seed:
    """An input or a product: the origin of numbers."""

    number: int
    kind: Kind
    value: Tensor
    token: Tensor  # the token of each element
    left: Operand | None = None  # [X, n, c]
    right: Operand | None = None  # [X, c, m]
    where: Where | None = None
    name: str = ""  # of the parameters, in a projection
    order: int = 0  # its index among all operations

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """Both operands of a product of two tensors."""
        assert self.left is not None
        assert self.right is not None
        return self.left, self.right


@dataclasses.dataclass
class Operand:
    """An operand of a product, with its marks."""

    value: Tensor
    token: Tensor
    source: Tensor
    live: bool
    names: frozenset[str]
    factor: float = 1.0


@dataclasses.dataclass
class Softmax:
    """A softmax of scores, that is, of numbers that come from a product."""

    scores: Tensor
    weights: Tensor
    dims: tuple[int, ...]
    source: Tensor  # of the scores
    where: Where | None
    order: int
    dtypes: tuple[torch.dtype, torch.dtype]  # of the input and of the output
    by_hand: bool = False


@dataclasses.dataclass(eq=False)
class Step:
    """An elementwise operation on scores or weights: dropout, tanh, a mask."""

    name: str
    source: Tensor
    where: Where | None
    order: int
    noise: bool
    arguments: tuple[Any, ...]
    names: frozenset[str] = frozenset()  # of the parameters that the other operands come from
    terms: tuple[Marks, ...] = ()  # of a sum of two tensors, not in place: their marks


def pair_tokens(seed: Seed, sources: Tensor) -> tuple[Tensor, Tensor]:
    """For elements of a product, by their sources: the tokens of the row and of the column."""
    left, right = seed.operands
    rows, columns = marks.one(left.token, -1), marks.one(right.token, -2)
    outside = marks.seed_of(sources) != seed.number
    at = marks.element_of(sources).masked_fill(outside, 0)
    row, column = row_and_column(at, rows.shape[-1], columns.shape[-1])
    row = rows.reshape(-1)[row.clamp(max=rows.numel() - 1)]
    column = columns.reshape(-1)[column.clamp(max=columns.numel() - 1)]
    return row.masked_fill(outside, marks.UNKNOWN), column.masked_fill(outside, marks.UNKNOWN)


def row_and_column(elements: Tensor, n: int, m: int) -> tuple[Tensor, Tensor]:
    """For elements of [X, n, m]: their index among all X * n rows and among all X * m columns."""
    batch = elements // (n * m)
    return batch * n + elements // m % n, batch * m + elements % m


class Ledger:
    """The record of a trace in progress: the marks of every tensor so far, and what is kept of the forward. It starts
    with the inputs; every other tensor without marks is a parameter or a constant.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor | None]) -> None:
        self.trace = Trace()
        self.order = 0  # the number of operations so far
        self._marks: dict[int, Marks] = {}
        self._alive: list[Tensor] = []  # keeps tensors alive, so that no id is reused
        self._names = {id(x): name for name, x in module.named_parameters()}
        for number, x in enumerate(inputs):
            if x is None:
                continue
            tokens = marks.token(number, x.shape[:2])
            if x.ndim > 2:
                tokens = tokens.reshape(*tokens.shape, *(1,) * (x.ndim - 2)).expand(x.shape).contiguous()
            self.put(x, self.seed("input", x, tokens))

    def marks_of(self, x: Tensor) -> Marks:
        found = self._marks.get(id(x))
        if found is None:
            found = marks.constant(x.shape)
            name = self._names.get(id(x), UNREGISTERED if x.requires_grad else "")
            if name:
                found = self.seed("parameter", x, found.token, name=name)
                found.live, found.names = False, frozenset({name})
            self.put(x, found)
        return found

    def put(self, x: Tensor, found: Marks) -> None:
        self._marks[id(x)] = found
        self._alive.append(x)

    def seed(self, kind: Kind, value: Tensor, tokens: Tensor, **more: Any) -> Marks:
        """Add a seed: returns the marks of its elements, each of which is its own source."""
        number = len(self.trace.seeds)
        value = value.detach() if kind == "parameter" else value.detach().clone()
        self.trace.seeds.append(Seed(number, kind, value, tokens.clone(), order=self.order, **more))
        return Marks(tokens, marks.elements(number, value.shape), live=True)

    def softmax(
        self,
        scores: Tensor,
        source: Tensor,
        weights: Tensor,
        dims: tuple[int, ...],
        where: Where | None,
        *,
        by_hand: bool = False,
        block: bool = False,
    ) -> Softmax:
        """Record a softmax of scores with these sources; a `block` is one over these keys alone."""
        given, dtypes = weights.detach().clone(), (scores.dtype, weights.dtype)
        found = Softmax(scores, given, dims, source.clone(), where, self.order, dtypes, by_hand=by_hand)
        (self.trace.blocks if block else self.trace.softmaxes).append(found)
        return found

    def step(
        self,
        name: str,
        found: Marks,
        args: Any,
        *,
        noise: bool = False,
        names: frozenset[str] = frozenset(),
        terms: Sequence[Marks] = (),
    ) -> None:
        """Record an elementwise step on numbers with these marks."""
        arguments = tuple(x.detach().clone() if isinstance(x, Tensor) and x.numel() < 1 << 20 else x for x in args)
        kept = tuple(x.like(x.token.clone(), x.source.clone()) for x in terms)
        self.trace.steps.append(
            Step(name, found.source.clone(), running_line(), self.order, noise, arguments, names, kept)
        )
