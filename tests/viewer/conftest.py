"""Records to show, and a reader of the page's data that knows the format but shares no code with the page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.records import AttentionRecord
from headwise.text import Tokens
from headwise.viewer import TextAttention


def record(
    heads: int = 2, kv_heads: int = 2, length: int = 9, dim: int = 4, *, size: float = 1.0, **options: Any
) -> AttentionRecord:
    q = size * torch.randn(1, heads, length, dim)
    k = size * torch.randn(1, kv_heads, length, dim)
    return headwise.attention(q, k, k, record=True, **options)[1]


def tokens(labels: list[str]) -> Tokens:
    """One token a label, with a space between any two."""
    starts = np.cumsum([0, *(len(label) + 1 for label in labels)])[:-1].tolist()
    offsets = tuple((start, start + len(label)) for start, label in zip(starts, labels, strict=True))
    no = (False,) * len(labels)
    return Tokens(tuple(range(len(labels))), tuple(labels), offsets, no, " ".join(labels), 0, no)


def look(*records: AttentionRecord, labels: list[str] | None = None) -> TextAttention:
    length = records[0].shape[2]
    return TextAttention(tokens(labels or [f"w{i}" for i in range(length)]), records, range(len(records)))


def random_mask(*shape: int) -> masks.Mask:
    return masks.from_tensor(torch.rand(shape) < 0.5)


def few_large_rows() -> AttentionRecord:
    q, k = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    q[:, 1, 2:4] *= 60  # only head 1 needs more than int16
    k[:, 1, 5] *= 30
    return headwise.attention(q, k, k, record=True)[1]


def nan_in_a_padded_key() -> AttentionRecord:
    q, k = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    k[:, :, 8] = torch.nan
    return headwise.attention(q, k, torch.randn(1, 2, 9, 4), mask=masks.padding(torch.tensor([8])), record=True)[1]


def empty_row() -> AttentionRecord:
    allowed = torch.ones(9, 9, dtype=torch.bool)
    allowed[3] = False
    return record(mask=masks.from_tensor(allowed))


HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "a\u2028b",
    '"',
    "&lt;",
    "-->",
    "\\u003c",
    "{{",
    "🙂",
]

CASES: dict[str, Callable[[], AttentionRecord]] = {
    "plain": record,
    "one token": lambda: record(length=1),
    "causal": lambda: record(mask=masks.causal()),
    "window": lambda: record(mask=masks.window(2, 1)),
    "padding": lambda: record(mask=masks.padding(torch.tensor([6]))),
    "documents": lambda: record(mask=masks.documents(torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]))),
    "random mask": lambda: record(mask=random_mask(9, 9)),
    "a mask for each head": lambda: record(heads=4, mask=random_mask(1, 4, 9, 9)),
    "an empty row": empty_row,
    "NaN in a padded key": nan_in_a_padded_key,
    "grouped queries": lambda: record(heads=6, kv_heads=2, mask=masks.causal()),
    "scale and softcap": lambda: record(scale=2.0, softcap=3.0),
    "sinks": lambda: record(sinks=torch.tensor([0.5, 3.0])),
    "zeros": lambda: record(size=0.0),
    "a few large rows": few_large_rows,
    "large scores": lambda: record(length=64, dim=16, size=8.0),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> AttentionRecord:
    torch.manual_seed(1)
    return CASES[request.param]()


@dataclass
class Page:
    source: str
    blocks: dict[str, bytes] = field(init=False)
    facts: dict[str, Any] = field(init=False)

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def __post_init__(self) -> None:
        found = re.findall(r'<script type="text/plain" id="(.+?)">(.*?)</script>', self.source)
        self.blocks = {name: base64.b64decode(data, validate=True) for name, data in found}
        data = re.search(r'<script type="application/json" id="facts">(.*?)</script>', self.source)
        assert data is not None
        self.facts = json.loads(data[1])

    def weights(self, text: int, layer: int) -> np.ndarray:
        """What the page will draw, [H, Q, K]."""
        words, facts = self.facts["texts"][text], self.facts["texts"][text]["layers"][layer]
        n, dim, size = len(words["labels"]), facts["dim"], facts["heads"] // facts["kvHeads"]
        heads = []
        for number, group in enumerate(facts["groups"]):
            data, offset = self.blocks[f"text{text}-layer{facts['layer']}-group{number}"], 0

            def take(kind: str, *shape: int) -> np.ndarray:
                nonlocal offset
                array = np.frombuffer(data, kind, int(np.prod(shape)), offset)  # noqa: B023
                offset += array.nbytes
                return array.astype(np.float64).reshape(shape)

            lse, q_scale, k_scale = take("<f4", size, n, 1), take("<f4", size, n, 1), take("<f4", n, 1)
            q, k = take("<i2", size, n, dim), take("<i2", n, dim)
            if group["bits"] == 24:
                q, k = 256 * q + take("u1", size, n, dim), 256 * k + take("u1", n, dim)
            scores = (q * q_scale) @ (k * k_scale).T * facts["scale"]
            assert offset == len(data)
            if facts["softcap"] is not None:
                scores = facts["softcap"] * np.tanh(scores / facts["softcap"])
            with np.errstate(invalid="ignore"):
                heads.extend(np.exp(scores - np.where(np.isfinite(lse), lse, 0)))
        planes = facts["planes"] or []
        for head in range(len(heads) if planes else 0):
            heads[head] = np.where(self.plane(text, planes[head % len(planes)], n), heads[head], 0)
        return np.stack(heads)

    def plane(self, text: int, number: int, n: int) -> np.ndarray:
        numbers = np.frombuffer(self.blocks[f"text{text}-plane{number}"], "<u4")
        allowed = np.zeros((n, n), bool)
        for row in range(n):
            for first, past in numbers[n + 1 :].reshape(-1, 2)[numbers[row] : numbers[row + 1]]:
                allowed[row, first:past] = True
        return allowed
