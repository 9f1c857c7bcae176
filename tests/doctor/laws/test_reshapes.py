"""Views and reshapes in the place of a transpose, and those that are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, altered, found, one, seeded
from tests.doctor.laws.styles import Einsum, Plain, SharedByHeads

LAW = "reshapes"


class Hops(nn.Module):
    """Structured self-attention (Lin et al. 2017): each of 4 hops pools the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.second(self.first(x).tanh()).softmax(1)  # [B, N, 4]
        return self.turned(weights) @ x

    def turned(self, weights: Tensor) -> Tensor:
        return weights.transpose(1, 2)


class Window(Plain):
    """Five tokens, with a learned bias for each head and distance."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))
        at = torch.arange(5)
        self.register_buffer("index", at[:, None] - at + 4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.bias(self.table[self.index.flatten()])

    def bias(self, gathered: Tensor) -> Tensor:
        return gathered.view(5, 5, 4).permute(2, 0, 1)


class Maps(Attention):
    """x: [B, C, H, W]"""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(x)
        return x + self.attend(tokens, tokens, None).transpose(1, 2).reshape(x.shape)

    def tokens(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


@pytest.mark.parametrize(
    ("kind", "methods", "said"),
    [
        # The second token starts at number 4 of [5, 4]; that is number 4 of the first row of [4, 5].
        (
            Hops,
            {"turned": lambda self, weights: weights.view(len(weights), 4, -1)},
            "[3, 5, 4] to [3, 4, 5] exchanges no axes, it only reads the same numbers in order: what was at [0, 1, 0] "
            "is at [0, 0, 4]",
        ),
        (Window, {"bias": lambda self, gathered: gathered.view(4, 5, 5)}, "[25, 4] to [4, 5, 5]"),
        (Maps, {"tokens": lambda self, x: x.reshape(len(x), -1, 16)}, "a view or reshape of [3, 16,"),
    ],
)
def test_a_view_in_the_place_of_a_transpose(kind: type[nn.Module], methods: dict[str, Any], said: str) -> None:
    finding = one(LAW, altered(kind, **methods))
    assert (finding.name, finding.severity) == ("reshape-scrambles", "bug")
    assert said in finding.evidence
    assert finding.where.file == __file__


class Shifted(Plain):
    """A score of each query with each of 2 N - 1 or 2 N distances, shifted as Transformer-XL does."""

    more = 0  # distances

    def __init__(self) -> None:
        super().__init__()
        self.distances = nn.Parameter(torch.randn(64, 4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        count = 2 * q.shape[-2] - 1 + self.more
        return super().score(q, k) + self.shifted(q @ self.distances[:count].T)

    def shifted(self, scores: Tensor) -> Tensor:
        n = scores.shape[-2]
        padded = functional.pad(scores, (1, 0))  # [B, H, N, 2 N]
        return padded.reshape(*padded.shape[:2], 2 * n, n)[:, :, 1:].reshape(scores.shape)[..., :n]


def _without(dropped: int) -> Any:
    """As XLNet does it, without padding: this number of rows is dropped."""

    def shifted(self: Any, scores: Tensor) -> Tensor:
        b, h, n, m = scores.shape
        return scores.reshape(b, h, m, n)[:, :, dropped:].reshape(b, h, n, m - dropped)[..., :n]

    return shifted


@pytest.mark.parametrize(
    "module",
    [
        *map(seeded, (Attention, Einsum, SharedByHeads, Hops, Window, Maps, Shifted)),
        altered(Shifted, shifted=_without(1)),
        altered(Shifted, shifted=_without(2), more=1),
    ],
)
def test_what_splits_and_merges_or_shifts_is_right(module: nn.Module) -> None:
    assert found(LAW, module) == []
