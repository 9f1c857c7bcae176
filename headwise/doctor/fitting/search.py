"""The search for the variant that gives a module's plain output: the definition, then one deviation, then two."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from headwise.doctor.fitting.deviations import Deviation, catalogue
from headwise.doctor.fitting.inner_norms import inner_norms
from headwise.doctor.fitting.observed import Observed, relative_error
from headwise.doctor.fitting.projections import Projections
from headwise.doctor.fitting.reach import holds, weights_that_count
from headwise.doctor.fitting.rope_tables import rope_bases
from headwise.doctor.fitting.variants import Computation, Inapplicable, Rope, Variant, altered

EXACT = 1e-9  # relative error of a float64 computation with the same decisions; in practice 1e-15
LOOSE = 5e-6  # of a computation with a part in float32: angles, a softmax, or the whole module
FAR = 1e3  # a loose match must be better than the definition by this factor
COLUMNS = 6  # of the output that are compared first
PAIRS_OF = 2  # readings of the weights for which pairs are tried; single deviations are tried for all
MOST_TRIALS = 5000  # the maximum number of variants, for singles and again for pairs: a second or two


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """A variant that gives the output."""

    projections: Projections
    computation: Computation
    variant: Variant
    deviations: tuple[Deviation, ...]
    error: float
    healthy_error: float
    alternatives: tuple[tuple[Deviation, ...], ...] = ()


class Search:
    """Compares variants with the observed output."""

    def __init__(
        self, seen: Observed, projections: Sequence[Projections], takes: str, *, scale: float | None = None
    ) -> None:
        self.seen, self.takes = seen, takes
        self.right = Variant() if scale is None else Variant(scale=scale)
        module = seen.interface.module
        bases = rope_bases(module)
        self.readings = [
            Computation(
                p,
                *(seen.query, seen.key, seen.value),
                frequencies=(*seen.tables, *_default_tables(p, bases)),
                pattern=seen.pattern,
                norms=norms,
            )
            for place, norms in enumerate(inner_norms(module, seen.query.shape[-1], takes))
            for p in projections[: None if place == 0 else 1]
        ]
        self.left = MOST_TRIALS
        self.scale = float(seen.output.abs().max()) or 1.0
        self.targets = [seen.output]  # also minus the input, for modules that add it
        if seen.output.shape == seen.query.shape:
            self.targets.append(seen.output - seen.query)
        self.narrow = [target[..., :COLUMNS].contiguous() for target in self.targets]

    def best(self) -> Match | None:
        """The match with the fewest deviations, or None."""
        definition = self._definition()
        if definition is not None and definition.error < LOOSE:
            if definition.error < EXACT:
                return definition
            # A part of it is float32, or a small part is wrong.
            return self._singles([definition.computation], definition) or definition
        self._leave_out()
        return self._singles(self.readings, definition) or self._own_pattern() or self._free_scale() or self._pairs()

    def _leave_out(self) -> None:
        """Readings that lack a weight which the output depends on."""
        weights = weights_that_count(self.seen)
        known: dict[tuple[tuple[str, str], ...], bool] = {}
        for each in self.readings:
            made_of = tuple(sorted(each.projections.names.items()))
            if made_of not in known:
                known[made_of] = holds(each.projections, weights)
        self.readings = [x for x in self.readings if known[tuple(sorted(x.projections.names.items()))]]

    def _own_pattern(self) -> Match | None:
        """Right except for a mask of its own, such as a window: the observed pattern is then used as the mask."""
        if self.seen.pattern is None:
            return None
        own = [altered(v, causal="observed") for v in self._bases_of_wrong() if not v.causal]
        own = own or [altered(v, causal="observed") for v in self._bases_of_wrong()]
        definition = self._definition(own)
        if definition is not None and definition.error < LOOSE:
            return definition
        return self._singles(self.readings, definition, own)

    def _bases(self) -> list[Variant]:
        """The variants that count as right and fit the observation: with a causal mask, RoPE, ALiBi."""
        seen = self.seen
        if not seen.moves:
            return [self.right]
        causal = [""] if seen.looks_ahead else ["right"] if seen.looks_around else ["", "right"]
        positions = [self.right, altered(self.right, alibi="right")]
        tables = len(self.readings[0].frequencies) if self.readings else 0
        for i in range(tables):
            ropes = Rope("half", "half", frequencies=i), Rope("neighbours", "neighbours", frequencies=i)
            positions += [altered(self.right, rope=rope) for rope in ropes]
        return [altered(v, causal=c) for v in positions for c in causal]

    def _bases_of_wrong(self) -> list[Variant]:
        """The variants to which deviations are applied."""
        bases = [
            v for v in self._bases() if (v.rope is None or self.seen.rotates) and (not v.alibi or self.seen.slopes)
        ]
        if self.seen.looks_ahead and self.seen.moves:  # a wrong causal mask
            bases += [altered(v, causal="right") for v in bases]
        return bases

    def _definition(self, bases: Sequence[Variant] | None = None) -> Match | None:
        """The right variant with the smallest error."""
        best: Match | None = None
        bases = self._bases() if bases is None else bases
        for computation in self.readings:
            for base in bases:
                error, variant = self._try(computation, base)
                if best is None or error < best.error:
                    best = Match(computation.projections, computation, variant, (), error, error)
                if error < EXACT:
                    return best
        return best

    def _try(self, computation: Computation, variant: Variant) -> tuple[float, Variant]:
        """(error, the variant, with the input added if that fits better); a large error is that of a few columns."""
        if self.left <= 0:
            return math.inf, variant
        self.left -= 1
        if computation.norms.output is not None:  # the input is added before the norm, so both are computed
            both = [variant, altered(variant, residual=True)]
            return min(((error_of(computation, v, self.seen.output), v) for v in both), key=lambda pair: pair[0])
        try:
            part = computation.output(variant, COLUMNS)
        except Inapplicable:
            return math.inf, variant
        if part.shape != self.narrow[0].shape:
            return math.inf, variant
        errors = [float((part - narrow).abs().max()) for narrow in self.narrow]
        errors = [math.inf if math.isnan(error) else error / self.scale for error in errors]
        which = errors.index(min(errors))
        if which == 1:
            variant = altered(variant, residual=True)
        if errors[which] > LOOSE:
            return errors[which], variant
        return relative_error(computation.output(variant), self.seen.output), variant

    def _usable(self, computation: Computation, base: Variant) -> list[tuple[Deviation, Variant]]:
        """The catalogue applied to this base, without deviations that the module's behaviour rules out."""
        seen = self.seen
        usable = []
        for d in catalogue(computation.projections, self.takes):
            if (d.mixes and not seen.mixes) or (d.moves and not (seen.moves and seen.looks_ahead)):
                continue
            if "norms" in d.change and not computation.norms.heads:
                continue
            variant = changed(base, d)
            if variant is not None:
                usable.append((d, variant))
        return usable

    def _explains(self, base: Variant, deviations: Iterable[Deviation]) -> bool:
        """Whether one of them explains the observed dependence on positions."""
        if not self.seen.moves:
            return True
        if any(d.moves or d.needs_causal or "axis" in d.change or "mixed" in d.change for d in deviations):
            return True
        if base.causal and self.seen.looks_ahead:
            return False
        return bool(base.causal or base.rope or base.alibi) or self.seen.pattern is not None

    def _singles(
        self, readings: Sequence[Computation], definition: Match | None, bases: Sequence[Variant] | None = None
    ) -> Match | None:
        bases = self._bases_of_wrong() if bases is None else bases
        if definition is not None and definition.error < LOOSE:
            bases = [altered(definition.variant, residual=False)]
        found: list[Match] = []
        for computation in readings:
            for base in bases:
                healthy, _ = self._try(computation, base)
                for deviation, variant in self._usable(computation, base):
                    if not self._explains(base, [deviation]):
                        continue
                    error, whole = self._try(computation, variant)
                    if error < LOOSE:
                        found.append(Match(computation.projections, computation, whole, (deviation,), error, healthy))
            if any(match.error < EXACT or match.error * FAR < match.healthy_error for match in found):
                break
        return _select(found, definition)

    def _pairs(self) -> Match | None:
        bases = self._bases_of_wrong()
        if self.seen.tables:  # it has angles, so it has rotations
            bases = [base for base in bases if base.rope is not None and base.rope.frequencies == 0]
        elif self.seen.pattern is not None:
            bases = [*bases, *(altered(base, causal="observed") for base in bases if not base.causal)]
        bases.sort(key=lambda base: base.rope is None)  # with signs of RoPE, first those with rotations
        self.left = MOST_TRIALS
        for computation in self._first(PAIRS_OF):
            for base in bases:
                found = list(self._pairs_on(computation, base))
                chosen = _select(found, None)
                if chosen is not None:
                    return chosen
        return None

    def _first(self, count: int) -> list[Computation]:
        plain = [c for c in self.readings if c.norms.words == ""][:count]
        return plain + [c for c in self.readings if c.norms.words and c.norms.output is None][:1]

    def _pairs_on(self, computation: Computation, base: Variant) -> Iterator[Match]:
        healthy, _ = self._try(computation, base)
        usable = [(d, variant) for d, variant in self._usable(computation, base) if not d.rare]
        effective = list(self._effective(computation, base, usable))
        for (one, first), (two, _) in itertools.combinations(effective, 2):
            if set(one.change) & set(two.change) or not self._explains(base, (one, two)):
                continue
            variant = changed(first, two)
            if variant is None:
                continue
            error, whole = self._try(computation, variant)
            if error < LOOSE:
                yield Match(computation.projections, computation, whole, (one, two), error, healthy)

    def _effective(
        self, computation: Computation, base: Variant, usable: Iterable[tuple[Deviation, Variant]]
    ) -> Iterator[tuple[Deviation, Variant]]:
        """Deviations that change the output, each output once."""
        seen: set[tuple[float, ...]] = set()
        try:
            seen.add(_print(computation.output(base, COLUMNS)))
        except Inapplicable:
            return
        for deviation, variant in usable:
            try:
                shown = _print(computation.output(variant, COLUMNS))
            except Inapplicable:
                continue
            if shown not in seen:
                seen.add(shown)
                yield deviation, variant

    def _free_scale(self) -> Match | None:
        """A factor on the scores that is not in the catalogue, found by minimising the error."""
        for computation in self._first(PAIRS_OF):
            p = computation.projections
            right = computation.factor(self.right)
            stated = self.right.scale != Variant().scale
            expected = f"{right:.6g}, as stated" if stated else f"1/sqrt({p.head_width}) = {right:.6g}"
            for base in self._bases():
                if not self._explains(base, ()) or (base.rope and not self.seen.rotates):
                    continue
                for narrow in self.narrow:
                    factor = _minimum(
                        lambda f, c=computation, b=base, n=narrow: _distance(c, b, n, f),  # type: ignore[misc]
                        right,
                    )
                    error, variant = self._try(computation, altered(base, scale=factor))
                    if error < LOOSE and abs(factor / right - 1) > 1e-6:
                        text = (
                            f"the scores are multiplied by {factor:.6g}; the head width is {p.head_width}, "
                            f"expected {expected}"
                        )
                        deviation = Deviation("wrong-scale", text, {"scale": factor})
                        healthy, _ = self._try(computation, base)
                        return Match(p, computation, variant, (deviation,), error, healthy)
        return None


