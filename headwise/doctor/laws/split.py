"""Attention over parts of the keys, merged, is attention over all keys: each part weighs as its share of exponentials.

The output of every part is computed from its scores and values; then the weights with which they were merged are
solved for, and compared with the shares. The factor of the scores must be that of every other part, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.scale import behind_the_product
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("softmax-split", "wrong-scale")

_SAME = 1e-3  # shares that differ by less are the same
_LARGE = 64  # keys of a block: a call of two such blocks is still traced quickly
_LONGER = 11  # tokens, for more blocks of several keys


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = _read(patient)
    groups = _groups([*anatomy.sites, *anatomy.blocks])
    if not groups and (block := _block(patient)) is not None:
        anatomy = look(patient, length=2 * block + 3)
        groups = _groups([*anatomy.sites, *anatomy.blocks])
    uneven = next(_uneven(patient), None) if groups and anatomy.blocks else None
    if uneven is not None:
        yield uneven
        return
    merged = [(group, found) for group in groups if (found := _merged(anatomy, group)) is not None]
    if groups and not merged:
        raise NotChecked("how its parts of the keys are merged could not be read")
    for group, (shares, expected, off) in merged:
        if float(off.max()) > _SAME:
            b, q, h = torch.nonzero(off == off.max())[0].tolist()
            said, right = (", ".join(f"{float(x):.3g}" for x in each[b, q, h]) for each in (shares, expected))
            yield Finding(
                "softmax-split",
                "bug",
                Sentence(
                    "the keys are split into {parts} parts. Query {q} merges them with weights {weights}; their "
                    "shares of the sum of exponentials are {right}"
                ).format(parts=len(group), q=q, weights=said, right=right),
                "take the softmax over all keys, or weight each part by exp(lse of the part - lse of all), natural "
                "logarithms; where a running maximum changes, multiply the outputs and the sums so far by exp(old "
                "maximum - new)",
                group[0].softmax.where,
            )
            return


def _read(patient: Patient) -> Anatomy:
    """The anatomy; of a module in which no softmax is completed, that of its blocks alone."""
    if patient.anatomy is None and patient.has_attention:
        try:
            found = look(patient)
        except Exception:
            return patient.see()
        if found.blocks:
            return found
    return patient.see()


def _block(patient: Patient) -> int | None:
    """The number of keys in a block, by an attribute, if the tokens of an ordinary call are fewer."""
    interface = patient.interface
    if interface.length is not None or interface.takes == "memory":
        return None
    words, least = ("block", "bucket", "chunk", "tile"), interface.way.lengths[0]
    named = (x for name, x in vars(patient.module).items() if any(word in name.lower() for word in words))
    return min((x for x in named if isinstance(x, int) and least <= x <= _LARGE), default=None)


def _groups(sites: Sequence[Site]) -> list[list[Site]]:
    """Sites of the same queries, whose keys are different ones of the same projection."""
    groups: list[list[Site]] = []
    for site in sites:
        if site.known:
            group = next((g for g in groups if all(_parts_of_one(x, site) for x in g)), None)
            if group is None:
                groups.append([site])
            else:
                group.append(site)
    return [group for group in groups if len(group) > 1]


def _parts_of_one(a: Site, b: Site) -> bool:
    if a.scores.shape[:3] != b.scores.shape[:3] or not torch.equal(a.q, b.q):
        return False
    names = [{seed.name for seed in site.projections["k"]} for site in (a, b)]
    keys = [site.k[0, 0] for site in (a, b)]
    return names[0] == names[1] and not bool((keys[0][:, None] == keys[1][None]).all(-1).any())


def _uneven(patient: Patient) -> Iterator[Finding]:
    """Blocks of the same keys whose scores have different factors, such as a scale that is multiplied in a loop."""
    first, twins = (look(patient, length=patient.interface.length or _LONGER, seed=seed).blocks for seed in (0, 1))
    if len(first) != len(twins):
        return
    of = {id(site): twin for site, twin in zip(first, twins, strict=True)}
    for group in _groups(first):
        pairs = ((site, of[id(site)]) for site in group if site.scores.shape[-1] > 1)
        alike = ((a, b) for a, b in pairs if b.grid is not None and a.scores.shape == b.scores.shape)
        factors = [factor for a, b in alike if (factor := behind_the_product(a, b)) is not None]
        if len(factors) > 1 and max(factors) - min(factors) >= 1e-2 * max(abs(x) for x in factors):
            yield Finding(
                "wrong-scale",
                "bug",
                Sentence(
                    "the keys are read in {count} blocks, whose scores are multiplied by {factors}: the factor "
                    "changes from block to block"
                ).format(count=len(group), factors=", ".join(f"{x:.4g}" for x in factors)),
                "multiply the scores of every block by the same factor, which the loop does not change",
                group[0].softmax.where,
            )


# --- How the parts are merged -----------------------------------------------------------------------------------------


def _merged(anatomy: Anatomy, group: list[Site]) -> tuple[Tensor, Tensor, Tensor] | None:
    """The weights of the parts [B, Q, H, parts], as found and as they should be, and how far they are apart [B, Q, H];
    None if they cannot be solved for.
    """
    scores = [site.scores.double().nan_to_num(nan=-torch.inf) for site in group]
    parts = [(x.weights.double().nan_to_num() @ x.v.double()).transpose(1, 2) for x in group]
    stacked = torch.stack(parts, -1)  # [B, Q, H, D, parts]
    sums = torch.stack([x.logsumexp(-1).transpose(1, 2) for x in scores], -1)  # [B, Q, H, parts]
    known = sums.isfinite().any(-1)  # a block of queries is a part of all
    if stacked.shape[-2] <= len(group) or not bool(known.any()):
        return None
    expected = sums.softmax(-1).masked_fill(~known[..., None], 0.0)
    last = max(site.contraction.product.order for site in group if site.contraction is not None)
    for merged in _candidates(anatomy, last, stacked.shape[:-1]):
        found = shares_in(merged, stacked, known)
        if found is not None:
            return found, expected, apart(found, expected, sums.logsumexp(-1).exp(), known)
    return None


def _candidates(anatomy: Anatomy, after: int, shape: torch.Size) -> Iterator[Tensor]:
    """[B, Q, H, D]: what may be the merged output, in the operands of later projections and in the module's output."""
    b, queries, h, d = shape
    later = (seed for seed in anatomy.run.seeds if seed.kind == "projection" and seed.order >= after)
    operands = ((x, dim) for seed in later for x, dim in ((seed.left, -1), (seed.right, -2)) if x is not None)
    output = anatomy.run.result.output
    for x in (*(x.value.movedim(dim, -1) for x, dim in operands), output):
        if isinstance(x, Tensor) and x.numel() and x.numel() % (b * h * d) == 0 and x.shape[-1] == h * d:
            whole = x.detach().double().reshape(b, -1, h, d)
            if whole.shape[1] >= queries:
                yield whole[:, :queries]


