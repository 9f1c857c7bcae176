"""The counter of a model's own softmaxes, on modules that a reader can follow; the judge, on records that are wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise.records import AttentionRecord, CallSite
from tests.versions import since

since("transformers", "5.20")

from tests.capture.families.compare import judged  # noqa: E402
from tests.capture.families.truth import Truth  # noqa: E402

Forward = Callable[["Layer", Tensor], Tensor]


class Layer(nn.Module):
    """Projections of [B, N, 8] that `forward` puts together."""

    def __init__(self, how: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o, self.few = (nn.Linear(8, n) for n in (8, 8, 8, 8, 3))
        self.memory = nn.Parameter(torch.randn(5, 8))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def run(how: Forward) -> Truth:
    model = Layer(how)
    truth = Truth(model)
    with truth.watching():
        model(torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1)))
    return truth


def plain(m: Layer, x: Tensor) -> Tensor:
    return m.o(torch.softmax(m.q(x) @ m.k(x).mT, -1) @ m.v(x))


def fused(m: Layer, x: Tensor) -> Tensor:
    q, k, v = (p(x).view(2, 6, 2, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
    return m.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def into_a_buffer(m: Layer, x: Tensor) -> Tensor:
    scores = torch.zeros(2, 6, 6)
    for b in range(2):
        scores[b, :, 2:] = m.q(x[b]) @ m.k(x[b, 2:]).mT
    scores += 1.0
    weights = torch.empty_like(scores)
    torch.softmax(scores, -1, out=weights)
    return torch.cat([weights, weights], 1)[:, 6:] @ m.v(x)


def by_mul_and_sum(m: Layer, x: Tensor) -> Tensor:
    w = torch.softmax(m.q(x) @ m.k(x).mT, -1)
    return (w[..., None] * m.v(x)[:, None]).sum(2)


def by_log_softmax(m: Layer, x: Tensor) -> Tensor:
    return torch.log_softmax(m.q(x) @ m.k(x).mT, -1).exp() @ m.v(x)


def in_pieces(m: Layer, x: Tensor) -> Tensor:
    return torch.cat([torch.softmax(q @ m.k(x).mT, -1) @ m.v(x) for q in m.q(x).split(3, 1)], 1)


@pytest.mark.parametrize(
    ("how", "count", "shape"),
    [
        (plain, 1, (2, 6, 6)),
        (fused, 1, (2, 2, 6, 6)),
        (into_a_buffer, 1, (2, 6, 6)),
        (by_mul_and_sum, 1, (2, 6, 6)),
        (by_log_softmax, 1, (2, 6, 6)),
        (in_pieces, 2, (2, 3, 6)),
    ],
)
def test_attention_is_counted_however_it_is_written(how: Forward, count: int, shape: tuple[int, ...]) -> None:
    truth = run(how)
    assert [tuple(entry.rows.shape) for entry in truth.attention] == [shape] * count
    for entry in truth.attention:
        torch.testing.assert_close(entry.rows.sum(-1), torch.ones(shape[:-1]))
        assert entry.module == "Layer"
    assert truth.gates == []
    assert truth.fused == []


def router(m: Layer, x: Tensor) -> Tensor:
    w = torch.softmax(m.few(x), -1)
    experts = torch.stack([m.q(x), m.k(x), m.v(x)], -1)
    return (w[:, :, None] * experts).sum(-1)


def pooled(m: Layer, x: Tensor) -> Tensor:
    return torch.softmax(m.few(x), 1).mT @ m.v(x)


def after_attention(m: Layer, x: Tensor) -> Tensor:
    return pooled(m, m.o(functional.layer_norm(x + plain(m, x), [8])))


@pytest.mark.parametrize(("how", "attention", "gates"), [(router, 0, 1), (pooled, 0, 1), (after_attention, 1, 1)])
def test_a_gate_is_none(how: Forward, attention: int, gates: int) -> None:
    truth = run(how)
    assert (len(truth.attention), len(truth.gates)) == (attention, gates)


def classifier(m: Layer, x: Tensor) -> Tensor:
    return torch.softmax(m.q(x) @ m.k(x).mT, -1)


def of_a_codebook(m: Layer, x: Tensor) -> Tensor:
    return torch.softmax(m.q(x) @ m.memory.mT, -1) @ m.memory


def state_space(m: Layer, x: Tensor) -> Tensor:
    decay = torch.exp(m.q(x)[..., None] * -torch.exp(m.memory.mT))  # [B, N, 8, 5]
    return (decay * m.v(x)[..., None]).sum(-1)


def hyper_connection(m: Layer, x: Tensor) -> Tensor:
    """Streams made of an outer product, their norm beside the scores: those are of a layer, the norm is no score."""
    streams = m.q(x)[:, :, :, None] * m.few(x)[:, :, None]  # [B, N, 8, 3]
    norm = streams.pow(2).mean(2).mean(-1, keepdim=True).rsqrt()
    return (torch.sigmoid(m.few(streams.mean(-1)) * norm)[:, :, None] * streams).sum(-1)


@pytest.mark.parametrize("how", [state_space, hyper_connection, classifier, of_a_codebook])
def test_what_is_not_contracted_with_activations_is_nothing(how: Forward) -> None:
    truth = run(how)
    assert truth.attention == []
    assert truth.gates == []


# The judge.


@pytest.fixture
def seen() -> tuple[Truth, list[AttentionRecord], list[CallSite]]:
    model = Layer(fused)
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), headwise.watch(model) as found:
        model(x)
    truth = Truth(model)
    with truth.watching():
        model(x)
    return truth, list(found), list(found.coverage())


Seen = tuple[Truth, list[AttentionRecord], list[CallSite]]


def verdicts(truth: Truth, records: list[AttentionRecord], sites: list[CallSite]) -> list[str]:
    return [finding.verdict for finding in judged(truth, records, sites)[0]]


def test_the_judge_finds_what_is_exact(seen: Seen) -> None:
    assert verdicts(*seen) == ["exact"]


def test_a_record_less_is_silent_unless_the_coverage_names_it(seen: Seen) -> None:
    truth, _, _ = seen
    assert verdicts(truth, [], []) == ["silent"]
    for status, verdict in (("refused", "refused"), ("missed", "not understood")):
        assert verdicts(truth, [], [CallSite("Layer", status, 1, "a reason")]) == [verdict]  # type: ignore[arg-type]
    for site in (CallSite("Elsewhere", "refused", 1, ""), CallSite("Layer", "refused", 0, "")):
        assert verdicts(truth, [], [site]) == ["silent"]


@pytest.mark.parametrize("change", ["scale", "order of queries", "order of keys", "heads"])
def test_a_wrong_record_is_wrong(seen: Seen, change: str) -> None:
    truth, (record,), sites = seen
    call = record.call
    if change == "scale":
        call = dataclasses.replace(call, scale=call.scale * 1.01)
    elif change == "order of queries":
        call = dataclasses.replace(call, q=call.q.flip(2))
    elif change == "order of keys":
        call = dataclasses.replace(call, k=call.k.flip(2))
    else:
        call = dataclasses.replace(call, k=call.k.flip(1))
    assert verdicts(truth, [AttentionRecord(call, site=record.site)], sites) == ["wrong"]


def test_a_record_too_many_is_wrong(seen: Seen) -> None:
    truth, records, sites = seen
    assert verdicts(truth, records * 2, sites) == ["exact", "wrong"]
