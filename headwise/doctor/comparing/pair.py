"""Two modules with the same weights, on the same inputs with the same masks: their differences, and the first one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs, Result
from headwise.doctor.comparing.comparison import Row
from headwise.doctor.comparing.matching import Match, Trial, match
from headwise.doctor.comparing.parting import Comparer, Operation, Parting, largest_difference, size_of
from headwise.doctor.comparing.recording import Recording
from headwise.doctor.comparing.side import EXPECTED, Side, complaint
from headwise.errors import DoctorError
from headwise.language import Sentence, join

MASKS = ("none", "causal", "padding", "random", "random by example")
_SHAPES = ((1, 1, 1), (2, 2, 2), (3, 5, 5), (1, 9, 9), (4, 8, 8), (2, 17, 17))  # batch, queries, keys
_CROSS_SHAPES = ((2, 3, 7), (1, 7, 3), (3, 1, 6))


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    queries: int
    keys: int
    mask: str
    allowed: Tensor | None = None  # [Q, K] or [B, Q, K]
    padding: Tensor | None = None  # [B, K]


class Pair:
    def __init__(self, first: Side, second: Side, seed: int) -> None:
        self.first, self.second, self.seed = first, second, seed
        self.sides = first, second
        self.notes: list[str] = []
        self.dtype = self._cast()
        self.dtype_name = str(self.dtype).removeprefix("torch.")
        self.takes = self._takes()
        causal = [side.is_causal(self.dtype) for side in self.sides]
        self.hidden = causal[0] != causal[1]  # what is masked in one must be masked in the other
        self.causal = causal
        if self.hidden:
            by_itself, other = (first, second) if causal[0] else (second, first)
            told = Sentence("{name} is causal by itself; {other} is passed a causal mask")
            self.notes.append(told.format(name=by_itself.name, other=other.name))
        self.tolerance = self._tolerance()
        self.found: Match

    def _cast(self) -> torch.dtype:
        """Both in float64 if both support it."""
        for dtype in (torch.float64, torch.float32):
            problems = [(side, side.runs_in(dtype)) for side in self.sides]
            if not any(problem for _, problem in problems):
                for side in self.sides:
                    side.cast(dtype)
                return dtype
            for side, problem in problems:
                if problem:
                    told = Sentence("{name} cannot run in {dtype}: {problem}")
                    called = str(dtype).removeprefix("torch.")
                    self.notes.append(told.format(name=side.name, dtype=called, problem=problem))
        raise DoctorError(join(self.notes, "; "))

    def _takes(self) -> str:
        faces = [side.interface for side in self.sides]
        if faces[0].width != faces[1].width:
            raise DoctorError(
                f"{self.first.name} and {self.second.name} must have the same width. Received: {faces[0].width} and "
                f"{faces[1].width}"
            )
        kinds = [face.takes for face in faces]
        takes = next(kind for kind in ("self", "memory", "qkv") if kind in kinds)
        for side, face in zip(self.sides, faces, strict=True):
            if takes == "self" and face.takes != "self" and {face.key_width, face.value_width} != {face.width}:
                raise DoctorError(
                    f"{side.name} takes keys {face.key_width} and values {face.value_width} wide; the other one input"
                )
            if takes == "memory" and face.takes == "qkv" and face.key_width != face.value_width:
                raise DoctorError(f"{side.name} takes keys and values of two widths; the other takes one memory")
        if takes != "self" and faces[0].key_width != faces[1].key_width:
            raise DoctorError(f"they take keys of two widths: {faces[0].key_width} and {faces[1].key_width}")
        return takes

    def _tolerance(self) -> float:
        """The relative tolerance for rounding: that of the lowest precision in which one of them computes."""
        given = self.inputs(2, *self._usual_lengths())
        lowest = self.dtype
        for side in self.sides:
            for step in side.record(self._as(side, given)).steps:
                kind = step.value.dtype
                if step.live and kind.is_floating_point and torch.finfo(kind).eps > torch.finfo(lowest).eps:
                    lowest = kind
                    at = Sentence(" at {where}").format(where=step.where) if step.where else ""
                    told = Sentence("{name} computes a part in {dtype}{at}")
                    self.notes.append(told.format(name=side.name, dtype=str(kind).removeprefix("torch."), at=at))
        return max(1e-9, 200 * torch.finfo(lowest).eps) if lowest.itemsize > 2 else 20 * torch.finfo(lowest).eps

    def _usual_lengths(self) -> tuple[int, int]:
        lengths = [side.interface.length for side in self.sides if side.interface.length]
        length = lengths[0] if lengths else 5
        return length, length if self._square else 7

    @property
    def _square(self) -> bool:
        return self.takes == "self" or any(side.interface.same_length or side.interface.length for side in self.sides)

    # the same for both

    def inputs(self, batch: int, queries: int, keys: int) -> dict[str, Tensor]:
        """Query, and key and value if both take them."""
        generator = torch.Generator().manual_seed(self.seed)
        face = self.first.interface
        lengths = {"query": (queries, face.width)}
        if self.takes != "self":
            lengths["key"] = (keys, face.key_width)
        if self.takes == "qkv":
            lengths["value"] = (keys, face.value_width)
        return {
            name: torch.randn(batch, *size, generator=generator, dtype=torch.float64).to(self.dtype)
            for name, size in lengths.items()
        }

    def _as(self, side: Side, given: Mapping[str, Tensor]) -> Inputs:
        query = given["query"]
        key = given.get("key", query)
        value = given.get("value", key)
        takes = side.interface.takes
        return Inputs(query, None if takes == "self" else key, value if takes == "qkv" else None)

    def _masks(self, case: Case, which: int) -> dict[str, Any]:
        allowed = case.allowed
        if self.hidden and not self.causal[which]:
            below = torch.ones(case.queries, case.keys).tril().bool()
            allowed = below if allowed is None else allowed & below
        found = {"allowed": allowed, "padding": case.padding}
        return {name: x for name, x in found.items() if x is not None}

    def match(self) -> None:
        """Give both the same weights."""
        case = Case(2, *self._usual_lengths(), "none")
        given = self.inputs(case.batch, case.queries, case.keys)

        def distance() -> float:
            outputs = [
                side.run(self._as(side, given), **self._masks(case, i)).output for i, side in enumerate(self.sides)
            ]
            return largest_difference(*outputs) / (self.tolerance * size_of(outputs[1]))

        def stages() -> int:
            parted = Comparer(*self._recordings(case, given), self.tolerance).part()
            return len(parted.agreed) if parted else 99

        mine, theirs = self.first.dimensions(), self.second.dimensions()
        sizes = [(a, b) for a in mine for b in theirs if (a.heads, a.head) == (b.heads, b.head)]
        if not sizes:
            a, b = mine[0], theirs[0]
            raise DoctorError(
                f"{self.first.name} and {self.second.name} must have the same heads. Received: {a.heads} heads of "
                f"width {a.head} and {b.heads} of {b.head}"
            )
        recordings = self._recordings(case, given)
        self.found = match(
            self.first.module,
            self.second.module,
            sizes,
            Trial(distance, stages),
            seen=(recordings[0].roles(), recordings[1].roles()),
            seed=self.seed,
            certain=self.second.certain,
        )
        names: dict[object, str] = {"the first": self.first.name, "the second": self.second.name}
        for note in self.found.notes:
            values = {place: names.get(value, value) for place, value in note.values.items()}
            self.notes.append(Sentence(note.template).format(**values))
        if not self.found.agrees:
            told = "none of {count} mappings of the weights makes the outputs agree; this is the most likely one"
            self.notes.append(Sentence(told).format(count=self.found.tried))

    def _recordings(self, case: Case, given: Mapping[str, Tensor]) -> tuple[Recording, Recording]:
        first, second = (
            side.record(self._as(side, given), **self._masks(case, i)) for i, side in enumerate(self.sides)
        )
        return first, second

    def cases(self) -> list[Case]:
        """Shapes × masks, as far as both support them."""
        length = next((side.interface.length for side in self.sides if side.interface.length), None)
        shapes = [(batch, length, length) for batch in (1, 2, 3)] if length else list(_SHAPES)
        if not self._square:
            shapes += _CROSS_SHAPES
        generator = torch.Generator().manual_seed(self.seed)
        return [_case(*shape, mask, generator) for shape in shapes for mask in (MASKS if shape[-1] > 1 else MASKS[:1])]

    # differences

    def row(self, case: Case) -> Row:
        given = self.inputs(case.batch, case.queries, case.keys)
        results: list[Result] = []
        gradients: list[dict[str, Tensor]] = []
        real = case.padding if case.padding is not None and self.takes == "self" else None
        for i, side in enumerate(self.sides):
            leaves = {name: x.clone().requires_grad_(True) for name, x in given.items()}
            side.module.zero_grad(set_to_none=True)
            try:
                # Not the leaves themselves: a module may change its inputs in place.
                copies = {name: x.clone() for name, x in leaves.items()}
                result = side.run(self._as(side, copies), grad=True, **self._masks(case, i))
                weighting = torch.randn(result.output.shape, generator=torch.Generator().manual_seed(self.seed)).to(
                    result.output
                )
                if real is not None:  # outputs at padding are arbitrary
                    weighting = weighting * real[..., None]
                if result.output.requires_grad:
                    (result.output * weighting).sum().backward()
            except EXPECTED as error:
                name = "" if isinstance(error, DoctorError) else f"{side.name}: "
                return _not_compared(case, f"{name}{complaint(error)}")
            results.append(result)
            gradients.append({name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()})
        if results[0].output.shape != results[1].output.shape:
            shapes = join((str(list(result.output.shape)) for result in results), " and ")
            return _not_compared(case, Sentence("the outputs are {shapes}").format(shapes=shapes))
        output = _apart(*(_kept(result.output, real) for result in results))
        weights = self._weights_apart(results, real)
        inputs = {f"input {name}": _apart(gradients[0][name], gradients[1][name]) for name in given}
        of_parameters = {
            name: _apart(a, b) for name, a, b in self.found.gradients(self.first.module, self.second.module)
        }
        everything = {**inputs, **of_parameters}
        worst = max(everything, key=lambda name: everything[name][1])
        limits = [output, *([weights] if weights else []), *everything.values()]
        return Row(
            case.batch,
            case.queries,
            case.keys,
            case.mask,
            output[0],
            weights[0] if weights else None,
            max((x for x, _ in inputs.values()), default=0.0),
            max((x for x, _ in of_parameters.values()), default=0.0),
            all(relative <= self.tolerance for _, relative in limits),
            worst if everything[worst][1] > self.tolerance else "",
        )

    def _weights_apart(self, results: Sequence[Result], real: Tensor | None) -> tuple[float, float] | None:
        a, b = (result.weights.detach() if result.weights is not None else None for result in results)
        if a is None or b is None:
            return None
        if a.ndim != b.ndim:  # one of them is averaged over heads
            a, b = (x.mean(1) if x.ndim == 4 else x for x in (a, b))
        if a.shape != b.shape:
            return None
        if real is not None:
            rows = real[:, None, :, None] if a.ndim == 4 else real[:, :, None]
            a, b = a.masked_fill(~rows, 0.0), b.masked_fill(~rows, 0.0)
        return _apart(a, b)

    def part(self, rows: Sequence[Row], cases: Sequence[Case]) -> Parting | None:
        """The first difference, in the simplest case that shows it."""
        apart = [(row, case) for row, case in zip(rows, cases, strict=True) if not row.same and not row.problem]
        plain = [(MASKS.index(row.mask), row.queries < 3, row.batch * row.queries * row.keys) for row, _ in apart]
        row, case = apart[plain.index(min(plain))]
        given = self.inputs(case.batch, case.queries, case.keys)
        recordings = self._recordings(case, given)
        parted = Comparer(*recordings, self.tolerance).part()
        if parted is not None and parted.stage != "output":
            return parted
        if row.output > self.tolerance and parted is not None:
            return parted
        if row.worst:
            agreed = (*parted.agreed, "output") if parted else ("output",)
            first, second = (_cut(recording) for recording in recordings)
            return Parting("gradients", max(row.inputs, row.parameters), first, second, agreed)
        return Parting("returned weights", row.weights or math.nan, None, None, ("output", "gradients"))


def _case(batch: int, queries: int, keys: int, mask: str, generator: torch.Generator) -> Case:
    if mask == "none":
        return Case(batch, queries, keys, mask)
    below = torch.ones(queries, keys).tril().bool()
    if mask == "causal":
        return Case(batch, queries, keys, mask, allowed=below)
    if mask == "padding":
        lengths = keys - torch.arange(batch) % (keys // 2 + 1)
        return Case(batch, queries, keys, mask, padding=torch.arange(keys) < lengths[:, None])
    shape = (queries, keys) if mask == "random" else (batch, queries, keys)
    allowed = torch.rand(shape, generator=generator) < 0.6
    allowed[..., torch.arange(queries), torch.arange(queries) % keys] = True  # no empty row
    return Case(batch, queries, keys, mask, allowed=allowed)


def _kept(x: Tensor, real: Tensor | None) -> Tensor:
    x = x.detach()
    return x if real is None else x.masked_fill(~real[..., None], 0.0)


def _apart(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest difference, absolute and relative to the largest number."""
    difference = largest_difference(a.detach(), b.detach())
    return difference, difference / size_of(b.detach())


def _not_compared(case: Case, problem: str) -> Row:
    nan = math.nan
    return Row(case.batch, case.queries, case.keys, case.mask, nan, None, nan, nan, True, problem=problem)


def _cut(recording: Recording) -> Operation | None:
    """The operation that detaches a tensor from its gradient, if there is one."""
    step = next((x for x in recording.steps if x.name == "detach" and x.live and x.where), None)
    return Operation("detach", tuple(step.value.shape), step.where) if step else None
