"""Rotary positions: pairs of features rotated by one angle each, the same for queries and keys, and not for values.

The rotation is measured: for every position and pair of features, the 2 x 2 map from the projection's output to the
input of the product. If a map of a pairing (halves, or neighbours) is not a rotation, or differs between queries and
keys, the scores do not depend on the distance alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.creation import uses
from headwise.doctor.reading.rotation import Rotation, rotation, turned
from headwise.doctor.reading.scale import measure
from headwise.doctor.reading.site import Site
from headwise.doctor.reading.waves import may_be_rope

FINDINGS = ("rope-pairing", "rope-asymmetric", "rope-axis", "rope-unused", "rope-scaling", "mscale-twice")

_BASES = ("base", "theta", "rope_theta", "rope_base", "rotary_base", "rotary_emb_base")
_SLOWEST, _NEAR = 1e-4, 0.03  # a slower pair turns too little in a few positions to be measured; of a share


def _look(patient: Patient, edit: Callable[[Inputs], Inputs] | None = None) -> Anatomy:
    """A run of 6 examples, or of as many as usual, where a cache holds fewer."""
    length = patient.interface.length or 6
    try:
        return look(patient, batch=6, length=length, edit=edit)
    except RuntimeError:
        return look(patient, length=length, edit=edit)


def check(patient: Patient) -> Iterator[Finding]:
    if not patient.see().sites:
        raise NotChecked(patient.anatomy_problem)
    sites = _look(patient).sites
    known = 0
    for site in sites:
        if site.grid is None or site.contraction is None or site.overlaps:
            continue  # in each block a key may have an angle of its own
        q, k, v = (rotation(site, name) for name in ("q", "k", "v"))
        if q is None or k is None:
            wrong = list(_axis(patient, site))
            known += bool(wrong)
            yield from wrong
            continue
        known += 1
        yield from _judge(site, q, k, v)
        yield from _stretched(patient, site, q)
        yield from _ramp(patient, site, q)
        if not q.pairing and not k.pairing and site is sites[0]:
            yield from _unused(patient, site)
    if not known:
        raise NotChecked("queries and keys are not pairwise maps of the outputs of their projections")


def _judge(site: Site, q: Rotation, k: Rotation, v: Rotation | None) -> Iterator[Finding]:
    where = site.product.where
    if not q.pairing and not k.pairing:
        return
    if v is not None and v.pairing:
        yield _asymmetric("the values are also rotated by their position; only queries and keys should be", where)
    if not (q.pairing and k.pairing):
        which, other = ("queries", "keys") if q.pairing else ("keys", "queries")
        yield _asymmetric(f"only the {which} are rotated by their position; the {other} are not", where)
        return
    for name, x in (("queries", q), ("keys", k)):
        worst = float(x.stretch.max())
        if worst > 1e-2 and x.mirrors:
            yield Finding(
                "rope-pairing",
                "bug",
                f"the {name} are mixed in pairs ({_pairs(x)}), but the maps are not rotations (off by {worst:.2f}): "
                "both members of a pair get the sine of the other with the same sign",
                "one of the two has a minus: rotate_half(x) is cat([-x2, x1])",
                where,
                numbers={"off": worst},
            )
            return
        if worst > 1e-2:
            yield Finding(
                "rope-pairing",
                "bug",
                f"the {name} are mixed in pairs ({_pairs(x)}), but the maps are not rotations (off by {worst:.2f}): "
                "cos and sin are laid out for "
                f"{'neighbours (2i, 2i + 1)' if x.pairing == 'halves' else 'halves (i, i + D/2)'}",
                "lay out cos and sin like the pairs: cat([freqs, freqs]) for halves, repeat_interleave(2) for "
                "neighbours",
                where,
                numbers={"off": worst},
            )
            return
    if q.pairing != k.pairing:
        yield Finding(
            "rope-pairing",
            "bug",
            f"queries are rotated in {q.pairing}, keys in {k.pairing}",
            "rotate both the same way",
            where,
        )
        return
    if q.maps is not None and k.maps is not None and q.maps.shape == k.maps.shape:
        off = turned(q.angles - k.angles)
        if float(off.abs().max()) > 1e-2:
            opposite = float(turned(q.angles + k.angles).abs().max()) < 1e-2
            words = (
                "in opposite directions"
                if opposite
                else f"by different angles (up to {float(off.abs().max()):.2f} rad apart)"
            )
            yield _asymmetric(
                f"queries and keys at the same position are rotated {words}: scores depend on more than the distance",
                where,
            )
            return
        grown = _both_grow(q, k)
        if grown > 1e-2:
            yield _asymmetric(
                "queries and keys are also multiplied by numbers that change with the position, both in the same "
                f"direction: at one position their product changes by {grown:.0%} over {len(q.maps)} positions, so "
                "scores depend on more than the distance",
                where,
                fix="divide the keys by what the queries are multiplied with (xPos: scale ** n, and scale ** -n)",
            )
            return
        moved = q.angles.abs().amax(0).max()
        steps = turned(q.angles[1:] - q.angles[:-1])
        if float(moved) > 1e-2 and float(turned(steps - steps[:1]).abs().max()) > 1e-2:
            yield _asymmetric(
                "the angles do not grow linearly with the position: scores depend on more than the distance, unless "
                "the positions are not a sequence (those of an image are rows and columns)",
                where,
                "risk",
            )


def _axis(patient: Patient, site: Site) -> Iterator[Finding]:
    """Rotations by the number of the head, or of the example, where positions are meant."""
    for dim, word in ((1, "heads"), (0, "examples of the batch")):
        for name in "qk":
            found = rotation(site, name, dim)
            if found is None or not found.pairing or float(found.stretch.max()) > 1e-2:
                continue
            apart = float(turned(found.angles - found.angles[:1]).abs().max())
            if apart > 1e-2:
                patient.excused.add("positions-ignored")  # a symptom of it, also where it is a convention
                yield Finding(
                    "rope-axis",
                    patient.severity("rope-axis: of the table", "bug"),
                    f"the {'queries' if name == 'q' else 'keys'} are rotated by the number of their "
                    f"{'head' if dim else 'example'}, the same at every position (up to {apart:.2f} rad between the "
                    f"{word}): the table runs over the {word}",
                    "rotate with the positions on the dimension that the table expects: transpose to [B, H, N, D] "
                    "first, or take the length from the dimension of the positions",
                    site.product.where,
                    numbers={"apart": apart},
                )
                return


def _both_grow(q: Rotation, k: Rotation) -> float:
    """How far the product of the sizes of a pair's two maps changes with their position, relative to the smallest, if
    the sizes of both change the same way; else 0. In xPos one grows as the other falls.
    """
    assert q.maps is not None
    assert k.maps is not None
    a, b = (x.flatten(-2).norm(dim=-1) for x in (q.maps, k.maps))  # [L, pairs]
    if float(torch.minimum(a, b).min()) <= 0:
        return 0.0
    ups = [(x.log() - x.log()[:1]) for x in (a, b)]
    together = torch.minimum(ups[0].abs(), ups[1].abs()) > 1e-3
    same = ups[0].sign() == ups[1].sign()
    if not bool((together & same).any()) or bool((together & ~same).any()):
        return 0.0
    both = a * b
    return float((both.amax(0) / both.amin(0)).max()) - 1


_ROTARY = re.compile(r"rot|rope|inv_?freq|freqs|cos|sin(_|$)", re.IGNORECASE)


def _unused(patient: Patient, site: Site) -> Iterator[Finding]:
    """Tables of cos and sin that are made or read, where a token's queries and keys are the same at every position."""
    if patient.interface.takes != "self" or site.q.shape[2] < 4:
        return
    used = _runs_rotary(patient, site)
    if not used:
        return

    def edit(inputs: Inputs) -> Inputs:
        def repeated(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, 3] = x[:, 1]
            return x

        return inputs.each(repeated)

    twins = _look(patient, edit).sites
    if not twins or twins[0].grid is None:
        return
    for x in (twins[0].q, twins[0].k):
        if float((x[:, :, 1] - x[:, :, 3]).abs().max()) > 1e-5 * float(x.abs().max()):
            return
    yield Finding(
        "rope-unused",
        "bug",
        f"{used}, but the same token has the same queries and keys at positions 1 and 3: nothing is rotated",
        "use the rotated queries and keys, at the positions 0, 1, 2, …",
        site.product.where,
    )


