"""Give two modules the same weights: their parameters are mapped to each other by names, by shapes and by trial."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from headwise.doctor.comparing.dimensions import Dimensions
from headwise.doctor.comparing.layouts import SLOTS, WEIGHTS, Holding, holdings
from headwise.errors import DoctorError
from headwise.language import Sentence

MOST_TRIED = 1000
_FAR = 11.0  # the cost of two clear names swapped; mappings further from the names are not tried
_LOOKED_AT = 8  # how many of the mappings with different outputs are compared stage by stage


@dataclasses.dataclass(frozen=True)
class Trial:
    """Tests of two modules that have the same weights now."""

    distance: Callable[[], float]  # between their outputs, in units of the tolerance: 1 or less agrees
    stages: Callable[[], int]  # how many stages agree before the first that does not


@dataclasses.dataclass(frozen=True)
class Match:
    """How the parameters of two modules were mapped. They hold the same weights."""

    first: Holding | None  # None: every parameter was mapped to the one of the same name
    second: Holding | None
    same_names: tuple[str, ...]
    agrees: bool  # whether the outputs agreed, on the inputs of the trial
    tried: int
    notes: tuple[Sentence, ...] = ()  # parameters that only one of them has

    def pairs(self) -> dict[str, str]:
        """The mapping: "q.weight" -> "to_q.weight = in_proj_weight [1 of 3]"."""
        if self.first is None or self.second is None:
            return {name: f"{name} = {name}" for name in self.same_names}
        mine, theirs = self.first.places, self.second.places
        found = {
            slot: f"{mine[slot].describe(slot)} = {theirs[slot].describe(slot)}"
            for slot in SLOTS
            if slot in mine and slot in theirs
        }
        return {**found, **{name: f"{name} = {name}" for name in self.same_names}}

    def gradients(self, first: nn.Module, second: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name and gradients of every weight of both modules, in the standard form. None counts as 0."""
        mine, theirs = dict(first.named_parameters()), dict(second.named_parameters())
        for name in self.same_names:
            yield name, _gradient(mine[name]), _gradient(theirs[name])
        if self.first is None or self.second is None:
            return
        ours, other = _pulled(self.first, mine), _pulled(self.second, theirs)
        for slot in SLOTS:
            if slot in ours and slot in other:
                a, b = ours[slot], other[slot]
                if self.first.places[slot].shared or self.second.places[slot].shared:
                    a, b = _diagonal(a), _diagonal(b)
                else:
                    a, b = _of_fewer_heads(a, b, slot)
                label = " … ".join(dict.fromkeys(self.first.places[slot].parameters))
                yield f"{slot} ({label})", a, b


def match(
    first: nn.Module,
    second: nn.Module,
    sizes: Sequence[tuple[Dimensions, Dimensions]],
    trial: Trial,
    *,
    seen: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    seed: int = 0,
    certain: bool = False,
) -> Match:
    """Give both modules the same weights, changing them in place.

    Args:
        sizes: of both; several if the width of a head is not known.
        trial: tells whether the modules agree.
        seen: for both, the role of each parameter in a forward, for those whose names do not tell it.
        certain: the names of `second`'s weights are reliable.

    Raises:
        DoctorError: no mapping fits the shapes.
    """
    start = _values(first), _values(second)
    candidates: list[tuple[float, float, _Mapping]] = []  # distance, cost, mapping
    for number, mapping in enumerate(_mappings(first, second, sizes, seen, certain)):
        if number >= MOST_TRIED or (candidates and mapping.cost > candidates[0][1] + _FAR):
            break
        mapping.apply(first, second, start, seed)
        distance = trial.distance()
        if distance <= 1.0:
            return mapping.match(True, number + 1)
        candidates.append((distance, mapping.cost, mapping))
    if not candidates:
        raise DoctorError(_no_mapping(first, second))
    nearest = sorted(range(len(candidates)), key=lambda i: candidates[i][0])[:_LOOKED_AT]
    likeliest = sorted(range(len(candidates)), key=lambda i: candidates[i][1])[:_LOOKED_AT]
    best: tuple[tuple[float, ...], _Mapping] | None = None
    for i in dict.fromkeys((*likeliest, *nearest)):
        distance, cost, mapping = candidates[i]
        mapping.apply(first, second, start, seed)
        rank = (-trial.stages(), cost, distance)
        if best is None or rank < best[0]:
            best = rank, mapping
    assert best is not None
    best[1].apply(first, second, start, seed)
    return best[1].match(False, len(candidates))


Values = dict[str, Tensor]


def _values(module: nn.Module) -> Values:
    return {name: x.detach().clone() for name, x in module.named_parameters()}