def shares_in(merged: Tensor, parts: Tensor, known: Tensor) -> Tensor | None:
    """The weights [..., P] with which parts [..., D, P] sum up to what was merged [..., D]; None if they do not."""
    found = torch.linalg.lstsq(parts, merged[..., None], driver="gelsd").solution
    rest = (parts @ found - merged[..., None]).abs()[known].max()
    if not bool(found.isfinite().all()) or float(rest) > 1e-4 * float(merged.abs().max()):
        return None
    return found[..., 0].masked_fill(~known[..., None], 0.0)


def apart(found: Tensor, expected: Tensor, sums: Tensor, known: Tensor) -> Tensor:
    """How far the weights of the parts [B, Q, H, parts] are from right, [B, Q, H]. A sum [B, Q, H] of exponentials that
    also counts a sink, which is the same number for every query of a head, is right.
    """
    total = found.sum(-1)
    beside = (1 / total - 1) * sums
    level = beside.masked_fill(~known, 0.0).sum((0, 1)) / known.sum((0, 1)).clamp(min=1)
    sink = ((beside - level).abs() <= 1e-2 * level) | ~known
    even = sink.flatten(0, 1).all(0) & (level > 1e-3)
    scaled = torch.where(even[:, None], found / total[..., None], found)
    return (scaled - expected).abs().amax(-1).masked_fill(~known, 0.0)