def _runs_rotary(patient: Patient, site: Site) -> str:
    """What of RoPE runs in forward: cos and sin that are computed, or a module of that name."""
    twin = patient.fresh()
    if any(name in ("cos", "sin", "polar") for name, _, _ in site.trace.functions):
        inputs = twin.interface.inputs()
        rope = may_be_rope(lambda: twin.interface.run(inputs), inputs.tensors().values())
        return "cos and sin are computed" if rope else ""  # else they are those of sinusoids
    called: list[str] = []
    hooks = [
        part.register_forward_hook(lambda *_, path=path: called.append(path))
        for path, part in twin.module.named_modules()
        if path and _ROTARY.search(path.rpartition(".")[2] + " " + type(part).__name__)
    ]
    with torch.no_grad():
        twin.interface.run(twin.interface.inputs())
    for hook in hooks:
        hook.remove()
    if called:
        return f"{called[0]} is called"
    for path, _ in twin.module.named_buffers():
        holder, _, name = path.rpartition(".")
        if _ROTARY.search(name) and not holder and uses(twin.module, name):
            return f"forward reads the table {name}"
    return ""


def _stretched(patient: Patient, site: Site, q: Rotation) -> Iterator[Finding]:
    """YaRN's mscale in cos and sin as well as in the scale."""
    twins = patient.see().again
    if q.maps is None or q.size < 1.01 or len(q.pairs) * 2 == site.q.shape[-1] or twins is None:
        return
    factors = [
        measure(a, b)
        for a, b in zip(patient.see().sites, twins, strict=True)
        if a.grid is not None and b.grid is not None
    ]
    expected = site.q.shape[-1] ** -0.5 * q.size**2
    if any(x is not None and abs(x / expected - 1) < 2e-3 for x in factors):
        yield Finding(
            "mscale-twice",
            "bug",
            f"cos and sin are multiplied by mscale = {q.size:.4f}, and the scores also by mscale^2 / "
            f"sqrt({site.q.shape[-1]}) = {expected:.4f}: YaRN's temperature is applied twice to the rotated features",
            "apply mscale to the scale or to cos and sin, not to both",
            site.product.where,
            numbers={"mscale": q.size, "scale": expected},
        )


