"""Relative positions that share an entry of their table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Window(Attention):
    """A window of 2 by 3 positions with a bias for each offset."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.window_size = (2, 3)
        self.relative_bias_table = nn.Parameter(torch.randn(3 * 5, 4))
        at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None]
        self.register_buffer("relative_index", (apart[0] + 1) * factor + apart[1] + 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.relative_bias_table[self.relative_index].permute(2, 0, 1)


class Buckets(Attention):
    """The same bias for distances of one bucket."""

    def __init__(self, sign: int = 1, both: bool = True) -> None:
        super().__init__()
        self.relative_bias = nn.Embedding(16, 4)
        self.sign, self.both = sign, both

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        back = self.sign * (torch.arange(n)[:, None] - torch.arange(n))
        bucket = back.abs().clamp(max=7) + 8 * (back < 0) if self.both else back.clamp(0, 15)
        return super().score(q, k) + self.relative_bias(bucket).permute(2, 0, 1)


class CausalBuckets(Buckets):
    """Sees no future."""

    def forward(self, x: Tensor) -> Tensor:
        return Causal.forward(self, x)


def test_an_index_with_wrong_strides() -> None:
    finding = one("relative_index", seeded(Window, 4))
    assert (finding.name, finding.severity) == ("relative-bias-shared", "bug")
    assert "relative_index has 13 different entries for the 15 offsets" in finding.evidence
    assert found("relative_index", seeded(Window, 5)) == []


@pytest.mark.parametrize(
    ("module", "sign", "word"), [(Buckets, 1, "after"), (Buckets, -1, "before"), (CausalBuckets, -1, "before")]
)
def test_one_bucket_for_a_side(module: type[nn.Module], sign: int, word: str) -> None:
    finding = one("relative_index", seeded(module, sign, False))
    assert (finding.name, finding.severity) == ("relative-bias-shared", "bug")
    assert f"all keys {word} the query have the same bias" in finding.evidence


@pytest.mark.parametrize(("module", "both"), [(Buckets, True), (CausalBuckets, True), (CausalBuckets, False)])
def test_buckets_of_what_is_seen(module: type[nn.Module], both: bool) -> None:
    assert found("relative_index", seeded(module, 1, both)) == []


def test_without_a_table() -> None:
    with pytest.raises(NotApplicable):
        found("relative_index", seeded(Attention))


class Square(Window):
    """A window of 3 by 3 positions, of which only the side is kept."""

    def __init__(self, factor: int) -> None:
        super().__init__(factor)
        self.window_size = 3
        self.relative_bias_table = nn.Parameter(torch.randn(25, 4))
        at = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None]
        self.register_buffer("relative_index", (apart[0] + 2) * factor + apart[1] + 2)


def test_a_square_window() -> None:
    assert one("relative_index", seeded(Square, 1)).numbers == {"entries": 9, "offsets": 25}
    assert found("relative_index", seeded(Square, 5)) == []
