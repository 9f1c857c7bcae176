"""Where a causal text encoder reads the text off: at its end token, whose state has seen all words and no padding.

CLIP's rows are `<start> words <end>`, filled up to the context length (Radford et al. 2021). The last position, or the
highest id where another id is higher, is another token.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch
from torch import nn

from headwise.doctor.calling import sizes
from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.padded_ids import answers, pad_of
from headwise.doctor.probing.probe import ROUNDING, gap

FINDINGS = ("end-token-unread",)

_END = r"\b(eo[ts](_token)?|end[- ]of[- ](text|sequence|sentence)|endoftext|end token)\b"
_ID = re.compile(r"^(eo[ts]|end)(_?token)?(_?(id|idx|index))?$")
_NUMBER = re.compile(rf"{_END}\s*(?:\(|=|is |has id |id )\s*(\d+)", re.IGNORECASE)
_HIGHEST = re.compile(rf"{_END}[^.]*\b(highest|largest|last) (id|number|index|token)", re.IGNORECASE)
_READ = re.compile(
    rf"\b(features?|embeddings?|vectors?|states?|pool\w*|represent\w*|read|taken?)\b[^.]{{0,60}}{_END}", re.IGNORECASE
)
_CAUSAL = re.compile(r"\bcausal|\btriu|\btril", re.IGNORECASE)
_WORDS, _PADS = 5, 3


def check(patient: Patient) -> Iterator[Finding]:
    module = patient.original
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    text = re.sub(r"[<>|`]", " ", text_of_all(module))
    end = _end(module, text) if tables and _CAUSAL.search(text) and _READ.search(text) else None
    if end is None:
        raise NotApplicable("nothing says that a causal encoder reads a text off at its end token")
    words = [i for i in range(3, min(end, 99)) if i != end] or [i for i in range(3, 99) if i != end]
    length = patient.interface.length or next(iter(sizes.stated_lengths(module)), 0) or _WORDS + 1 + _PADS
    if length < _WORDS + 3:
        raise NotChecked(f"it takes {length} tokens")
    row = [1, *words[: _WORDS - 1], end, *[pad_of(module)] * (length - _WORDS - 1)]
    if tables[0].num_embeddings > end + 1:
        row[1] = end + 1  # a token that was added to the vocabulary later
    ids = torch.tensor([row, row])
    before = ids.clone()
    before[:, _WORDS - 1] = words[_WORDS]
    found = answers(patient, ids, before, ids[:, :-1])  # with less padding
    if found is None or found[0].ndim != 2:
        raise NotChecked("it does not give one vector for a row of ids")
    plain, by_word, by_padding = found
    if gap(plain, by_padding) > ROUNDING or gap(plain, by_word) <= ROUNDING:
        what = (
            "more padding behind its end token changes its vector"
            if gap(plain, by_padding) > ROUNDING
            else "the last word before its end token does not change its vector"
        )
        yield Finding(
            "end-token-unread",
            "bug",
            f"{what}: with {_WORDS - 1} words, the end token {end} and padding, the text is read off at another token",
            "look for the id of the end token: (ids == end).int().argmax(-1)",
            patient.where,
        )


def _end(module: nn.Module, text: str) -> int | None:
    """The id of the end token: that of an attribute or of the constructor, one that is written down, or the highest."""
    for part in module.modules():
        for name, value in vars(part).items():
            if _ID.match(name) and type(value) is int and value >= 0:
                return value
    for name, argument in inspect.signature(type(module).__init__).parameters.items():
        if _ID.match(name) and type(argument.default) is int:
            return argument.default
    written = _NUMBER.search(text)
    if written is not None:
        return int(written[written.lastindex or 0])
    rows = next((part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)), 0)
    return rows - 1 if _HIGHEST.search(text) and rows else None
