"""Heads merged across positions, and output projections that are not used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Cross, found, one, seeded
from tests.doctor.checks.styles import Einsum, Plain, assert_at


class MergesByAReshape(Plain):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), x.shape[2], -1)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        merged = self.merge((q @ k.mT / 2).softmax(-1) @ v)
        return self.out(merged)


class TurnsAndFlattens(Einsum):
    """[B, H, N, D] -> [B, D, N, H] -> rows."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkhd->bdqh", weights, v).contiguous()


class WithoutProjection(Plain):
    def __init__(self) -> None:
        super().__init__()
        del self.out

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return ((q @ k.mT / 2).softmax(-1) @ v).contiguous().view(x.shape)


def test_heads_merged_without_a_transpose() -> None:
    finding = one("head_merge", seeded(MergesByAReshape))
    assert (finding.name, finding.severity) == ("head-merge", "bug")
    assert "comes from positions [0, 1, 2, 3]" in finding.evidence  # 4 heads x 5 positions x 4 features, in rows of 16
    assert_at(finding, MergesByAReshape, "return self.out(merged)")


def test_heads_merged_inside_out_across_positions() -> None:
    finding = one("head_merge", seeded(TurnsAndFlattens))
    assert (finding.name, finding.severity) == ("head-merge", "bug")


def test_heads_merged_wrongly_where_no_projection_follows() -> None:
    finding = one("head_merge", seeded(WithoutProjection))
    assert (finding.name, finding.severity) == ("head-merge", "bug")
    assert "the output at position 0 comes from the queries at positions [0, 1, 2, 3]" in finding.evidence


class ForgetsTheProjection(Plain):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.merge((q @ k.mT / 2).softmax(-1) @ v)


class ForgetsProj(Einsum):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        return self.mix((torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1), v).flatten(2)


@pytest.mark.parametrize(("module", "name"), [(ForgetsTheProjection, "out"), (ForgetsProj, "proj")])
def test_an_output_projection_that_nothing_is_multiplied_by(module: type[nn.Module], name: str) -> None:
    finding = one("head_merge", seeded(module))
    assert (finding.name, finding.severity) == ("output-projection-missing", "bug")
    assert f"{name}.weight [16, 16] exists" in finding.evidence
    assert_at(finding, module, f"class {module.__name__}")


# Healthy.


class OutputByHead(Einsum):
    """Each head has its own [D, M]; they are summed."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1)
        by_head = self.proj.weight.view(-1, self.num_heads, self.head_dim)
        return torch.einsum("bhqk,bkhd,ohd->bqo", weights, v, by_head) + self.proj.bias


class FeaturesBeforeHeads(Einsum):
    """Within a position: an order of features like another, which the projection learns."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkhd->bqdh", weights, v)


class NoProjectionAtAll(WithoutProjection):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.merge((q @ k.mT / 2).softmax(-1) @ v)


class InABlock(Plain):
    """Residual, norm and a feed-forward network behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.attend(x, x, None))
        return x + self.down(self.up(x).relu())


class SequenceFirst(Einsum):
    """x: [seq, batch, width]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = (torch.einsum("qbhd,kbhd->bhqk", q, k) / 2).softmax(-1)
        return self.proj(torch.einsum("bhqk,kbhd->qbhd", weights, v).flatten(2))


@pytest.mark.parametrize(
    "module", [Plain, Einsum, OutputByHead, FeaturesBeforeHeads, NoProjectionAtAll, InABlock, Cross, SequenceFirst]
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("head_merge", seeded(module)) == []


class OneNumberAToken(Plain):
    """A logit for each token, [B, N]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(super().forward(x)).squeeze(-1)
        return logits


def test_one_number_a_token_is_no_row_of_features() -> None:
    assert found("head_merge", seeded(OneNumberAToken)) == []
    assert found("laws.sizes", seeded(OneNumberAToken)) == []