def _ramp(patient: Patient, site: Site, q: Rotation) -> Iterator[Finding]:
    """Frequencies of which the fast are scaled down and the slow are not, where all extensions do the opposite: YaRN
    (Peng et al. 2023), Llama 3. Linear scaling (position interpolation) scales all of them by one number.
    """
    if q.maps is None or len(q.maps) < 3:
        return
    steps = turned(q.angles[1:] - q.angles[:-1])
    if float(turned(steps - steps[:1]).abs().max()) > 1e-2:
        return  # not those of a sequence
    measured = steps.mean(0).abs()
    for base in _bases(patient.module):
        usual = base ** -(torch.arange(len(measured)) / len(measured)).double()
        share = (measured / usual)[usual > _SLOWEST]
        fast, slow = float(share[0]), float(share[-1])
        if fast < 0.9 and abs(slow - 1) < _NEAR and bool((share.diff() > -_NEAR).all()):
            yield Finding(
                "rope-scaling",
                "bug",
                f"the fastest pair turns by {float(measured[0]):.3g} a position, {fast:.2f} of what is usual, and slow "
                "pairs turn as usual: the fast pairs are scaled for a longer context, and the slow ones are not",
                "keep the frequencies of the fast pairs and divide those of the slow ones by the factor: "
                "interpolated * ramp + original * (1 - ramp), with a ramp from 0 at the fast to 1 at the slow pairs",
                site.product.where,
                numbers={"fast": fast, "slow": slow},
            )
            return


_SAME_ANGLES = "rotate queries and keys, not values, by the same angles: position times frequency"


def _asymmetric(evidence: str, where: Where | None, severity: Severity = "bug", fix: str = _SAME_ANGLES) -> Finding:
    return Finding("rope-asymmetric", severity, evidence, fix, where)


def _pairs(x: Rotation) -> str:
    return ", ".join(f"{a} with {b}" for a, b in x.pairs[:2])


def _bases(module: nn.Module) -> tuple[float, ...]:
    """The bases of RoPE in attributes, and that of the paper."""
    found = [10000.0]
    for part in module.modules():
        for name in _BASES:
            value = vars(part).get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1:
                found.append(float(value))
    return tuple(dict.fromkeys(found))[:3]
