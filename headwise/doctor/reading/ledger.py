"""The record of a trace in progress: the marks of every tensor so far, and what is kept of the forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from headwise.doctor.finding import Where
from headwise.doctor.lines import running_line
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Kind, Seed, Softmax, Step, Trace
from headwise.doctor.reading.marks import Marks

UNREGISTERED = "(not registered)"  # the name of a parameter that the module has not registered


class Ledger:
    """Starts with the inputs; every other tensor without marks is a parameter or a constant."""

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
    ) -> None:
        """Record a softmax of scores with these sources."""
        given, dtypes = weights.detach().clone(), (scores.dtype, weights.dtype)
        self.trace.softmaxes.append(
            Softmax(scores, given, dims, source.clone(), where, self.order, dtypes, by_hand=by_hand)
        )

    def block(
        self, scores: Tensor, source: Tensor, weights: Tensor, dims: tuple[int, ...], where: Where | None
    ) -> Softmax:
        """Record exponentials that were summed, as a softmax over these keys alone, until one over all is found."""
        dtypes = (scores.dtype, weights.dtype)
        found = Softmax(scores, weights, dims, source.clone(), where, self.order, dtypes, by_hand=True)
        self.trace.blocks.append(found)
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
