"""Weights that the model changed after the softmax: `record.used_weights()`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.errors import ArgumentError, RecordError

H, Q, D = 2, 5, 4


class TalkingHeads(nn.Module):
    """Shazeer et al. 2020: heads are mixed before and after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.num_heads = nn.Linear(H * D, 3 * H * D), H
        self.before, self.after = (nn.Parameter(torch.randn(H, H)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        softmax = torch.einsum("bhij,hg->bgij", q @ k.mT, self.before).softmax(-1)
        used = torch.einsum("bhij,hg->bgij", softmax, self.after)
        return used @ v, softmax, used


@torch.no_grad()
def test_the_softmax_and_what_the_model_made_of_it(tmp_path) -> None:
    model = TalkingHeads()
    with headwise.watch(model) as seen:
        _, softmax, used = model(torch.randn(3, Q, H * D))
    (record,) = seen.records
    torch.testing.assert_close(record.weights(), softmax)
    assert torch.equal(record.used_weights(), used)
    assert torch.equal(record.used_weights([-1], slice(1, 3), 0), used[:, :1, -1:, 1:3])
    (site,) = seen.coverage()
    assert site.status == "seen"
    assert "used_weights()" in site.how
    with pytest.raises(ArgumentError, match=r"heads must lie in 0 … 1\. Received: heads=2"):
        record.used_weights(heads=2)

    seen.save(tmp_path / "seen.hw")
    (read,) = headwise.load(tmp_path / "seen.hw").records
    assert torch.equal(read.used_weights(), used)
    torch.testing.assert_close(read.weights(), softmax)
    used.zero_()
    with pytest.raises(RecordError, match="the weights that met the values of this record were changed in place"):
        record.used_weights()
    record.weights()


@torch.no_grad()
def test_weights_that_were_not_changed_are_those_that_were_used() -> None:
    record = headwise.AttentionRecord(headwise.call.make_call(*torch.randn(3, 1, H, Q, D)))
    assert torch.equal(record.used_weights([1, 3], 2), record.weights([1, 3], 2))


class Differential(nn.Module):
    """Ye et al. 2024, by hand: softmax(0, log 3) = (1/4, 3/4), less half of softmax(0, 0)."""

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        one, two = torch.eye(2)[None, None], torch.zeros(1, 1, 2, 2)
        weights = (one @ scores.mT).softmax(-1) - 0.5 * (two @ scores.mT).softmax(-1)
        return weights @ x


@torch.no_grad()
def test_a_difference_of_two_softmaxes_is_two_records() -> None:
    model, log3 = Differential(), torch.tensor(3.0).log()
    with headwise.watch(model) as seen:
        model(torch.randn(1, 1, 2, 3), torch.tensor([[[[0.0, log3], [log3, 0.0]]]]))
    first, second = seen.records
    torch.testing.assert_close(first.weights()[0, 0], torch.tensor([[0.25, 0.75], [0.75, 0.25]]))
    torch.testing.assert_close(second.weights()[0, 0], torch.full((2, 2), 0.5))
    for record in (first, second):
        torch.testing.assert_close(record.used_weights()[0, 0], torch.tensor([[0.0, 0.5], [0.5, 0.0]]))
    assert [(site.name, site.status) for site in seen.coverage()] == [
        ("Differential", "seen"),
        ("Differential#2", "seen"),
    ]


class Sigmoid(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.sigmoid(q @ k.mT) @ v


@torch.no_grad()
def test_the_weights_of_sigmoid_attention_are_shares_of_each_row() -> None:
    model, (q, k, v) = Sigmoid(), torch.randn(3, 1, H, Q, D)
    with headwise.watch(model) as seen:
        model(q, k, v)
    expected = torch.sigmoid(q @ k.mT)
    assert torch.equal(seen[0].used_weights(), expected)
    torch.testing.assert_close(seen[0].weights(), expected / expected.sum(-1, keepdim=True))


@torch.no_grad()
def test_what_is_kept_is_counted_and_what_cannot_be_kept_is_said() -> None:
    model, x = TalkingHeads(), torch.randn(1, Q, H * D)
    long = torch.randn(1, 50, H * D)  # q, k and v are 4,800 bytes, the mixed scores 20,000, and the weights used too
    with pytest.raises(RecordError, match="max_bytes"), headwise.watch(model, max_bytes=40_000):
        model(long)
    with headwise.watch(model, max_bytes=50_000):
        model(long)
    with headwise.watch(model, values=True) as seen:
        model(x)
    assert not seen.records
    (site,) = seen.coverage()
    assert site.status == "refused"
    assert "which is not supported with values=True" in site.how
    with headwise.watch(model, statistics=["entropy"], keep=False) as seen:
        softmax = model(x)[1]
    torch.testing.assert_close(seen[0].entropy(), torch.special.entr(softmax).sum(-1))
    with pytest.raises(RecordError, match="keep=False"):
        seen[0].used_weights()


class Layer(nn.Module):
    """Attention with projections; `attend(q, k, v)` of [B, H, Q, D] each."""

    def __init__(self, attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.num_heads, self.attend = *(nn.Linear(8, 16) for _ in range(3)), H, attend

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*(each(x).unflatten(-1, (H, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)))


@torch.no_grad()
def test_an_attention_beside_one_that_was_changed() -> None:
    """Both are of the same queries, and whole."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v + ((q @ v.mT).softmax(-1) * 0.5) @ k

    model = Layer(attend)
    with headwise.watch(model) as seen:
        model(torch.randn(2, Q, 8))
    first, second = seen.records
    assert torch.equal(first.used_weights(), first.weights())
    assert torch.equal(second.used_weights(), second.weights() * 0.5)
