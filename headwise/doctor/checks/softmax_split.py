"""Keys in parts: blocks that are each normalised, or an online softmax over blocks, and merged wrongly or not at all.

Attention over blocks is the attention over all keys if each block is weighted by its share of the sum of exponentials.
The output of every block is computed from its weights and values; then the weights with which they were merged are
solved for, and compared with these shares. The factor of the scores must be that of every other block, too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.scale import behind_the_product
from headwise.doctor.reading.site import Site

FINDINGS = ("softmax-split", "wrong-scale")

_SAME = 1e-3  # shares that differ by less are the same
_BLOCK = re.compile(r"(block|bucket|chunk|tile)(_?(size|len\w*|k|kv|n))?$", re.IGNORECASE)
_LARGE = 64  # keys of a block: a call of two such blocks is still traced quickly
_LONGER = 11  # tokens, for more blocks of several keys


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = _read(patient)
    groups = [*_groups(anatomy.sites), *_groups(anatomy.blocks)]
    if not groups and (block := _block(patient)) is not None:
        anatomy = look(patient, length=2 * block + 3)
        groups = [*_groups(anatomy.sites), *_groups(anatomy.blocks)]
    if not groups:
        raise NotApplicable("every softmax is over all keys")
    read = 0
    uneven = list(_uneven(patient)) if anatomy.blocks else []
    if uneven:
        yield from uneven
        return
    for group in groups:
        merged = _merged(anatomy, group)
        if merged is None:
            continue
        read += 1
        if float(merged.difference.max()) > _SAME:
            yield _finding(group, merged)
            return
    if not read:
        raise NotChecked("how its parts of the keys are merged could not be read")


def _read(patient: Patient) -> Anatomy:
    """The anatomy; of a module in which no softmax is completed, that of its blocks alone."""
    if patient.anatomy is not None:
        return patient.anatomy
    if not patient.has_attention:
        raise NotChecked(patient.anatomy_problem)
    try:
        found = look(patient)
    except Exception:
        raise NotChecked(patient.anatomy_problem) from None
    if not found.blocks:
        raise NotChecked(patient.anatomy_problem)
    return found


def _block(patient: Patient) -> int | None:
    """The number of keys in a block, by an attribute, if the tokens of an ordinary call are fewer."""
    interface = patient.interface
    if interface.length is not None or interface.takes == "memory":
        return None
    found = [
        value
        for name, value in vars(patient.module).items()
        if isinstance(value, int) and _BLOCK.search(name) and interface.way.lengths[0] <= value <= _LARGE
    ]
    return min(found, default=None)


def _groups(sites: Sequence[Site]) -> Iterator[list[Site]]:
    """Sites of the same queries, whose keys are different ones of the same projection."""
    sites = [s for s in sites if s.grid is not None and s.contraction is not None]
    taken: set[int] = set()
    for i, first in enumerate(sites):
        if i in taken:
            continue
        group = [first]
        for j in range(i + 1, len(sites)):
            if j not in taken and all(_parts_of_one(x, sites[j]) for x in group):
                group.append(sites[j])
                taken.add(j)
        if len(group) > 1:
            yield group


def _parts_of_one(a: Site, b: Site) -> bool:
    if a.scores.shape[:3] != b.scores.shape[:3] or not torch.equal(a.q, b.q):
        return False
    names = [{seed.name for seed in site.projections["k"]} for site in (a, b)]
    keys = [site.k[0, 0] for site in (a, b)]
    return names[0] == names[1] and not bool((keys[0][:, None] == keys[1][None]).all(-1).any())


# --- The factor of every block ----------------------------------------------------------------------------------------


def _uneven(patient: Patient) -> Iterator[Finding]:
    """Blocks of the same keys whose scores have different factors, such as a scale that is multiplied in a loop."""
    first, twins = (look(patient, length=patient.interface.length or _LONGER, seed=seed).blocks for seed in (0, 1))
    if len(first) != len(twins):
        return
    of = {id(site): twin for site, twin in zip(first, twins, strict=True)}
    for group in _groups(first):
        factors = [factor for site in group if (factor := _factor(site, of[id(site)])) is not None]
        if len(factors) < 2 or max(factors) - min(factors) < 1e-2 * max(abs(x) for x in factors):
            continue
        yield Finding(
            "wrong-scale",
            "bug",
            f"the keys are read in {len(group)} blocks, whose scores are multiplied by "
            f"{', '.join(f'{x:.4g}' for x in factors)}: the factor changes from block to block",
            "multiply the scores of every block by the same factor, which the loop does not change",
            group[0].softmax.where,
            numbers={"least": min(factors), "most": max(factors)},
        )
        return


def _factor(site: Site, twin: Site) -> float | None:
    same = twin.grid is not None and twin.scores.shape == site.scores.shape and site.scores.shape[-1] > 1
    return behind_the_product(site, twin) if same else None


# --- How the parts are merged -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Merged:
    """The weights of the parts, as found and as they should be."""

    found: Tensor  # [B, Q, H, parts]
    expected: Tensor
    difference: Tensor  # [B, Q, H]


def _finding(group: list[Site], merged: _Merged) -> Finding:
    b, q, h = torch.nonzero(merged.difference == merged.difference.max())[0].tolist()
    said, right = (", ".join(f"{float(x):.3g}" for x in shares[b, q, h]) for shares in (merged.found, merged.expected))
    own = "" if group[0].softmax in group[0].trace.blocks else ", each with a softmax of its own"
    return Finding(
        "softmax-split",
        "bug",
        f"the keys are split into {len(group)} parts{own}. Query {q} merges them with weights {said}; their shares of "
        f"the sum of exponentials are {right}",
        "take the softmax over all keys, or weight each part by exp(lse of the part - lse of all), natural logarithms; "
        "where a running maximum changes, multiply the outputs and the sums so far by exp(old maximum - new)",
        group[0].softmax.where,
        numbers={"parts": len(group), "difference": float(merged.difference.max())},
    )


def _merged(anatomy: Anatomy, group: list[Site]) -> _Merged | None:
    """None if the weights of the parts cannot be solved for."""
    parts = [(site.weights.double().nan_to_num() @ site.v.double()).transpose(1, 2) for site in group]
    lse = [torch.logsumexp(site.scores.double().nan_to_num(nan=-torch.inf), -1).transpose(1, 2) for site in group]
    stacked, sums = torch.stack(parts, -1), torch.stack(lse, -1)  # [B, Q, H, D, parts], [B, Q, H, parts]
    known = sums.isfinite().any(-1)  # a block of queries is a part of all
    expected = sums.softmax(-1).masked_fill(~known[..., None], 0.0)
    if stacked.shape[-2] <= len(group) or not bool(known.any()):
        return None
    last = max(site.contraction.product.order for site in group if site.contraction is not None)
    for merged in _candidates(anatomy, last, stacked.shape[:-1]):
        found = torch.linalg.lstsq(stacked, merged[..., None], driver="gelsd").solution
        rest = (stacked @ found - merged[..., None]).abs()[known].max()
        if bool(found.isfinite().all()) and float(rest) <= 1e-4 * float(merged.abs().max()):
            found = found[..., 0].masked_fill(~known[..., None], 0.0)
            return _Merged(found, expected, _difference(found, expected, sums.logsumexp(-1).exp(), known))
    return None


def _candidates(anatomy: Anatomy, after: int, shape: torch.Size) -> Iterator[Tensor]:
    """[B, Q, H, D]: what may be the merged output, in the operands of later projections and in the module's output."""
    b, queries, h, d = shape
    operands = (
        x.value.movedim(dim, -1)
        for seed in anatomy.run.seeds
        if seed.kind == "projection" and seed.order >= after
        for x, dim in ((seed.left, -1), (seed.right, -2))
        if x is not None
    )
    output = anatomy.run.result.output
    for x in (*operands, output if isinstance(output, Tensor) else torch.empty(0)):
        if x.numel() and x.numel() % (b * h * d) == 0 and x.shape[-1] == h * d:
            whole = x.detach().double().reshape(b, -1, h, d)
            if whole.shape[1] >= queries:
                yield whole[:, :queries]


def _difference(found: Tensor, expected: Tensor, sums: Tensor, known: Tensor) -> Tensor:
    """[B, Q, H]: how far the weights of the parts are from right. A sum that also counts a sink, which is the same
    number for every query of a head, is right.
    """
    total = found.sum(-1)
    beside = (1 / total - 1) * sums
    level = beside.masked_fill(~known, 0.0).sum((0, 1)) / known.sum((0, 1)).clamp(min=1)
    sink = ((beside - level).abs() <= 1e-2 * level) | ~known
    even = sink.flatten(0, 1).all(0) & (level > 1e-3)
    scaled = torch.where(even[:, None], found / total[..., None], found)
    return (scaled - expected).abs().amax(-1).masked_fill(~known, 0.0)
