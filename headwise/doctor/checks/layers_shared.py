"""A list of layers that holds one layer several times: `nn.ModuleList([Block()] * 6)` has the weights of one block.

Models that share their layers on purpose say so (ALBERT, Universal Transformers), or call one layer in a loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient

FINDINGS = ("layers-shared",)

_MEANT = re.compile(
    r"shar(e|ed|es|ing)\b|\btie[ds]?\b|tying|universal|albert|recurren|recursi|same (layer|block|weight)", re.IGNORECASE
)


def _attends(layer: nn.Module) -> bool:
    """Whether it has an attention, by the names of its classes: heads of several outputs may be one on purpose."""
    return any("att" in type(part).__name__.lower() for part in layer.modules())


def check(patient: Patient) -> Iterator[Finding]:
    for path, part in patient.module.named_modules():
        if not isinstance(part, (nn.ModuleList, nn.Sequential)):
            continue
        held = list(part._modules.values())  # each entry; children() leaves repeated ones out
        counts = Counter(id(x) for x in held if x is not None and _attends(x))
        if not counts or max(counts.values()) < 2 or _MEANT.search(text_of(patient.module)):
            continue
        at = next(i for i, x in enumerate(held) if counts[id(x)] > 1)
        times = counts[id(held[at])]
        yield Finding(
            "layers-shared",
            "bug",
            f"{path} holds one {type(held[at]).__name__} {times} times among its {len(held)} layers: they have the "
            "same weights, and nothing says that this is meant",
            "make a new layer for each place: nn.ModuleList([Block() for _ in range(n)]), not [Block()] * n",
            patient.where,
            numbers={"times": float(times), "layers": float(len(held))},
        )
        return
