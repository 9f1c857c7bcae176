"""Text that attends to the images before it: a token before the first image sees none.

Flamingo's layers are told where images are inserted, `media_locations` [B, Q]. With finite fills a token before the
first image gives the same weight to the keys of all images, unless its output is set to 0 (Alayrac et al. 2022).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("masked-key-counts",)

_LOCATIONS = re.compile(r"^(media|images?|img|vision|visual)_?(loc|locations?|positions?|starts?)$")
_FIRST = 2  # the token at which the image is inserted


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    name = next((x for x in probe.interface.roles if _LOCATIONS.match(x)), None)
    if name is None or probe.interface.takes != "memory":
        raise NotApplicable("it is not told where images are")
    inputs = probe.inputs()
    locations = torch.zeros(inputs.query.shape[:2], dtype=torch.bool)
    locations[:, _FIRST] = True
    before, after = (probe.attempt(x, given={name: locations}) for x in (inputs, moved(inputs, slice(None))))
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or not bool(before.isfinite().all()):
        raise NotChecked(f"it does not run with {name} [B, Q] of booleans, or its output is not finite")
    change = rows(before, after)
    if float(change[:, _FIRST:].amax()) <= REACHED:
        raise NotChecked(f"no token attends to the image that {name} tells of")
    if float(change[:, :_FIRST].amax()) > REACHED:
        most = float(change[:, :_FIRST].amax())
        yield Finding(
            "masked-key-counts",
            "bug",
            f"with the only image at token {_FIRST} ({name}), the {_FIRST} tokens before it change with the image, by "
            f"up to {most:.2g} of the output's size: all their keys are masked, and have equal weights",
            "set the weights of tokens before the first image to 0: attn.masked_fill(text_time == 0, 0)",
            numbers={"change": most},
        )
        return
    yield from _of_the_next(probe, inputs, name, locations)


def _of_the_next(probe: Probe, inputs: Inputs, name: str, locations: Tensor) -> Iterator[Finding]:
    """A second image, which no location tells of: no token sees it."""
    way = probe.interface.way
    slot = next(slot for role, slot in way.slots if role == "memory")
    if way.layout != "BNM,B1NM" or inputs.key is None:
        return
    other = moved(inputs, slice(None)).key
    assert other is not None
    pairs = (torch.stack((inputs.key, inputs.key), 1), torch.stack((inputs.key, other), 1))
    before, after = (probe.attempt(inputs, given={name: locations, slot: media}) for media in pairs)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or not bool(before.isfinite().all()):
        return
    change = float(rows(before, after).amax())
    if change > REACHED:
        yield Finding(
            "masked-key-counts",
            "bug",
            f"with two images and one location ({name}), the second image changes tokens by up to {change:.2g} of the "
            "output's size: tokens behind an image see the next one",
            "count images as locations are counted: the first one is 1, torch.arange(images) + 1",
            numbers={"change": change},
        )
