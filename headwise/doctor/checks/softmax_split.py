"""A softmax over a part of the keys only: blocks of keys that are each normalised, and merged wrongly or not at all.

Attention over blocks is the attention over all keys if each block is weighted by its share of the sum of exponentials.
The output of every block is computed from its weights and values; then the weights with which they were merged are
solved for, and compared with these shares.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy
from headwise.doctor.reading.site import Site

FINDINGS = ("softmax-split",)

_SAME = 1e-3  # shares that differ by less are the same


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    groups = list(_groups(anatomy))
    if not groups:
        raise NotApplicable("every softmax is over all keys")
    read = 0
    for group in groups:
        merged = _merged(anatomy, group)
        if merged is None:
            continue
        read += 1
        found, expected = merged
        wrong = (found - expected).abs()
        if float(wrong.max()) <= _SAME:
            continue
        b, q, h = torch.nonzero(wrong.amax(-1) == wrong.max())[0].tolist()
        said, right = (", ".join(f"{float(x):.3g}" for x in shares[b, q, h]) for shares in (found, expected))
        yield Finding(
            "softmax-split",
            "bug",
            f"the keys are split into {len(group)} parts, each with a softmax of its own. Query {q} merges them with "
            f"weights {said}; their shares of the sum of exponentials are {right}",
            "take the softmax over all keys, or weight each part by exp(lse of the part - lse of all), natural "
            "logarithms",
            group[0].softmax.where,
            numbers={"parts": len(group), "difference": float(wrong.max())},
        )
        return
    if not read:
        raise NotChecked("how its parts of the keys are merged could not be read")


def _groups(anatomy: Anatomy) -> Iterator[list[Site]]:
    """Sites of the same queries, whose keys are different ones of the same projection."""
    sites = [s for s in anatomy.sites if s.grid is not None and s.contraction is not None]
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


def _merged(anatomy: Anatomy, group: list[Site]) -> tuple[Tensor, Tensor] | None:
    """[B, Q, H, parts]: the weights of the parts, as found and as they should be; None if that cannot be solved for."""
    parts = [(site.weights.double().nan_to_num() @ site.v.double()).transpose(1, 2) for site in group]
    lse = [torch.logsumexp(site.scores.double().nan_to_num(nan=-torch.inf), -1).transpose(1, 2) for site in group]
    stacked = torch.stack(parts, -1)  # [B, Q, H, D, parts]
    expected = torch.stack(lse, -1).softmax(-1)
    if stacked.shape[-2] <= len(group) or not bool(expected.isfinite().all()):
        return None
    last = max(site.contraction.product.order for site in group if site.contraction is not None)
    for seed in anatomy.run.seeds:
        if seed.kind != "projection" or seed.order < last or seed.left is None:
            continue
        for operand, dim in ((seed.left, -1), (seed.right, -2)):
            if operand is None or operand.value.numel() != stacked[..., 0].numel():
                continue
            merged = operand.value.movedim(dim, -1).double().reshape(stacked.shape[:-1])
            found = torch.linalg.lstsq(stacked, merged[..., None]).solution
            rest = (stacked @ found - merged[..., None]).abs().max()
            if bool(found.isfinite().all()) and float(rest) <= 1e-4 * float(merged.abs().max()):
                return found[..., 0], expected
    return None
