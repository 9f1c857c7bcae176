"""Masks that hide the near future and show the far one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.calling.example import as_example
from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded

NAME = "far_future"


class Packed(Cross):
    """New tokens of several requests, and the kept and new keys of each, one request after the other."""

    window = 2

    def forward(self, new: Tensor, context: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        scores = self.score(self.split(self.q(new)), self.split(self.k(context)))
        mask = torch.full(scores.shape[-2:], -torch.inf)
        for q, q_end, k, k_end in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
            mask[q:q_end, k:k_end] = self.hidden(int(q_end - q), int(k_end - k))
        return self.out(self.merge((scores + mask).softmax(-1) @ self.split(self.v(context))))

    def hidden(self, queries: int, keys: int) -> Tensor:
        mask = torch.full((queries, keys), -1e9).triu(keys - queries + 1)
        return self.cut(mask, keys - queries)

    def cut(self, mask: Tensor, offset: int) -> Tensor:
        return mask.tril(offset + self.window)


class PackedWindow(Packed):
    def cut(self, mask: Tensor, offset: int) -> Tensor:
        return mask + torch.full_like(mask, -1e9).tril(offset - self.window)


class SeesBothSides(Packed):
    """A band: the far future is hidden, too."""

    def hidden(self, queries: int, keys: int) -> Tensor:
        return torch.full((queries, keys), -1e9).triu(keys - queries + self.window)


class Skips(Attention):
    """Every second key: rows have many gaps."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        at = torch.arange(scores.shape[-1])
        return scores.masked_fill((at[:, None] - at) % 2 != 0, -1e9)


EXAMPLE = as_example((torch.randn(1, 9, 16), torch.randn(1, 12, 16), torch.tensor([0, 7, 9]), torch.tensor([0, 7, 12])))


def test_the_far_future_is_seen() -> None:
    finding = one(NAME, seeded(Packed), example=EXAMPLE)
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert finding.numbers == {"queries": 4, "hidden": 2}
    assert "query 0 to 0 … 0 and from 3 on" in finding.evidence


@pytest.mark.parametrize("kind", [PackedWindow, SeesBothSides])
def test_healthy_packed_masks(kind: type[Packed]) -> None:
    assert found(NAME, seeded(kind), example=EXAMPLE) == []


def test_healthy_masks_of_one_sequence() -> None:
    assert found(NAME, seeded(Skips)) == []
    assert found(NAME, seeded(Attention)) == []
    with pytest.raises(NotApplicable):  # that it leaks is seen without reading
        found(NAME, seeded(Causal))


class NotItself(Attention):
    """No token sees itself."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, ~torch.eye(x.shape[1], dtype=torch.bool))


class NotTheNext(Attention):
    """No token sees the next one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, ~torch.eye(x.shape[1], dtype=torch.bool).roll(1, 1) | torch.eye(x.shape[1]).bool())


def test_a_diagonal_that_is_masked() -> None:
    assert found(NAME, seeded(NotItself)) == []
    assert one(NAME, seeded(NotTheNext)).name == "causal-leak"