def error_of(computation: Computation, variant: Variant, output: Tensor, rows: Tensor | None = None) -> float:
    """The relative error of a variant, in all rows of the output or in some; infinite if it cannot be computed."""
    try:
        made = computation.output(variant)
    except Inapplicable:
        return math.inf
    return relative_error(made, output) if rows is None else relative_error(made[rows], output[rows])


def changed(base: Variant, deviation: Deviation) -> Variant | None:
    """The variant with a deviation applied; None if the base lacks what it changes, or has it already."""
    if (
        (deviation.needs_rope and base.rope is None)
        or (deviation.needs_alibi and not base.alibi)
        or (deviation.needs_causal and not base.causal)
    ):
        return None
    plain: dict[str, object] = {}
    rope: dict[str, object] = {}
    for field, value in deviation.change.items():
        (rope if field.startswith("rope.") else plain)[field.removeprefix("rope.")] = value
    if rope and base.rope is not None:
        plain["rope"] = dataclasses.replace(base.rope, **rope)  # type: ignore[arg-type]
    variant = altered(base, **plain)
    return None if variant == base else variant


def _print(output: Tensor) -> tuple[float, ...]:
    """A few digits of an output, to recognise it."""
    some = output.flatten()[:: max(output.numel() // 7, 1)]
    return tuple(float(f"{x:.9e}") for x in some.tolist())


def _select(found: Sequence[Match], definition: Match | None) -> Match | None:
    """The best of the matches, with the others that are as good; None if it is not clearly the best."""
    if not found:
        return None
    best = min(match.error for match in found)
    same = [match for match in found if match.error < max(EXACT, 100 * best)]
    first = next(match for match in same if match.error <= 30 * max(best, 1e-15))
    healthy = first.healthy_error if definition is None else min(first.healthy_error, definition.error)
    if healthy < FAR * first.error:
        return None
    others = dict.fromkeys(match.deviations for match in same if match.deviations != first.deviations)
    return dataclasses.replace(first, healthy_error=healthy, alternatives=tuple(others))


def _default_tables(p: Projections, bases: Sequence[float]) -> list[Tensor]:
    """RoPE's frequencies as in the paper, for each base."""
    d = p.head_width
    return [base ** (-torch.arange(0, d - 1, 2, dtype=torch.float64) / d) for base in bases] if d > 1 else []


def _distance(computation: Computation, base: Variant, narrow: Tensor, factor: float) -> float:
    try:
        part = computation.output(altered(base, scale=factor), COLUMNS)
    except Inapplicable:
        return math.inf
    return float((part - narrow).norm()) if part.shape == narrow.shape else math.inf


def _minimum(distance: Callable[[float], float], right: float) -> float:
    """The factor with the smallest distance: the best of a grid over six decades, refined by golden section."""
    steps = [right * 10 ** (i / 12) for i in range(-36, 37)]
    values = [distance(x) for x in steps]
    at = min(range(len(steps)), key=values.__getitem__)
    low, high = steps[max(at - 1, 0)], steps[min(at + 1, len(steps) - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    f_a, f_b = distance(a), distance(b)
    far = max(filter(math.isfinite, values), default=math.inf)
    for step in range(80):
        # Where a factor gives the output, the distance shrinks with the interval: by now a hundred thousand times.
        if step == 25 and min(f_a, f_b) > 1e-2 * far:
            break
        if f_a < f_b:
            high, b, f_b = b, a, f_a
            a = high - ratio * (high - low)
            f_a = distance(a)
        else:
            low, a, f_a = a, b, f_b
            b = low + ratio * (high - low)
            f_b = distance(b)
    return (low + high) / 2