@dataclasses.dataclass(frozen=True)
class _Mapping:
    first: Holding | None
    second: Holding | None
    same_names: tuple[str, ...]
    cost: float

    def apply(self, first: nn.Module, second: nn.Module, start: tuple[Values, Values], seed: int) -> None:
        """Give both the weights of the first, or of the second if only the first can store the other's."""
        with torch.no_grad():
            modules = dict(first.named_parameters()), dict(second.named_parameters())
            for parameters, values in zip(modules, start, strict=True):
                for name, parameter in parameters.items():
                    parameter.copy_(values[name])
            for name in self.same_names:
                modules[1][name].copy_(modules[0][name])
            if self.first is None or self.second is None:
                return
            holds = self.first, self.second
            a = 1 if _simpler(self.second, self.first) else 0
            source, target = holds[a], holds[1 - a]
            matrices = source.read({name: x.clone() for name, x in modules[a].items()})
            matrices = _completed(matrices, source, target, seed)
            source.write({slot: matrices[slot] for slot in source.places}, modules[a])
            shapes = target.shapes
            target.write({x: _for_more_heads(matrices[x], shapes[x], x) for x in target.places}, modules[1 - a])

    def match(self, agrees: bool, tried: int) -> Match:
        notes = []
        if self.first is not None and self.second is not None:
            for mine, theirs, whose, other in (
                (self.first, self.second, "the first", "the second"),
                (self.second, self.first, "the second", "the first"),
            ):
                alone = [slot for slot in SLOTS if slot in mine.places and slot not in theirs.places]
                if biases := [slot[0] for slot in alone if slot.endswith("bias")]:
                    told = Sentence("{other} has no bias of {biases}: in {whose} it was set to 0")
                    notes.append(told.format(other=other, biases=", ".join(biases), whose=whose))
                for slot in alone:
                    if slot.endswith("weight"):
                        place = mine.places[slot].describe(slot)
                        told = Sentence("{other} has no {slot}: {place} of {whose} was set to the identity")
                        notes.append(told.format(other=other, slot=slot, place=place, whose=whose))
                if left := [name for name in mine.left if name not in self.same_names]:
                    told = Sentence("of {whose} nothing was mapped to {left}")
                    notes.append(told.format(whose=whose, left=", ".join(left)))
        return Match(self.first, self.second, self.same_names, agrees, tried, tuple(notes))


def _simpler(one: Holding, other: Holding) -> bool:
    """Whether `one` is less general: shared by the heads, or with fewer key heads."""

    def freedom(holding: Holding) -> int:
        return sum(not layout.shared for layout in holding.places.values()) + holding.sizes.kv_heads

    return freedom(one) < freedom(other)


def _completed(matrices: Mapping[str, Tensor], source: Holding, target: Holding, seed: int) -> dict[str, Tensor]:
    """What both can store: a matrix that one lacks becomes the identity, or 0; constant ones get distinct numbers."""
    generator = torch.Generator().manual_seed(seed)
    like = next(iter(matrices.values()), torch.empty(0, dtype=torch.float64))
    found: dict[str, Tensor] = {}
    for slot in SLOTS:
        mine, theirs = slot in source.places, slot in target.places
        if mine and theirs:
            x = matrices[slot].clone()
            if _is_constant(x) and not source.places[slot].shared:
                x += 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
            found[slot] = x
        elif mine:
            found[slot] = _neutral(slot, matrices[slot].shape, matrices[slot])
        elif theirs:
            found[slot] = _neutral(slot, target.shapes[slot], like)
    return found


def _is_constant(x: Tensor) -> bool:
    flat = x.flatten()
    return x.numel() > 1 and bool((flat[:8] == flat[0]).all()) and bool((flat == flat[0]).all())


def _neutral(slot: str, shape: Sequence[int], like: Tensor) -> Tensor:
    if slot.endswith("bias"):
        return like.new_zeros(tuple(shape))
    size = shape[0] if slot == "o.weight" else shape[-1]
    return torch.eye(size, dtype=like.dtype, device=like.device).reshape(tuple(shape))


