"""Masked keys that keep a weight, where queries and keys are the same tokens, or the output is pooled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Padded(Attention):
    """padding_mask: [B, N], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if padding_mask is None else padding_mask[:, None, None])


class ClearsTokens(Padded):
    """padding_mask: [B, N], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = x if padding_mask is None else x * padding_mask[..., None]
        return self.attend(x, x, None)


class Pool(nn.Module):
    """lengths: [B], the number of real tokens of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(x.shape[1]) < lengths[:, None]
        weights = self.hidden(self.key(x) @ self.query / 4, real).softmax(-1)
        return self.out((weights[:, None] @ x)[:, 0])

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real, -torch.inf)


class PoolOfZeros(Pool):
    """lengths: [B], the number of real tokens of each example."""

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores * real


@pytest.mark.parametrize("kind", [ClearsTokens, PoolOfZeros])
def test_padding_that_keeps_a_weight(kind: type[nn.Module]) -> None:
    finding = one("masked_weight", seeded(kind))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")


class Pointers(Padded):
    """padding_mask: [B, N], True = a real token. Gives a number for each token, and so a narrower output for fewer."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(self.score(self.split(self.q(x)), self.split(self.k(x))), allowed).softmax(-1).mean(1)


@pytest.mark.parametrize("kind", [Padded, Pool, Pointers])
def test_padding_that_is_hidden(kind: type[nn.Module]) -> None:
    assert found("masked_weight", seeded(kind)) == []


class OfOneQuery(nn.Module):
    """Bahdanau et al. 2015.

    query: [B, 8]; keys: [B, T, 12]; mask: [B, T] float, 1 for valid positions, 0 for padding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_query, self.of_keys, self.v = nn.Linear(8, 16), nn.Linear(12, 16), nn.Linear(16, 1)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        energy = self.v(torch.tanh(self.of_query(query)[:, None] + self.of_keys(keys)))[..., 0]
        weights = self.weigh(energy, mask)
        return (weights[:, None] @ keys)[:, 0], weights

    def weigh(self, energy: Tensor, mask: Tensor | None) -> Tensor:
        return (energy if mask is None else energy.masked_fill(mask == 0, -torch.inf)).softmax(-1)


class MasksItsWeights(OfOneQuery):
    """query: [B, 8]; keys: [B, T, 12]; mask: [B, T] float, 1 for valid positions, 0 for padding."""

    def weigh(self, energy: Tensor, mask: Tensor | None) -> Tensor:
        return energy.softmax(-1) * (1 if mask is None else mask)


def test_a_mask_after_the_softmax_of_one_query() -> None:
    finding = one("masked_weight", seeded(MasksItsWeights))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert headwise.diagnose(seeded(OfOneQuery)).healthy


