"""Low-rank updates of a packed projection that are put at other features than those of their queries, keys or values.

A packed update has a low-rank block for each of q, k and v, padded with zeros to the rows of the packed weight. If the
weight is laid out group by group and the update in thirds, the update for the queries reaches a part of the queries
and a part of the keys. One row of the down projection is changed; the trace shows which features change with it.
An update that is named after the values may not change the keys alone, either.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import awake
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.creation import origin
from headwise.doctor.reading.site import Site

FINDINGS = ("qkv-order",)

_DOWN = re.compile(r"lora_?(a|down)|adapter_?(a|down)", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:lora|adapter)\w*[_.](q|k|v|query|key|value)(?=[_.])|(?:^|[_.])(q|k|v|query|key|value)_(?:lora|adapter)",
    re.IGNORECASE,
)
_WORDS = {"q": "queries", "k": "keys", "v": "values"}


def check(patient: Patient) -> Iterator[Finding]:
    matrices = [name for name, x in patient.module.named_parameters() if x.ndim == 2]
    downs = [name for name in matrices if _DOWN.search(name)]
    named = {name: x for name in matrices if (x := _NAMED.search(name))}
    if not downs and not named:
        raise NotApplicable("it has no low-rank updates")
    before = look(patient, change=awake).sites
    for name in downs:
        for row in {0, patient.module.get_parameter(name).shape[0] - 1}:
            sites = look(patient, change=functools.partial(_shift, name=name, row=row)).sites
            shares = _shares(before[0], sites[0]) if before and sites else {}
            partly = {letter: share for letter, share in shares.items() if 0 < share < 1}
            if len(partly) < 2:
                continue
            said = " and ".join(f"{share:.0%} of the features of the {_WORDS[x]}" for x, share in partly.items())
            yield Finding(
                "qkv-order",
                "bug",
                f"row {row} of {name} changes {said}: the update is laid out otherwise than the packed projection",
                "put each update at the rows of its queries, keys or values, in the order of the packed weight",
                origin(patient.module, name),
                numbers=partly,
            )
            return
    yield from _elsewhere(patient, list(before), named)


def _elsewhere(patient: Patient, before: list[Site], named: dict[str, re.Match[str]]) -> Iterator[Finding]:
    """An update that is named after one of q, k and v and changes another one of them, and not its own."""
    for name, match in named.items():
        letter = (match[1] or match[2])[0].lower()
        sites = look(patient, change=functools.partial(_shift, name=name, row=0)).sites
        shares = _shares(before[0], sites[0]) if before and sites else {}
        others = [_WORDS[x] for x, share in shares.items() if x != letter and share]
        if others and shares.get(letter) == 0:
            yield Finding(
                "qkv-order",
                "bug",
                f"{name} changes the {' and the '.join(others)}, and not the {_WORDS[letter]} after which it is named",
                "put each update at the rows of its queries, keys or values, in the order of the packed weight",
                origin(patient.module, name),
                numbers=shares,
            )
            return


def _shift(module: nn.Module, name: str, row: int) -> None:
    awake(module)
    with torch.no_grad():
        x = module.get_parameter(name)
        x[row] += torch.randn(x.shape[1], generator=torch.Generator().manual_seed(0)).to(x)


def _shares(a: Site, b: Site) -> dict[str, float]:
    """The share of the features of q, k and v, over all heads, that differ."""
    if a.grid is None or b.grid is None or a.contraction is None or b.contraction is None:
        return {}
    pairs = {"q": (a.q, b.q), "k": (a.k, b.k), "v": (a.v, b.v)}
    return {letter: _share(x, y) for letter, (x, y) in pairs.items() if x.shape == y.shape}


def _share(x: Tensor, y: Tensor) -> float:
    return float(((x - y).abs().amax((0, 2)) > 1e-6 * float(x.abs().max())).float().mean())
