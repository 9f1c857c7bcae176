"""Which layers of a stack have a window, compared with what its config or its text says.

The windows are read from the scores of one traced call, one attention a layer. What is said is a list with a type for
each layer, a number of layers that are full or windowed (its text says which), or that every n-th layer is full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names, sizes
from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site
from headwise.doctor.source import source_of
from headwise.errors import shortened

FINDINGS = ("window-ignored",)

_SIZES = ["sliding_window", "sliding_window_size", "window_size", "window", "local_window", "attention_window"]
_TYPES = ["layer_types", "attention_types", "attn_types", "attention_layers", "attn_layers", "layer_attention_types"]
_COUNT = ["max_window_layers", "num_window_layers", "n_window_layers", "num_local_layers", "n_local_layers"]
_EVERY = ["sliding_window_pattern", "global_attn_every_n_layers", "global_every", "full_attention_interval"]
_LONGEST = 131  # tokens of the call

_LOWER, _UPPER = r"\b(bottom|first|lower)\b", r"\b(top|last|upper|higher|rest|others|remaining|additional|above)\b"
_LOCAL, _FULL = r"\b(swa|sliding|windowed|window|local|it)\b", r"\b(full|global)\b"
_UP_TO = r"(?:(?!\b(?:top|last|upper|higher|rest|others|remaining|additional|above|while|but)\b)[^.;])*"


def check(patient: Patient) -> Iterator[Finding]:
    if not patient.reports("window-ignored: in some layers"):
        raise NotApplicable("a library's config is its convention")
    said = sizes.find(patient.module, _SIZES)
    if not said or patient.interface.takes != "self" or patient.interface.length:
        raise NotApplicable("no part of it has a window, or its length is fixed")
    length = 2 * max(said) + 3
    if len(patient.see().sites) < 2 or length > _LONGEST:
        raise NotApplicable("it has one layer, or a window that is too wide to be seen")
    if any(value is False for place in sizes.places(patient.module) for value in [_switch(place)]):
        raise NotApplicable("its windows are switched off")
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception as error:
        raise NotChecked(f"it does not take {length} positions: {error}") from error
    windowed = [_has_window(site) for site in sites]
    if any(x is None for x in windowed):
        raise NotChecked("the masks of its layers cannot be read")
    wrong = _differs(patient, [bool(x) for x in windowed])
    if wrong:
        has = [i for i, x in enumerate(windowed) if x]
        listed = ", ".join(map(str, has)) or "none"
        yield Finding(
            "window-ignored",
            "bug",
            f"of its layers, 0 to {len(windowed) - 1}, these have a window: {listed}; and {wrong}",
            "compare the index of the layer with the number of layers the other way round, or correct what is said",
            sites[0].where_masked(sites[0].steps_before),
            numbers={"windowed": float(len(has)), "layers": float(len(windowed))},
        )


def _has_window(site: Site) -> bool | None:
    """Whether the last query attends to a part of the earlier keys; None if its mask is none of the two."""
    if site.grid is None:
        return None
    scores = site.scores
    allowed: Tensor = (~(scores <= FORBIDDEN) & ~torch.isnan(scores))[0, 0]
    if allowed.shape[0] != allowed.shape[1]:
        return None
    n = len(allowed)
    apart = torch.arange(n)[:, None] - torch.arange(n)
    reach = int(apart[allowed].max()) if bool(allowed.any()) else 0
    band = (apart <= reach) & ((apart >= 0) | bool(allowed.triu(1).any()) & (-apart <= reach))
    return reach < n - 1 if bool((allowed == band).all()) else None


def _switch(place: Any) -> bool | None:
    found = names.attribute(place, ["use_sliding_window", "use_window"], lambda x: isinstance(x, bool))
    return None if found is None else bool(found[1])


def _differs(patient: Patient, windowed: list[bool]) -> str:
    """What is said, if the layers differ from it; or ""."""
    module, count = patient.module, len(windowed)
    types = _list_of_types(module, count)
    if types is not None:
        expected = [bool(re.search(r"slid|local|window|swa", x)) for x in types]
        return f"its config says {', '.join(types)}" if expected != windowed else ""
    lower, sentence = _said(module)
    if lower is not None:
        stated = [n for n in sizes.find(module, _COUNT) if 0 < n < count]
        orders = [[(i < n) == lower for i in range(count)] for n in stated or range(1, count)]
        return f'its text says: "{sentence}"' if windowed not in orders and (stated or len(set(windowed)) > 1) else ""
    for n in sizes.find(module, _EVERY):
        full = [i for i, x in enumerate(windowed) if not x]
        if 2 < n <= count and len(set(windowed)) > 1 and full not in [[*range(r, count, n)] for r in range(n)]:
            return f"by its config, every {n} layers one is full"
    return ""


def _list_of_types(module: nn.Module, count: int) -> list[str] | None:
    for place in sizes.places(module):
        found = names.attribute(place, _TYPES, lambda x: isinstance(x, (list, tuple)) and len(x) == count)
        if found is not None and all(isinstance(x, str) for x in found[1]) and len(set(found[1])) > 1:
            return [str(x) for x in found[1]]
    return None


def _said(module: nn.Module) -> tuple[bool | None, str]:
    """Whether the lower layers have the window (True) or the upper ones (False), and the sentence that says it."""
    texts = [text_of(part) for part in module.modules() if not type(part).__module__.startswith("torch.")]
    for place in sizes.places(module):
        if not isinstance(place, nn.Module):
            source = source_of(place if isinstance(place, type) else type(place))
            texts.append("" if source is None else source.text)
    for text in dict.fromkeys(texts):
        for sentence in re.split(r"[.;]\s|\.?\"\"\"", " ".join(text.replace("#", " ").split())):
            for lower, ones, others in ((True, _LOCAL, _FULL), (False, _FULL, _LOCAL)):
                if re.search(_LOWER + _UP_TO + ones, sentence, re.I) and re.search(
                    _UPPER + r"[^.;]*" + others, sentence, re.I
                ):
                    return lower, shortened(sentence.strip(), 120)
    return None, ""