class MixedAfterTheMask(Padded):
    """padding_mask: [B, N], True = a real token."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 1, bias=False)
        self.mix.weight = nn.Parameter(torch.diag(torch.tensor([1.0, 1.0, -1.0, -1.0]))[..., None, None])

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        filled = scores if allowed is None else scores.masked_fill(~allowed, -1e4)
        mixed: Tensor = self.mix(filled)
        return mixed


def test_what_the_mask_says_is_padding_changes_other_rows() -> None:
    """Heads are mixed between the mask and the softmax, and two of them turn the lowest score into the highest."""
    finding = one("masked_weight", seeded(MixedAfterTheMask))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert "says that the last token is padding" in finding.evidence


class Pools(Attention):
    """A vector of each sentence: nothing is said of the mask but its name."""

    def __init__(self) -> None:
        super().__init__()
        self.score_of = nn.Linear(16, 1)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        scores = self.score_of(x.tanh())  # [B, N, 1]
        return (self.weights(scores, attention_mask) * x).sum(1)

    def weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores if mask is None else scores.masked_fill(~mask.bool()[..., None], -torch.inf)).softmax(1)


class PoolsAfterwards(Pools):
    def weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores.softmax(1) if mask is None else scores.softmax(1) * mask[..., None]


def test_scores_of_one_learned_query_can_be_examined() -> None:
    assert headwise.diagnose(Pool()).bugs == ()


def test_a_pool_that_masks_its_weights() -> None:
    finding = one("masked_weight", seeded(PoolsAfterwards))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert found("masked_weight", seeded(Pools)) == []


class Gates(Attention):
    """Nodes that are not connected exchange nothing; adjacency [B, N, N], True where there is an edge."""

    fill_value = 0.0

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        q, k, v = (self.split(w(nodes)) for w in (self.q, self.k, self.v))
        gates = self.score(q, k).masked_fill(~adjacency[:, None].bool(), self.fill_value).sigmoid()
        return nodes + self.out(self.merge(gates @ v))


class GatesOfMinusInfinity(Gates):
    """Nodes that are not connected exchange nothing; adjacency [B, N, N], True where there is an edge."""

    fill_value = -torch.inf


def test_an_edge_that_is_not_there() -> None:
    assert one("masked_weight", seeded(Gates)).severity == "bug"
    with pytest.raises(NotApplicable):
        found("masked_weight", seeded(GatesOfMinusInfinity))


class LuongDecoder(nn.Module):
    """One step of a decoder with global attention (Luong et al. 2015).

    token:       (batch,) the target token before
    hidden:      (1, batch, hidden)
    enc_outputs: (src_len, batch, hidden)
    src_mask:    (batch, src_len), 0 on <pad>
    """

    def __init__(self, fill: float = -1e9, of_the_batch: bool = False) -> None:
        super().__init__()
        self.fill, self.of_the_batch = fill, of_the_batch
        self.embedding, self.rnn = nn.Embedding(40, 8), nn.GRU(8, 16)
        self.w, self.mix, self.out = nn.Linear(16, 16, bias=False), nn.Linear(32, 16), nn.Linear(16, 40)

    def forward(
        self, token: Tensor, hidden: Tensor, enc_outputs: Tensor, src_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output, hidden = self.rnn(self.embedding(token)[None], hidden)
        scores = (self.w(enc_outputs) * output).sum(-1)  # (src_len, batch)
        if src_mask is not None:
            scores = scores.masked_fill(src_mask.mT == 0, self.fill)
        weights = scores.softmax(1 if self.of_the_batch else 0)
        read = (weights[..., None] * enc_outputs).sum(0)
        return self.out(self.mix(torch.cat([read, output[0]], -1)).tanh()), hidden


def test_a_step_of_a_decoder() -> None:
    """Its state is (1, batch, hidden), it returns logits beside the new state, and its RNN begins from 0."""
    healthy = headwise.diagnose(seeded(LuongDecoder))
    assert not healthy.bugs
    assert not any("Error" in reason for reason in healthy.unchecked.values()), healthy.unchecked
    assert [x.name for x in headwise.diagnose(seeded(LuongDecoder, 1e-10)).bugs] == ["mask-fill-too-small"]
    assert "batch-mixing" in {x.name for x in headwise.diagnose(seeded(LuongDecoder, of_the_batch=True)).bugs}


class Neighbours(nn.Module):
    """A GAT layer. adj: [B, N, N] of 0 and 1, with self-loops; adj[b, i, j] = 1 if i receives from j."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.start, self.end = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.lin(x)
        scores = nn.functional.leaky_relu(self.end(h) + self.start(h).mT, 0.2)
        return self.joined(scores, adj).softmax(-1) @ h

    def joined(self, scores: Tensor, adj: Tensor) -> Tensor:
        return scores.masked_fill(adj == 0, -1e9)


class TimesAdjacency(Neighbours):
    """A GAT layer. adj: [B, N, N] of 0 and 1, with self-loops; adj[b, i, j] = 1 if i receives from j."""

    def joined(self, scores: Tensor, adj: Tensor) -> Tensor:
        return scores * adj


def test_an_adjacency_that_multiplies_the_scores() -> None:
    finding = one("masked_weight", seeded(TimesAdjacency))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert "`adj` joins the last token to no other" in finding.evidence
    assert headwise.diagnose(seeded(Neighbours)).bugs == ()
