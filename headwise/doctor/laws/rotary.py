"""Rotary positions: with the same token at every position, scores depend on the distance alone.

All tokens of an example are made alike. What queries and keys then still differ by from position to position is what
the module does to them by their position; differences between two examples take away what is merely added. Of these
differences x [S, N, D] and y, the products x_i · y_i must be those of position 0, for every i: a rotation of both by
one angle leaves them as they are.

The angles, positions times frequencies, need single precision: bfloat16 is exact up to 256, and later positions share
their angles. The angles of a run in bfloat16 are compared with those of the same run in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.creation import origin
from headwise.doctor.reading.events import Trace
from headwise.doctor.reading.site import Site
from headwise.language import Sentence, join

FINDINGS = ("rope-pairing", "rope-asymmetric", "rope-axis", "rope-half-precision")

_LENGTH, _FEW, _MOST = 6, 3, 130
_ROUNDING, _WRONG = 1e-4, 1e-2
_EXACT = 256  # positions that bfloat16 holds exactly
_HALF = (torch.bfloat16, torch.float16)


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the precision of the angles; compare queries and keys of alike tokens at different positions."""
    rounded = _rounded_table(patient) or _rounded_angles(patient, patient.see().run)
    if rounded is not None:
        yield rounded
    if patient.interface.takes != "self":
        return
    judged, problem = 0, ""
    for i, site in enumerate(_alike(patient, _FEW).sites):
        if not site.known or site.overlaps:
            continue  # in each block a key may have an angle of its own
        wrong = list(_axis(patient, site))
        yield from wrong
        judged += bool(wrong)
        if any(moving(differences(x)).any() for x in (site.q, site.k)):
            _, heads, _, width = site.q.shape
            sites = _alike(patient, min(width // heads + 3, _MOST)).sites  # more vectors than features
            problem = "its attentions are others for other numbers of examples"
            if i < len(sites) and sites[i].grid is not None:
                problem = _unclear(sites[i])
                judged += not problem
                yield from () if problem else _judge(sites[i])
    if problem and not judged:
        raise NotChecked(problem)


# --- The precision of the angles --------------------------------------------------------------------------------------


def _rounded_table(patient: Patient) -> Finding | None:
    for name, table in patient.module.named_buffers():
        if table.is_floating_point() and (same := repeated(table)):
            said = Sentence(
                "of {name} {shape}, {same:.0%} of the rows behind {exact} are those of the position before: its "
                "positions or angles were computed in half precision"
            ).format(name=name, shape=list(table.shape), same=same, exact=_EXACT)
            return _in_half(said, origin(patient.module, name))
    return None


def repeated(table: Tensor) -> float:
    """The share of the rows [N, D] behind position 256 that are those of the row before, if they are many, and few of
    the earlier ones are; else 0.
    """
    rows = table.detach().float().flatten(0, -2) if table.ndim > 1 else table
    if table.ndim < 2 or table.shape[-1] < 2 or table.shape[-2] != len(rows) or len(rows) < 2 * _EXACT:
        return 0.0
    same = (rows[1:] == rows[:-1]).all(-1).float()
    early, late = float(same[:_EXACT].mean()), float(same[_EXACT:].mean())
    return late if early < 0.1 < late else 0.0


def _rounded_angles(patient: Patient, exact: Trace) -> Finding | None:
    for (name, _, where), angle in zip(exact.functions, exact.angles, strict=True):
        if angle.dtype not in _HALF and in_half(angle):
            said = Sentence(
                "in a module of single precision all angles of {name} are numbers of half precision"
            ).format(name=name)
            return _in_half(
                Sentence("{said}: they were computed in it, so that far positions share their angle").format(said=said),
                where,
            )
    if not exact.functions:
        return None
    try:
        run = look(patient, dtype=torch.bfloat16).run
    except Exception:  # laws/precision.py tells what does not run in half precision
        return None
    lowered = any(x.is_floating_point() for x in patient.module.buffers())  # by .to(bfloat16), whatever forward does
    for (name, dtype, where), angle, right in zip(run.functions, run.angles, exact.angles, strict=False):
        off = 0.0
        if angle.shape == right.shape and right.numel():
            off = float(((angle.double() - right).abs() / right.double().abs().clamp(min=1e-6)).max())
        if dtype in _HALF or (5e-4 < off < 0.1 and not lowered):
            said = Sentence("the angles of {name} are {dtype}, and off by up to {off:.1%}").format(
                name=name, dtype=str(angle.dtype).removeprefix("torch."), off=off
            )
            return _in_half(
                Sentence(
                    "in a bfloat16 module {said}: with 8 bits neighbouring positions above 256 have the same angle, "
                    "and far ones are rotated wrongly"
                ).format(said=said),
                where,
                certain=patient.in_half,
            )
    return None


def in_half(angles: Tensor) -> bool:
    """Whether a half precision holds all these angles exactly; False if they are too few to tell."""
    fractions = angles[angles != angles.round()].unique()
    return len(fractions) >= 8 and any(torch.equal(fractions.to(x).to(fractions.dtype), fractions) for x in _HALF)


def _in_half(evidence: str, where: Where | None, *, certain: bool = True) -> Finding:
    fix = "keep the frequencies in float32 and compute the angles in float32; cast cos and sin afterwards"
    return Finding("rope-half-precision", "bug" if certain else "risk", evidence, fix, where)


# --- Queries and keys of alike tokens ---------------------------------------------------------------------------------


def _alike(patient: Patient, batch: int) -> Anatomy:
    """A run in which all tokens of an example are the same; of fewer examples where a cache does not hold so many."""
    length = patient.interface.length or _LENGTH

    def alike(x: Tensor) -> Tensor:
        return x[:, :1].expand_as(x).clone()

    try:
        return look(patient, batch=batch, length=length, edit=lambda x: x.each(alike))
    except RuntimeError:
        return look(patient, length=length, edit=lambda x: x.each(alike))


def differences(x: Tensor) -> Tensor:
    """[S, N, D]: how the other examples of [B, H, N, D] differ from the first, without a factor of each position."""
    x = (x[1:] - x[:1]).double().flatten(0, 1)
    size = x.norm(dim=(0, 2))
    return x * (size[:1] / size.clamp(min=1e-12))[:, None]


def moving(x: Tensor) -> Tensor:
    """[D]: the features of x [S, N, D] that are not the same at every position."""
    return (x - x[:, :1]).abs().amax((0, 1)) > _ROUNDING * float(x.abs().max())


def turned(x: Tensor) -> bool:
    """Whether x [S, N, D] at each position is a linear map of x at position 0. It takes more than D examples."""
    first, rest = x[:, 0], x[:, 1:].flatten(1)
    solved = torch.linalg.lstsq(first, rest, driver="gelsd").solution
    return len(first) > first.shape[1] and float((first @ solved - rest).abs().max()) < 1e-3 * float(x.abs().max())


def change(x: Tensor, y: Tensor) -> float:
    """How far the products x_i · y_i of [S, N, D] are from those of position 0, relative to the largest."""
    products = torch.einsum("snd,tnd->nst", x, y)
    return float((products - products[:1]).abs().max() / products[0].abs().max().clamp(min=1e-12))


def partners(x: Tensor) -> list[tuple[int, int]]:
    """The pairs of features of [S, N, D] whose sum of squares stays the same: those that are rotated together."""
    squares = x.square()
    kept = moving(squares).nonzero().flatten().tolist()
    found = []
    for i, f in enumerate(kept):
        for g in kept[i + 1 :]:
            both = squares[..., f] + squares[..., g]
            if float((both - both[:, :1]).abs().max()) < 1e-3 * float(squares[..., kept].max()):
                found.append((f, g))
    return found


def _unclear(site: Site) -> str:
    """Why nothing follows from how queries and keys depend on the position; "" if it does."""
    raws = [site.raw(name) for name in "qk"]
    if any(x is None or bool(moving(differences(x)).any()) for x in raws):
        return "its queries and keys depend on the position before they are projected, or come from several products"
    x, y = differences(site.q), differences(site.k)
    linear = x.shape[1] == y.shape[1] and turned(x) and turned(y)
    return "" if linear else "queries and keys at a position are no linear maps of those at another"


def _judge(site: Site) -> Iterator[Finding]:
    x, y, v = (differences(z) for z in (site.q, site.k, site.v))
    vectors: dict[str, Tensor] = {Sentence("queries"): x, Sentence("keys"): y}
    if bool(moving(v).any()) and change(v, v) < _WRONG:
        yield _asymmetric(site, "the values are also rotated by their position; only queries and keys should be")
    if change(x, y) < _WRONG:
        return
    still = [name for name, z in vectors.items() if not bool(moving(z).any())]
    longer = [name for name, z in vectors.items() if change(z, z) > _WRONG]
    if still:
        other = Sentence("keys" if still == ["queries"] else "queries")
        evidence = Sentence("only the {other} are rotated by their position; the {still} are not")
        yield _asymmetric(site, evidence.format(other=other, still=still[0]))
    elif longer:
        evidence = Sentence(
            "the {longer} of one token have other lengths at other positions (by {off:.2f}): their maps are not "
            "rotations, as where both members of a pair get the sine with the same sign, or cos and sin are laid out "
            "for other pairs"
        )
        off = change(vectors[longer[0]], vectors[longer[0]])
        yield _pairing(site, evidence.format(longer=longer[0], off=off))
    elif set(partners(x)).isdisjoint(partners(y)):
        pair = Sentence("{first} with {second}")
        a, b = (join(pair.format(first=f, second=g) for f, g in partners(z)[:2]) for z in (x, y))
        yield _pairing(site, Sentence("queries are rotated in other pairs ({a}) than keys ({b})").format(a=a, b=b))
    else:
        evidence = Sentence(
            "queries and keys at the same position are rotated by different angles: with the same token everywhere, "
            "their product changes by {change:.2f} of its size where the distance is 0"
        )
        yield _asymmetric(site, evidence.format(change=change(x, y)))


def _axis(patient: Patient, site: Site) -> Iterator[Finding]:
    """Rotations by the number of the head, or of the example, where positions are meant."""
    for name, x in (("queries", site.q), ("keys", site.k)):
        raw = site.raw("q" if name == "queries" else "k")
        dim = None if raw is None else turned_along(x.double(), raw)
        if dim is None or dim == 2:
            continue
        word = ("example", "head")[dim]
        patient.excused.add("positions-ignored")  # a symptom of it, also where it is a convention
        yield Finding(
            "rope-axis",
            patient.severity("rope-axis: of the table", "bug"),
            Sentence(
                "the {name} are rotated by the number of their {word}, the same at every position: those of {word} 0 "
                "are as they were projected, and those of others are turned, so the table runs over the {word}s"
            ).format(name=name, word=word),
            "rotate with the positions on the dimension that the table expects: transpose to [B, H, N, D] first, or "
            "take the length from the dimension of the positions",
            site.product.where,
        )
        return


def turned_along(x: Tensor, raw: Tensor) -> int | None:
    """The dimension of [B, H, N, D] by whose index all vectors are turned, and those with index 0 are not; None if
    there is none, or vectors are not only turned.
    """
    size = x.norm(dim=-1) / raw.norm(dim=-1)
    if bool(((size - size.mean()).abs() > 1e-3 * size.mean()).any()):
        return None
    still = (x - size.mean() * raw).abs().amax(-1) < _ROUNDING * float(x.abs().max())  # [B, H, N]
    for dim in range(3):
        first, rest = still.narrow(dim, 0, 1), still.narrow(dim, 1, still.shape[dim] - 1)
        if bool(first.all()) and rest.numel() and not bool(rest.any()):
            return dim
    return None


def _asymmetric(site: Site, evidence: str) -> Finding:
    fix = "rotate queries and keys, not values, by the same angles: position times frequency"
    return Finding("rope-asymmetric", "bug", evidence, fix, site.product.where)


def _pairing(site: Site, evidence: str) -> Finding:
    return Finding(
        "rope-pairing",
        "bug",
        evidence,
        "lay out cos and sin like the pairs, the same for both: cat([freqs, freqs]) for halves, repeat_interleave(2) "
        "for neighbours; one of a pair gets a minus: rotate_half(x) is cat([-x2, x1])",
        site.product.where,
    )