def _for_more_heads(x: Tensor, shape: Sequence[int], slot: str) -> Tensor:
    """Keys and values of fewer heads, repeated for a module with more heads."""
    if slot[0] in "kv" and x.shape[0] != shape[0]:
        return x.repeat_interleave(shape[0] // x.shape[0], dim=0)
    return x


def _of_fewer_heads(a: Tensor, b: Tensor, slot: str) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values that several heads share, summed."""
    if slot[0] not in "kv" or a.shape[0] == b.shape[0]:
        return a, b
    fewer = min(a.shape[0], b.shape[0])
    return (_summed(a, fewer), _summed(b, fewer))


def _summed(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(0, (heads, x.shape[0] // heads)).sum(1)


def _diagonal(x: Tensor) -> Tensor:
    """The gradient of a matrix shared by all heads, from that of the whole [H, D, H·D] (or bias [H, D])."""
    if x.ndim < 3 or x.shape[0] == 1:
        return x if x.ndim < 2 or x.shape[0] == 1 else x.sum(0, keepdim=True)
    blocks = x.unflatten(-1, (x.shape[0], x.shape[-1] // x.shape[0]))
    return torch.stack([blocks[h, :, h] for h in range(x.shape[0])]).sum(0, keepdim=True)


def _pulled(holding: Holding, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients in the standard form; of a shared matrix, its own, [1, D, D]."""
    found: dict[str, Tensor] = {}
    for layout in holding.layouts:
        gradients = {name: _gradient(parameters[name]) for name in layout.parameters}
        if layout.shared:
            small = gradients[layout.parameters[0]]
            found[layout.slots[0]] = (small.mT if layout.axes == "md" else small)[None]
        else:
            found.update(layout.read(gradients))
    return found


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _mappings(
    first: nn.Module,
    second: nn.Module,
    sizes: Sequence[tuple[Dimensions, Dimensions]],
    seen: tuple[Mapping[str, str], Mapping[str, str]],
    certain: bool,
) -> Iterator[_Mapping]:
    """The possible mappings, the most likely first: by equal names, then by roles."""
    mine, theirs = ({name: tuple(x.shape) for name, x in m.named_parameters()} for m in (first, second))
    if mine == theirs:
        yield _Mapping(None, None, tuple(mine), 0.0)
    tried: set[object] = set()
    for of_first, of_second in sizes:
        for a, b, cost in _pairs(holdings(first, of_first, seen[0]), holdings(second, of_second, seen[1]), certain):
            if not (_is_whole(a) and _is_whole(b) and _can_meet(a, b)):
                continue
            signature = _signature(a, b)
            if signature in tried:
                continue
            tried.add(signature)
            same = tuple(name for name in a.left if name in b.left and mine[name] == theirs[name])
            yield _Mapping(a, b, same, cost)


def _pairs(
    first: Iterator[Holding], second: Iterator[Holding], certain: bool
) -> Iterator[tuple[Holding, Holding, float]]:
    """All pairs of two series that are sorted by cost, in the order of their total cost."""
    mine, theirs = _Series(first), _Series(itertools.islice(second, 1) if certain else second)
    if mine.at(0) is None or theirs.at(0) is None:
        return
    queue = [(0.0, 0, 0)]
    seen = {(0, 0)}
    while queue:
        _, i, j = heapq.heappop(queue)
        a, b = mine.at(i), theirs.at(j)
        assert a is not None
        assert b is not None
        yield a, b, a.cost + b.cost
        for near in ((i + 1, j), (i, j + 1)):
            next_a, next_b = mine.at(near[0]), theirs.at(near[1])
            if near not in seen and next_a is not None and next_b is not None:
                seen.add(near)
                heapq.heappush(queue, (next_a.cost + next_b.cost, *near))


class _Series:
    """An iterator that caches its items."""

    def __init__(self, source: Iterator[Holding]) -> None:
        self._source, self._read = source, list[Holding]()

    def at(self, i: int) -> Holding | None:
        while len(self._read) <= i < _LONGEST:
            found = next(self._source, None)
            if found is None:
                return None
            self._read.append(found)
        return self._read[i] if i < len(self._read) else None


_LONGEST = 3000  # the maximum number of ways to examine


def _is_whole(holding: Holding) -> bool:
    """Whether q, k and v are all stored, or no parameter could be one of them."""
    missing = [slot for slot in WEIGHTS[:3] if slot not in holding.places]
    return not missing or not holding.left


def _can_meet(a: Holding, b: Holding) -> bool:
    """Whether what one of them lacks can be neutral in the other: a bias of 0, a square matrix."""
    for mine, theirs in ((a, b), (b, a)):
        for slot in WEIGHTS:
            if slot in mine.places and slot not in theirs.places:
                shape = mine.shapes[slot]
                inner = shape[1] * shape[2] if slot == "o.weight" else shape[0] * shape[1]
                if inner != (shape[0] if slot == "o.weight" else shape[-1]) or mine.places[slot].shared:
                    return False
    return True


def _signature(a: Holding, b: Holding) -> object:
    """Identifies a pair of ways: which part of which parameter goes where, independent of names."""

    def part(holding: Holding, slot: str) -> object:
        layout = holding.places.get(slot)
        return layout and (layout.parameters, layout.slots.index(slot), layout.axes, layout.shape)

    return frozenset((part(a, slot), part(b, slot)) for slot in SLOTS if slot in a.places or slot in b.places)


def _no_mapping(first: nn.Module, second: nn.Module) -> str:
    def shapes(module: nn.Module) -> str:
        found = [f"{name} {list(x.shape)}" for name, x in module.named_parameters()]
        return ", ".join(found[:8]) + (", …" if len(found) > 8 else "") if found else "no parameters"

    return (
        "no mapping of the weights fits their shapes; expected query, key and value projections of the same sizes in "
        f"both. Received: {shapes(first)} in the first, {shapes(second)} in the second"
    )
