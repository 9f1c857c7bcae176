"""Rotary positions: with the same token at every position, scores depend on the distance alone.

All tokens of an example are made alike. What queries and keys then still differ by from position to position is what
the module does to them by their position; differences between two examples take away what is merely added. Of these
differences x [S, N, D] and y, the products x_i · y_i must be those of position 0, for every i: a rotation of both by
one angle leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.site import Site

FINDINGS = ("rope-pairing", "rope-asymmetric", "rope-axis")

_LENGTH, _FEW, _MOST = 6, 3, 130
_ROUNDING, _WRONG = 1e-4, 1e-2


def check(patient: Patient) -> Iterator[Finding]:
    """Compare queries and keys of alike tokens at different positions."""
    if patient.interface.takes != "self":
        raise NotApplicable("queries and keys are not of the same tokens")
    if not patient.see().sites:
        raise NotChecked(patient.anatomy_problem)
    judged, problem = 0, ""
    for i, site in enumerate(_alike(patient, _FEW).sites):
        if site.grid is None or site.contraction is None or site.overlaps:
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
    if not judged:
        raise NotApplicable("nothing of its queries and keys depends on the position alone")


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


def opposite(x: Tensor, y: Tensor) -> bool:
    """Whether x_i · y_j depends on i + j alone: they turn in opposite directions."""
    products = torch.einsum("snd,tmd->nmst", x, y)
    off = (products[1:, :-1] - products[:-1, 1:]).abs().max()
    return float(off) < _WRONG * float(products.abs().max())


def partners(x: Tensor) -> list[tuple[int, int]]:
    """The pairs of features of [S, N, D] whose sum of squares stays the same: those that are rotated together."""
    squares = x.square()
    squares = squares[:, :, (squares - squares[:, :1]).abs().amax((0, 1)) > _ROUNDING * float(squares.max())]
    kept = moving(x.square()).nonzero().flatten().tolist()
    found = []
    for i, f in enumerate(kept):
        for j in range(i + 1, len(kept)):
            both = squares[..., i] + squares[..., j]
            if float((both - both[:, :1]).abs().max()) < 1e-3 * float(squares.max()):
                found.append((f, kept[j]))
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
    moved = {"queries": moving(x), "keys": moving(y)}
    where = site.product.where
    if bool(moving(v).any()) and change(v, v) < _WRONG:
        yield _asymmetric("the values are also rotated by their position; only queries and keys should be", where)
    if change(x, y) < _WRONG:
        return
    still = [name for name, features in moved.items() if not bool(features.any())]
    if still:
        other = "keys" if still == ["queries"] else "queries"
        yield _asymmetric(f"only the {other} are rotated by their position; the {still[0]} are not", where)
        return
    worst = {"queries": change(x, x), "keys": change(y, y)}
    name = max(worst, key=lambda each: worst[each])
    q, k = moved.values()
    if worst[name] > _WRONG:
        yield _pairing(
            f"the {name} of one token have other lengths at other positions (by {worst[name]:.2f}): their maps are not "
            "rotations, as where both members of a pair get the sine with the same sign, or cos and sin are laid out "
            "for other pairs",
            where,
            worst[name],
        )
    elif int((q ^ k).sum()) > int((q | k).sum()) / 2:
        yield _asymmetric(
            f"of the {len(q)} features of a head, {_listed(q)} of the queries depend on the position, but {_listed(k)} "
            "of the keys: rotated features are multiplied with features that are not rotated",
            where,
            "put the parts of queries and keys together in the same order: cat([plain, rotated]) for both",
        )
    elif set(partners(x)).isdisjoint(partners(y)):
        a, b = (", ".join(f"{f} with {g}" for f, g in partners(z)[:2]) for z in (x, y))
        yield _pairing(f"queries are rotated in other pairs ({a}) than keys ({b})", where, change(x, y))
    else:
        words = "in opposite directions" if opposite(x, y) else "by different angles"
        yield _asymmetric(
            f"queries and keys at the same position are rotated {words}: with the same token everywhere, their product "
            f"changes by {change(x, y):.2f} of its size where the distance is 0",
            where,
        )


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
            f"the {name} are rotated by the number of their {word}, the same at every position: those of {word} 0 are "
            f"as they were projected, and those of others are turned, so the table runs over the {word}s",
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


def _asymmetric(
    evidence: str,
    where: Where | None,
    fix: str = "rotate queries and keys, not values, by the same angles: position times frequency",
) -> Finding:
    return Finding("rope-asymmetric", "bug", evidence, fix, where)


def _pairing(evidence: str, where: Where | None, off: float) -> Finding:
    return Finding(
        "rope-pairing",
        "bug",
        evidence,
        "lay out cos and sin like the pairs, the same for both: cat([freqs, freqs]) for halves, repeat_interleave(2) "
        "for neighbours; one of a pair gets a minus: rotate_half(x) is cat([-x2, x1])",
        where,
        numbers={"off": off},
    )


def _listed(features: Tensor) -> str:
    at = features.nonzero().flatten()
    whole = torch.equal(at, torch.arange(int(at[0]), int(at[-1]) + 1))
    return f"{int(at[0])} to {int(at[-1])}" if whole else f"{len(at)} others"
