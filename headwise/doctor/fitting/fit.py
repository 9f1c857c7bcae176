"""Which variant of attention a module computes: the one that gives its output to rounding, right or wrong.

The module is run in float64, without masks and with each of them. From its own weights the definition is computed, then
every single deviation of the catalogue, then pairs. Nothing is traced, so the style of the code does not matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.doctor.fitting.deviations import MASKS, Deviation
from headwise.doctor.fitting.observed import Observed, observe, run
from headwise.doctor.fitting.projections import Projections, find_projections
from headwise.doctor.fitting.search import EXACT, LOOSE, Match, Search, changed, error_of
from headwise.doctor.fitting.variants import Computation, Variant

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import MaskInput
    from headwise.doctor.subject import Subject


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """The variant that gives a module's output, and where it deviates from the definition."""

    projections: Projections
    variant: Variant
    deviations: tuple[Deviation, ...]  # up to two of the plain output and one of a mask; none: it is the definition
    error: float  # largest difference, relative to the largest output
    healthy_error: float  # the same for the definition
    alternatives: tuple[tuple[Deviation, ...], ...]  # other deviations with exactly the same output
    numbers: Mapping[str, float]  # for the sentences: head_width, width, heads, scale ...
    masks: Mapping[str, Deviation | None]  # a mask's argument -> its deviation; those that could be fitted

    @property
    def healthy(self) -> bool:
        return not self.deviations

    @property
    def sentence(self) -> str:
        """The variant that reproduces the output, with its error."""
        if self.healthy:
            return f"the definition of attention gives the module's output within {self.error:.0e} ({self._extras()})"
        told = "; ".join(deviation.told(self.numbers) for deviation in self.deviations)
        against = f"to {self.healthy_error:.0e}" if math.isfinite(self.healthy_error) else "not at all"
        return (
            f"{told}. Computed this way, the module's output matches to {self.error:.0e}; by the definition, {against}"
        )

    def _extras(self) -> str:
        v = self.variant
        rope = f"RoPE over {'halves' if v.rope.pairing == 'half' else 'neighbours'}" if v.rope else ""
        extras = (v.causal and "causal", rope, v.alibi and "ALiBi", "the input added" if v.residual else "")
        return ", ".join([self.projections.describe(), *(x for x in extras if x)])


@torch.no_grad()
def fit(subject: Subject, *, seed: int = 0) -> Fit | None:
    """The variant of attention that gives the module's output; None if none of the catalogue does.

    No deviation is tried first, then one, then two. When the output without masks is explained, each mask is fitted.
    """
    interface = subject.interface
    seen = observe(interface, seed)
    if seen is None:
        return None
    projections = find_projections(seen.interface.module, interface, parameters=subject.spec.parameters)
    match = Search(seen, projections, interface.takes, scale=subject.spec.scale).best()
    if match is None:
        return None
    fits = {}
    for mask in seen.interface.masks:
        if mask.what not in fits and not mask.own:
            fits[mask.what] = (mask, _fit_mask(seen, match, mask, stated=_stated(subject, mask)))
    known = [(mask, found) for mask, found in fits.values() if found is not None]
    wrong = [found for _, found in known if found.deviation is not None]
    healthy = [match.healthy_error] if match.deviations or not wrong else []
    return Fit(
        projections=match.projections,
        variant=wrong[0].variant if wrong else match.variant,
        deviations=(*match.deviations, *dict.fromkeys(found.deviation for found in wrong if found.deviation)),
        error=max([match.error, *(found.error for _, found in known)]),
        healthy_error=max([*healthy, *(found.healthy_error for found in wrong)]),
        alternatives=(*match.alternatives, *((other,) for found in wrong for other in found.alternatives)),
        numbers=_numbers(match),
        masks={mask.parameter: found.deviation for mask, found in known},
    )


def _stated(subject: Subject, mask: MaskInput) -> bool:
    """Whether the values that mean "may attend" are known from elsewhere than a trial."""
    by_hand = subject.spec.mask if mask.what == "cells" else subject.spec.padding
    return by_hand is not None or mask.works or mask.claimed == mask.form


@dataclasses.dataclass(frozen=True, eq=False)
class _MaskFit:
    variant: Variant
    deviation: Deviation | None
    error: float
    healthy_error: float
    alternatives: tuple[Deviation, ...] = ()


