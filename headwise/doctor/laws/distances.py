"""What is added to the scores for the distance of query and key: ALiBi's slopes, tables of relative positions.

It is what remains of the scores without the products of queries and keys. A slope is read as it is. For a table its
parameters get other numbers first, so that two places of the scores are equal only if they read the same entry.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.scale import added
from headwise.doctor.reading.site import Site
from headwise.nn.positions import alibi

FINDINGS = ("alibi-slopes", "relative-bias-shared")

_LENGTH = 9


def check(patient: Patient) -> Iterator[Finding]:
    """Look at what each attention adds to its scores."""
    anatomy, made = patient.see(), 0
    for site, twin in zip(anatomy.sites, anatomy.again or (), strict=False):
        bias = _beside_itself(site, twin)
        if bias is None:
            continue
        down, up = slopes(bias), slopes(bias.mT)
        if down is not None and len(down) > 1:
            made += 1
            yield from _judge(site, down, None if _hidden_from_outside(patient) else up)
    if any(step.name == "add" and step.names for site in anatomy.sites for step in site.steps_before):
        made += 1
        yield from _tables(patient)
    if not made:
        raise NotApplicable("it has no bias that falls linearly with the distance, and no table of biases")


def _beside_itself(site: Site, twin: Site) -> Tensor | None:
    """[B, H, N, N]: what is added, less what is added where the key is the query: a number for each query does not
    change the softmax. None if it is not known.
    """
    bias = added(site, twin)
    square = bias is not None and bias.shape[-1] == bias.shape[-2]
    return bias - bias.diagonal(dim1=-2, dim2=-1)[..., None] if bias is not None and square else None


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


def _judge(site: Site, down: Tensor, up: Tensor | None) -> Iterator[Finding]:
    if up is not None and bool((down > 0).all()) and bool((up < 0).all()):
        yield Finding(
            "alibi-slopes",
            "bug",
            f"the bias falls with the distance of earlier keys, and rises with that of later ones, by up to "
            f"{float(-up.min()):.4g} for each position, although later keys are attended to",
            "take the distance without its sign: -slope * (i - j).abs()",
            site.softmax.where,
        )
        return
    expected = torch.tensor(alibi.slopes(len(down)), dtype=torch.float64)
    if torch.allclose(down, expected, rtol=1e-3):
        return
    same = torch.allclose(down.sort().values, expected.sort().values, rtol=1e-3)
    rising, falling = bool((down < 0).any()), bool((down[:-1] > down[1:]).all())
    severity: Severity = "bug" if rising or same or falling else "risk"  # else learned, or of another scheme
    listed, wanted = (", ".join(f"{x:.4g}" for x in numbers.tolist()[:6]) for numbers in (down, expected))
    yield Finding(
        "alibi-slopes",
        severity,
        f"the bias falls with the distance by {listed} in the {len(down)} heads; expected {wanted}"
        + ("; a negative slope favours distant keys" if rising else ""),
        "take the slopes of the next lower power of two, then every second slope of the next higher one",
        site.softmax.where,
    )


def _tables(patient: Patient) -> Iterator[Finding]:
    length = patient.interface.length or _LENGTH
    sites, twins = (look(patient, seed=seed, length=length, change=stirred).sites for seed in (0, 1))
    for site, twin in zip(sites, twins, strict=False):
        bias = _beside_itself(site, twin)
        names = {name for step in site.steps_before if step.name == "add" for name in step.names}
        rows = [len(x) for name, x in patient.module.named_parameters() if name in names and x.ndim == 2]
        if bias is None or not rows:
            continue
        for numbers in _windows(patient.module, bias.shape[-1]):
            entries = shared(bias[0], numbers)
            of = len(numbers.unique())
            if entries < 0.95 * of and of <= max(rows):  # some may be alike by chance
                yield Finding(
                    "relative-bias-shared",
                    "bug",
                    f"there are {entries} different biases for the {of} offsets between positions of its window, "
                    f"although the table has {max(rows)} rows: different offsets share a bias",
                    "multiply each coordinate by the number of offsets of the dimensions behind it: (2 h - 1) "
                    "(2 w - 1), 2 w - 1, 1",
                    site.softmax.where,
                    numbers={"entries": entries, "offsets": of},
                )
                return
        side = one_sided(bias[0, 0])
        if side and max(rows) >= 4 and not (side == "after" and _hidden_from_outside(patient)):
            yield Finding(
                "relative-bias-shared",
                "bug",
                f"all keys {side} the query have the same bias, however far they are, and those on the other side have "
                f"different ones; the table has {max(rows)} rows",
                "check the sign of the distance, and which direction its clamp keeps",
                site.softmax.where,
            )
            return


def stirred(module: nn.Module) -> None:
    """Change all parameters: tables may begin with 0."""
    draw = torch.Generator().manual_seed(13)
    with torch.no_grad():
        for x in module.parameters():
            if x.is_floating_point():
                x.add_(0.1 * torch.randn(x.shape, generator=draw).to(x.dtype))


def _windows(module: nn.Module, length: int) -> Iterator[Tensor]:
    """[N, N]: a number for each offset between two positions, of each window of this many positions that is stated."""
    stated = {
        x if type(x) is tuple else tuple(x) if type(x) is list else (x, x)
        for part in module.modules()
        for x in vars(part).values()
        if type(x) in (tuple, list, int)
        and all(type(y) is int and y > 0 for y in (x if type(x) in (tuple, list) else [x]))
    }
    for sizes in sorted(stated):
        grid = (
            torch.stack(torch.meshgrid(*map(torch.arange, sizes), indexing="ij")).flatten(1) if len(sizes) > 1 else None
        )
        if grid is not None and grid.shape[1] == length:
            apart = grid[:, :, None] - grid[:, None, :]
            number = torch.zeros_like(apart[0])
            for size, x in zip(sizes, apart, strict=True):
                number = number * (2 * size - 1) + x + size - 1
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
    [N, N], NaN where it is hidden.
    """
    n = len(bias)
    before = [bias.diagonal(-d) for d in range(1, n)]
    after = [bias.diagonal(d) for d in range(1, n)]
    kinds = {}
    for word, lines in (("before", before), ("after", after)):
        if all(bool(x.isfinite().all()) and float(x.max() - x.min()) < 1e-4 for x in lines):  # by the distance alone
            kinds[word] = 1 + int((torch.stack([x[0] for x in lines]).sort().values.diff() > 1e-4).sum())
    if len(kinds) < 2 or n < 5:
        return ""
    return next((x for x, y in (("before", "after"), ("after", "before")) if kinds[x] == 1 and kinds[y] > 2), "")


def _hidden_from_outside(patient: Patient) -> bool:
    """Whether a mask of the caller may hide later keys, as that of a decoder does."""
    interface = patient.interface
    causal = interface.causal_claim or any(role == "causal" for role in interface.roles.values())
    decodes = any(getattr(part, "is_decoder", False) is True for part in patient.module.modules())
    return bool(causal) or decodes or any(mask.what == "cells" for mask in interface.masks)
