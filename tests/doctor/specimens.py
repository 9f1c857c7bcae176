"""Code that nobody would want to run: for the tests of what the doctor does with it. They write it into a file."""

from __future__ import annotations

BEGIN = '''
import ctypes
import os
import time

import torch
from torch import nn


class Healthy(nn.Module):
    def __init__(self, width=16, heads=2, divide_by=None):
        super().__init__()
        self.heads, self.divide_by = heads, divide_by or (width // heads) ** 0.5
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, mask=None):
        """`mask`: [B, Q, K], True = may attend."""
        B, N, M = x.shape
        q, k, v = (f(x).view(B, N, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / self.divide_by
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, N, M))


class WrongScale(Healthy):
    def __init__(self, width=16, heads=2):
        super().__init__(width, heads, divide_by=width**0.5)
'''

FORWARDS = {
    "Loops": """
        while True:
            try:
                x = x + 1
            except Exception:
                pass
""",
    "Deaf": """
        while True:
            try:
                time.sleep(0.1)
            except BaseException:
                pass
""",
    "Exits": """
        raise SystemExit(4)
""",
    "Falls": """
        return ctypes.string_at(0)
""",
    "Eats": """
        kept = []
        while True:
            kept.append(torch.ones(5_000_000))
""",
    "Strings": """
        return "attention"
""",
}

CODE = BEGIN + "".join(
    f"\n\nclass {name}(Healthy):\n    def forward(self, x):{forward}" for name, forward in FORWARDS.items()
)


def line_of(text: str) -> int:
    """The number of the line that holds this text."""
    (found,) = [number for number, line in enumerate(CODE.splitlines(), start=1) if text in line]
    return found
