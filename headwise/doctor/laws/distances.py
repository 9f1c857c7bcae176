"""How scores depend on the distance of query and key: ALiBi's slopes, tables of relative positions, places on a map.

What is added for the distance is what remains of the scores without the products of queries and keys. A slope is read
as it is. For a table its parameters get other numbers first, so that two places of the scores are equal only if they
read the same entry.

On a map that is not square a token stands at row = i // width, column = i % width. With the height in the place of the
width every shape fits. So all tokens are made alike: if their scores depend only on rows and columns that are counted
by the height, it is this that the code has in mind.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names
from headwise.doctor.calling.forward_arguments import sides
from headwise.doctor.calling.way import MAP, MAPS
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import Patient
from headwise.doctor.probing.reached import stir
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.scale import added
from headwise.doctor.reading.site import Site
from headwise.language import Sentence
from headwise.nn.positions import alibi

FINDINGS = ("alibi-slopes", "relative-bias-shared", "grid-transposed")

_LENGTH = 9
_SAME, _OTHER = 1e-3, 2e-2  # how far scores vary that should be the same, relative to the range of all scores


def check(patient: Patient) -> Iterator[Finding]:
    """Look at what each attention adds to its scores, and at the scores of tokens on a map."""
    sites = patient.see().sites
    for site, twin in zip(sites, patient.see().again or (), strict=False):
        yield from _slopes(patient, site, twin)
    if any(step.name == "add" and step.names for site in sites for step in site.steps_before):
        yield from _tables(patient)
    map_sides = _map_sides(patient)
    if map_sides is not None:
        yield from _map(patient, *map_sides)


def _beside_itself(site: Site, twin: Site) -> Tensor | None:
    """[B, H, N, N]: what is added, less what is added where the key is the query: a number for each query does not
    change the softmax. None if it is not known.
    """
    bias = added(site, twin)
    square = bias is not None and bias.shape[-1] == bias.shape[-2]
    return bias - bias.diagonal(dim1=-2, dim2=-1)[..., None] if bias is not None and square else None


def _later_may_be_hidden(patient: Patient) -> bool:
    """Whether a mask of the caller may hide later keys, as that of a decoder does."""
    interface = patient.interface
    causal = interface.causal_claim or any(role == "causal" for role in interface.roles.values())
    decodes = any(getattr(part, "is_decoder", False) is True for part in patient.module.modules())
    return bool(causal) or decodes or any(mask.what == "cells" for mask in interface.masks)


# --- Slopes -----------------------------------------------------------------------------------------------------------


def slopes(bias: Tensor) -> Tensor | None:
    """[H]: how much a bias [B, H, N, N] falls with each step back from the query; None if it is not linear, or NaN at
    more than three distances.
    """
    n = bias.shape[-1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)).double()
    found = []
    for head in range(bias.shape[1]):
        cells = bias[:, head].isfinite() & (distance >= 0)
        b, d = bias[:, head][cells], distance.expand(cells.shape)[cells]
        if len(d.unique()) < 4 or float(b.abs().max()) < 1e-6:  # any numbers at 0 and 1 lie on a line
            return None
        slope = (b @ d) / (d @ d)
        if float((b - slope * d).abs().max()) > 1e-3 * float(b.abs().max()):
            return None
        found.append(-slope)
    return torch.stack(found)


def _slopes(patient: Patient, site: Site, twin: Site) -> Iterator[Finding]:
    bias = _beside_itself(site, twin)
    down = None if bias is None else slopes(bias)
    if bias is None or down is None or len(down) < 2:
        return
    up = None if _later_may_be_hidden(patient) else slopes(bias.mT)
    expected = torch.tensor(alibi.slopes(len(down)), dtype=torch.float64)
    severity: Severity = "bug"
    if up is not None and bool((down > 0).all()) and bool((up < 0).all()):
        fix = "take the distance without its sign: -slope * (i - j).abs()"
        said = Sentence(
            "the bias falls with the distance of earlier keys, and rises with that of later ones, by up to "
            "{slope:.4g} for each position, although later keys are attended to"
        ).format(slope=float(-up.min()))
    elif not torch.allclose(down, expected, rtol=1e-3):
        same = torch.allclose(down.sort().values, expected.sort().values, rtol=1e-3)
        rising, falling = bool((down < 0).any()), bool((down[:-1] > down[1:]).all())
        severity = "bug" if rising or same or falling else "risk"  # else learned, or of another scheme
        listed, wanted = (", ".join(f"{x:.4g}" for x in numbers.tolist()[:6]) for numbers in (down, expected))
        said = Sentence(
            "the bias falls with the distance by {listed} in the {count} heads; expected {wanted}{more}"
        ).format(
            listed=listed,
            count=len(down),
            wanted=wanted,
            more="; a negative slope favours distant keys" if rising else "",
        )
        fix = "take the slopes of the next lower power of two, then every second slope of the next higher one"
    else:
        return
    yield Finding("alibi-slopes", severity, said, fix, site.softmax.where)


# --- Tables -----------------------------------------------------------------------------------------------------------


def _tables(patient: Patient) -> Iterator[Finding]:
    length = patient.interface.length or _LENGTH
    sites, twins = (
        look(patient, seed=seed, length=length, change=lambda x: stir(x.parameters())).sites for seed in (0, 1)
    )
    for site, twin in zip(sites, twins, strict=False):
        bias = _beside_itself(site, twin)
        tables = {name for step in site.steps_before if step.name == "add" for name in step.names}
        rows = max(
            (len(x) for name, x in patient.module.named_parameters() if name in tables and x.ndim == 2), default=0
        )
        if bias is None or not rows:
            continue
        side = one_sided(bias[0, 0])
        counts = [(shared(bias[0], x), len(x.unique())) for x in _windows(patient.module, bias.shape[-1])]
        wrong = [(found, of) for found, of in counts if found < 0.95 * of and of <= rows]  # some are alike by chance
        if wrong:
            fix = (
                "multiply each coordinate by the number of offsets of the dimensions behind it: (2 h - 1) (2 w - 1), "
                "2 w - 1, 1"
            )
            said = Sentence(
                "there are {biases} different biases for the {offsets} offsets between positions of its window, "
                "although the table has {rows} rows: different offsets share a bias"
            ).format(biases=wrong[0][0], offsets=wrong[0][1], rows=rows)
        elif side and rows >= 4 and not (side == "after" and _later_may_be_hidden(patient)):
            fix = "check the sign of the distance, and which direction its clamp keeps"
            said = Sentence(
                "all keys {side} the query have the same bias, however far they are, and those on the other side have "
                "different ones; the table has {rows} rows"
            ).format(side=side, rows=rows)
        else:
            continue
        yield Finding("relative-bias-shared", "bug", said, fix, site.softmax.where)
        return


def _windows(module: nn.Module, length: int) -> Iterator[Tensor]:
    """[N, N]: a number for each offset between two positions, of each window of this many positions that is stated."""
    for part in module.modules():
        for x in vars(part).values():
            sizes = (x, x) if type(x) is int else tuple(x) if type(x) in (tuple, list) else ()
            if len(sizes) > 1 and all(type(n) is int and n > 0 for n in sizes) and math.prod(sizes) == length:
                at = torch.cartesian_prod(*map(torch.arange, sizes))
                number = torch.zeros(length, length, dtype=torch.long)
                for size, apart in zip(sizes, (at[:, None] - at).unbind(-1), strict=True):
                    number = number * (2 * size - 1) + apart
                yield number


def shared(bias: Tensor, offsets: Tensor) -> int:
    """How many different biases [H, N, N] there are; as many as offsets, if the bias is no function of the offset."""
    kinds, at = offsets.unique(return_inverse=True)
    firsts = torch.stack([bias[:, at == i][:, 0] for i in range(len(kinds))], -1)  # [H, offsets]
    if not bool(bias.isfinite().all()) or float((firsts[:, at] - bias).abs().max()) > 1e-4:
        return len(kinds)
    alike = (firsts[:, :, None] - firsts[:, None]).abs().amax(0) < 2e-5
    return len(kinds) - int(alike.tril(-1).any(-1).sum())


def one_sided(bias: Tensor) -> str:
    """The side, "before" or "after" the query, whose keys all have one bias while those of the other have many; bias
    [N, N], NaN where it is hidden. "" if there is none, or if it is no function of the distance.
    """
    kinds = {}
    for word, sign in (("before", -1), ("after", 1)):
        lines = [bias.diagonal(sign * d) for d in range(1, len(bias))]
        if all(bool(x.isfinite().all()) and float(x.max() - x.min()) < 1e-4 for x in lines):
            kinds[word] = 1 + int((torch.stack([x[0] for x in lines]).sort().values.diff() > 1e-4).sum())
    few = min(kinds, key=lambda word: kinds[word], default="")
    return few if len(kinds) == 2 and kinds[few] == 1 and max(kinds.values()) > 2 else ""


# --- Places on a map --------------------------------------------------------------------------------------------------


def _map_sides(patient: Patient) -> tuple[int, int] | None:
    """Rows and columns of a map that is not square: those that forward is told, or that the constructor states."""
    interface = patient.interface
    if interface.takes != "self":
        return None
    told = (name for name, _ in interface.way.extras)
    if not interface.length and (
        interface.way.layout in MAPS or any(names.GRID.search(x) or names.simple(x) in names.SIDES for x in told)
    ):
        return sides(MAP)
    for name, argument in inspect.signature(type(patient.module).__init__).parameters.items():
        stated = getattr(patient.module, name, argument.default)
        if names.GRID.search(name) and isinstance(stated, (tuple, list)) and len(stated) == 2:
            height, width = stated
            if height != width and height * width == interface.length:
                return height, width
    return None


def _map(patient: Patient, height: int, width: int) -> Iterator[Finding]:
    length = height * width
    alike = look(patient, batch=1, length=length, edit=lambda x: x.each(lambda y: y[:, :1].expand_as(y).clone()))
    for site in alike.sites:
        if site.grid is None or site.scores.shape[-2:] != (length, length):
            continue
        words = transposed(site.scores[0].double(), height, width)
        if words:
            yield Finding(
                "grid-transposed",
                "bug",
                Sentence(
                    "on a map of {height} rows and {width} columns the scores of tokens that are alike depend on "
                    "their distance by {words}: the height stands where the width should"
                ).format(height=height, width=width, words=words),
                "row = index // width, column = index % width",
                site.softmax.where,
            )
            return


def transposed(scores: Tensor, height: int, width: int) -> str:
    """How scores [H, N, N] count rows and columns, if they do so with the height where the width should be; else ""."""
    at = torch.arange(height * width)
    if varies(scores, at // width, at % width) < _OTHER:
        return ""
    wrong = ((height, height), (width, height), (height, width))
    met = (
        Sentence("row = i // {by}, column = i % {of}").format(by=by, of=of)
        for by, of in wrong
        if varies(scores, at // by, at % of) < _SAME
    )
    return next(met, "")


def varies(scores: Tensor, row: Tensor, column: Tensor) -> float:
    """How far the scores [H, N, N] of pairs that are as many rows and columns apart vary."""
    apart = (row[:, None] - row) * 2 * len(row) + column[:, None] - column
    kinds, kind = apart.flatten().unique(return_inverse=True)
    high, low = (
        torch.zeros(len(scores), len(kinds), dtype=scores.dtype).scatter_reduce(
            1, kind.expand(len(scores), -1), scores.flatten(1), how, include_self=False
        )
        for how in ("amax", "amin")
    )
    return float((high - low).max() / (scores.amax() - scores.amin()).clamp(min=1e-12))