def _fit_mask(seen: Observed, match: Match, mask: MaskInput, *, stated: bool) -> _MaskFit | None:
    """What the module does with a mask; None if it is not in the catalogue.

    If the meaning of its values is not known (`stated` is false), both polarities count as right.
    """
    b, q_len, k_len = *seen.query.shape[:2], seen.key.shape[1]
    given: tuple[Tensor | None, Tensor | None]
    if mask.what == "keys":
        real = _padding(b, k_len) if mask.by_example else _padding(b, k_len)[:1].expand(b, k_len)
        given, allowed = (None, real), real[:, None, None, :]
    else:
        cells = _cells(b if mask.by_example else 1, q_len, k_len)
        given, allowed = (cells if mask.by_example else cells[0], None), cells[:, None]
    try:
        output = run(seen.interface, seen.given, allowed=given[0], padding=given[1])
    except Exception:  # refused or failed: reported by other checks
        return None
    if output is None:
        return None
    ways = [_with_mask(seen, match, allowed)]
    if not stated:
        ways.append(_with_mask(seen, match, ~allowed))
    bound = max(EXACT, min(10 * match.error, LOOSE))
    bases = [match.variant]
    if match.variant.causal:  # a mask that is passed may replace the module's own
        bases.append(dataclasses.replace(match.variant, causal=""))
    # The value used for -inf matters only to queries without an allowed key.
    right = [dataclasses.replace(v, mask_fill=fill) for v in bases for fill in (-math.inf, -1e9)]
    healthy, best_right = min(((error_of(c, v, output), v) for c in ways for v in right), key=lambda pair: pair[0])
    if healthy < bound:
        return _MaskFit(best_right, None, healthy, healthy)
    wrong = [(d, v) for base in bases for d in MASKS if (v := changed(base, d)) is not None]
    tried = [(error_of(c, v, output), d, v) for c in ways for d, v in wrong]
    best = min(x for x, _, _ in tried)
    if best < bound:
        same = [(x, d, v) for x, d, v in tried if x < bound]
        x, deviation, variant = next(entry for entry in same if entry[0] <= 30 * max(best, 1e-15))
        others = dict.fromkeys(d for _, d, _ in same if d is not deviation)
        return _MaskFit(variant, deviation, x, healthy, tuple(others))
    if mask.what == "keys" and q_len == k_len:  # the output of a query that is itself padding does not matter
        x, variant = min(((error_of(ways[0], v, output, real), v) for v in right), key=lambda pair: pair[0])
        if x < bound:
            return _MaskFit(variant, None, x, x)
    return None


def _with_mask(seen: Observed, match: Match, allowed: Tensor) -> Computation:
    return Computation(
        match.projections,
        *(seen.query, seen.key, seen.value),
        allowed=allowed,
        frequencies=match.computation.frequencies,
        pattern=seen.pattern,
        norms=match.computation.norms,
    )


def _cells(b: int, q_len: int, k_len: int) -> Tensor:
    """A mask [b, Q, K], True = may attend: no row or column is all True, and the examples differ."""
    q, k = torch.arange(q_len)[:, None], torch.arange(k_len)
    example = torch.arange(b)[:, None, None]
    step = (k - q) % k_len
    some = (q * 3 + k * 2 + example * (q + 1)) % 7 < 3
    return (step == 0) | (some & (step != 1)) | (step == 2 + example % 2)


def _padding(b: int, k_len: int) -> Tensor:
    """Real keys [b, K]: the last ones are padding, a different number in each example."""
    lengths = torch.tensor([max(k_len - 1 - (i + 1) % 3, 1) for i in range(b)])
    return torch.arange(k_len) < lengths[:, None]


def _numbers(match: Match) -> dict[str, float]:
    """The numbers that the sentences may use."""
    p = match.projections
    d, m, h, g, n = p.head_width, p.q.shape[1], p.heads, p.kv_heads, match.computation.x["k"].shape[1]
    roots = {"root_head_width": d**0.5, "root_width": m**0.5, "root_heads": h**0.5, "root_length": n**0.5}
    sizes = {"head_width": d, "width": m, "heads": h, "kv_heads": g, "group": h / g, "half": d / 2, "length": n}
    return {**sizes, **roots, "fourth_root": d**0.25, "scale": match.computation.factor(match.variant)}
