"""Masks that a module makes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import found, one, seeded, triangle
from tests.doctor.laws.styles import Plain, assert_at

LAW = "visibility"


def apart(q: int, k: int) -> Tensor:
    return torch.arange(k) - torch.arange(q)[:, None]


class Filled(Plain):
    """What `allowed` says, of its tokens or of a memory."""

    number = -torch.inf

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        return self.attend(x, x if memory is None else memory, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k).masked_fill(~self.allowed(q.shape[2], k.shape[2]), self.number)

    def allowed(self, q: int, k: int) -> Tensor:
        return triangle(q, k)


class CausalFilled(Filled):
    pass


class OverMemory(Filled):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(x, memory, None)


def diagonal(n: int) -> Callable[[int, int], Tensor]:
    return lambda q, k: triangle(q, k, n)


def lowered(q: Tensor, k: Tensor) -> Tensor:
    """A mask of 0 and -inf where one of 1 and 0 is expected."""
    return q @ k.mT / 2 + (1 - torch.full((q.shape[2], q.shape[2]), -torch.inf).triu(1)) * -1e9


def capped(q: Tensor, k: Tensor) -> Tensor:
    return 5 * torch.tanh((q @ k.mT / 2).masked_fill(~triangle(q.shape[2], k.shape[2]), -torch.inf) / 5)


@pytest.mark.parametrize(
    ("kind", "parts", "name", "severity", "words"),
    [
        (Filled, {"allowed": diagonal(1)}, "causal-leak", "bug", "its diagonal is 1, expected 0"),
        (Filled, {"allowed": diagonal(2)}, "causal-leak", "risk", "its diagonal is 2"),  # a stream may look ahead
        (CausalFilled, {"allowed": diagonal(2)}, "causal-leak", "bug", "its diagonal is 2"),
        (Filled, {"allowed": diagonal(-1)}, "causal-leak", "bug", "the first position has no allowed key"),
        (Filled, {"allowed": lambda q, k: triangle(q, k).T}, "mask-polarity", "bug", "is reversed"),
        (Filled, {"allowed": lambda q, k: apart(q, k).abs() > 1}, "mask-polarity", "bug", "outside of a window"),
        (
            Filled,
            {"allowed": lambda q, k: triangle(q, k) | (apart(q, k) > 1)},
            "causal-leak",
            "bug",
            "not to the next 1",
        ),
        (Filled, {"is_causal": False}, "causal-unasked", "bug", "is_causal is False, but without a mask"),
        (Filled, {"number": -1500.0}, "mask-fill-too-small", "risk", "its own causal mask sets masked scores to only"),
        (Plain, {"score": capped}, "mask-fill-too-small", "bug", "to -5, which is an ordinary score"),
        (Plain, {"score": lowered}, "mask-polarity", "bug", "every score is lowered to -1e+09"),
        (OverMemory, {}, "causal-corner", "risk", "with 5 queries and 7 keys, the first query attends to key 0 alone"),
    ],
)
def test_a_mask_that_is_wrong(
    kind: type[nn.Module], parts: dict[str, Any], name: str, severity: str, words: str
) -> None:
    finding = one(LAW, seeded(kind, **parts))
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


def test_the_line_that_fills() -> None:
    assert_at(one(LAW, seeded(Filled, allowed=diagonal(1))), Filled, "return super().score(q, k).masked_fill(")


class InChunks(nn.Module):
    """Causal attention for three queries at a time."""

    def __init__(self, starts_over: bool) -> None:
        super().__init__()
        self.starts_over = starts_over
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        outs = []
        for start in range(0, n, 3):
            part = q[:, :, start : start + 3]
            allowed = triangle(part.shape[2], n, 0 if self.starts_over else start)
            outs.append((part @ k.mT / 8**0.5).masked_fill(~allowed, float("-inf")).softmax(-1) @ v)
        return self.out(torch.cat(outs, 2).transpose(1, 2).reshape(b, n, m))


def test_chunks_that_each_begin_at_key_0() -> None:
    finding = one(LAW, seeded(InChunks, starts_over=True))
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert "tril(diagonal=3) here" in finding.fix


@pytest.mark.parametrize(
    "module",
    [
        seeded(Filled),
        seeded(OverMemory, allowed=lambda q, k: triangle(q, k, k - q)),
        seeded(OverMemory, is_causal=True),  # torch's own is aligned so
        seeded(InChunks, starts_over=False),
        seeded(Filled, allowed=lambda q, k: ~torch.eye(q, k, dtype=torch.bool)),  # everyone but oneself
        seeded(Filled, allowed=lambda q, k: torch.arange(k) // 2 <= torch.arange(q)[:, None] // 2),  # blocks of two
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found(LAW, module) == []


def test_without_a_mask_of_its_own_there_is_nothing_to_check() -> None:
    with pytest.raises(NotApplicable, match="makes no mask"):
        found(LAW, Plain)
