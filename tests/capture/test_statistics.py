"""Statistics that are computed while a model runs: the numbers of a record, without its queries and keys."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise import masks
from headwise.capture.keep import digests
from headwise.errors import ArgumentError, HeadwiseError, RecordError
from headwise.records import AttentionRecord, Seen
from headwise.records.statistics import STATISTICS
from tests.capture.parity import IDS, REAL, SMALL, reachable

B, S, M, H = 2, 12, 32, 4

GROUPED = transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 2})
GPT_OSS = transformers.GptOssConfig(
    **{**SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
)


class Own(nn.Module):
    """headwise.nn, causal, with grouped heads."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = headwise.nn.MultiHeadAttention(M, H, num_kv_heads=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, mask=masks.causal())  # type: ignore[no-any-return]


class Written(nn.Module):
    """By hand, in several layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(M, M) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q = layer(x)
            x = x + (q @ x.mT / 5).softmax(-1) @ x
        return x


def x(seed: int = 0) -> Tensor:
    return torch.randn(B, S, M, generator=torch.Generator().manual_seed(seed))


def x_of(model: nn.Module) -> None:
    model(x())


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(M, H, M, batch_first=True), 2).eval()


def padded(model: nn.Module) -> None:
    model(input_ids=IDS, attention_mask=REAL)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], object]]] = {
    "headwise.nn": (Own, x_of),
    "by hand": (Written, x_of),
    "nn.MultiheadAttention": (
        lambda: nn.MultiheadAttention(M, H, batch_first=True),
        lambda model: model(x(), x(), x(), key_padding_mask=torch.arange(S).expand(B, S) < 3),
    ),
    "nn.TransformerEncoder": (encoder, x_of),
    "llama": (lambda: transformers.LlamaModel(GROUPED).eval(), padded),
    "gpt-oss": (lambda: transformers.GptOssModel(GPT_OSS).eval(), padded),  # learned sinks
}


def watched(model: nn.Module, run: Callable[[Any], object], **options: Any) -> Seen:
    with torch.no_grad(), headwise.watch(model, **options) as seen:
        run(model)
    return seen


def assert_same(answer: Any, expected: Any) -> None:
    """Which statistics are computed together may change the last digits."""
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_the_record(name: str, keep: bool) -> None:
    torch.manual_seed(0)
    model, run = MODELS[name][0](), MODELS[name][1]
    whole, seen = watched(model, run), watched(model, run, statistics="all", keep=keep)
    assert len(seen) > 0
    assert [(each.site, each.shape) for each in seen] == [(each.site, each.shape) for each in whole]
    assert seen.coverage().sites == whole.coverage().sites
    for record, expected in zip(seen, whole, strict=True):
        found = dict(record.statistics())
        assert found.keys() == STATISTICS.keys()
        for statistic, answer in expected.statistics():
            assert_same(found[statistic], answer)
        assert_same(record.lse, expected.lse)
        assert_same(record.entropy(), expected.entropy())
        assert_same(record.received(), expected.statistics().received)
        assert_same(record.offset_mass(1), expected.offset_mass(1))
        assert_same(record.pooled(64, "max"), expected.pooled(64, "max"))
        assert_same(record.top_k(3), expected.top_k(3))
    assert str(seen.summary()) == str(whole.summary())


def test_inside_the_context_the_model_is_the_same() -> None:
    model = encoder()
    with torch.no_grad():
        with headwise.watch(model):
            expected = model(x())
        with headwise.watch(model, statistics="all", keep=False) as seen:
            assert torch.equal(model(x()), expected)
            assert seen[0].entropy().shape == (B, H, S)


@pytest.mark.parametrize("trains", [False, True])
def test_nothing_of_the_size_of_the_queries_or_of_the_weights_is_kept(trains: bool) -> None:
    length, width = 300, 64

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor) -> None:
            functional.scaled_dot_product_attention(q, k, k, attn_mask=torch.where(allowed, bias, -torch.inf))

    model = Attention()
    q, k = torch.randn(2, 1, 2, length, width, requires_grad=trains)
    allowed, bias = torch.rand(length, length) < 0.9, torch.randn(1, 2, length, length)

    def most(found: object) -> tuple[int, int]:
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in reachable(found)}
        return max(storages.values()), sum(storages.values())

    with headwise.watch(model, statistics=["entropy", "received"], keep=False) as seen:
        model(q, k, allowed, bias)
        one, inside = most(seen._watcher.entries)  # type: ignore[attr-defined]
    answer = 4 * 2 * length  # bytes of one number a row
    assert one == answer
    assert inside <= 3 * answer + 8 * length  # and one number a key, from which the next step would be recognised
    assert most(seen.records) == (answer, 3 * answer)
    with headwise.watch(model) as whole:
        model(q, k, allowed, bias)
    assert most(whole.records)[0] >= 4 * length * length  # what is looked for is found


WEIGHTS: dict[str, Callable[[AttentionRecord], object]] = {
    "weights": lambda record: record.weights(),
    "columns": lambda record: record.weights(cols=[0]),
    "rows": lambda record: record.weights(rows=0),
    "scores": lambda record: record.scores(),
    "q": lambda record: record.q,
    "k": lambda record: record.k,
    "mask": lambda record: record.mask,
    "sinks": lambda record: record.sinks,
    "page": lambda record: headwise.view(Seen([record])),
    "save": lambda record: Seen([record]).save("never.hw"),
}


@pytest.mark.parametrize("ask", WEIGHTS.values(), ids=WEIGHTS)
def test_what_needs_the_weights_says_what_to_do(
    ask: Callable[[AttentionRecord], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (record,) = watched(Own(), x_of, statistics=["entropy"], keep=False)
    message = r"attention: the queries and keys were not kept \(keep=False\), .*: lse, entropy. .* with keep=True"
    with pytest.raises(RecordError, match=message):
        ask(record)
    assert not list(tmp_path.iterdir())


def test_a_statistic_that_was_not_computed() -> None:
    statistics = {"top": {"top": 2}, "offset_mass": {"offsets": [1, 4]}, "keys_needed": {}}
    seen, whole = watched(model := Own(), x_of, statistics=statistics, keep=False), watched(model, x_of)
    record = seen[0]
    assert record.statistics().entropy is None
    assert record.statistics("offset_mass").offset_mass.shape == (B, H, S, 2)  # what was computed
    assert_same(record.offset_mass(4), whole[0].offset_mass(4))
    assert_same(record.statistics("top", rows=3).top.keys, record.statistics().top.keys)
    for ask, message in (
        (lambda: record.entropy(), "attention: entropy was not computed during the run. Name what you need in stat"),
        (lambda: record.top_k(3), "top was computed with top=2, not top=3"),
        (lambda: record.offset_mass(2), r"offset_mass was computed with offsets=\[1, 4\], not offsets=\(2,\)"),
        (lambda: record.keys_needed(0.5), "keys_needed was computed with share=0.9, not share=0.5"),
        (lambda: seen.summary(), "entropy was not computed .*, distance .*, first_visible .*Known: lse, offset_mass"),
        (lambda: headwise.analyses.key_zero_rate(seen), "the queries and keys were not kept"),
    ):
        with pytest.raises(RecordError, match=message):
            ask()
    with pytest.raises(ArgumentError, match="Received: names="):
        record.statistics("entropie")


def test_all_keys_hold_the_largest_ones() -> None:
    record = watched(Own(), x_of, statistics={"top": {"top": 40}}, keep=False)[0]
    assert record.top_k(S)[0].shape == (B, H, S, S)
    assert record.statistics("top", top=100).top.keys.shape == (B, H, S, S)
    torch.testing.assert_close(record.top_k(S)[0].sum(-1), torch.ones(B, H, S))


def test_they_are_of_the_models_own_queries_whatever_is_kept() -> None:
    model, run = MODELS["by hand"][0](), MODELS["by hand"][1]
    whole, rounded = watched(model, run)[0], watched(model, run, dtype=torch.bfloat16)[0]
    seen = watched(model, run, dtype=torch.bfloat16, statistics=["entropy"])[0]
    assert_same(seen.entropy(), whole.entropy())
    assert_same(seen.received(), rounded.received())
    assert not torch.equal(rounded.entropy(), whole.entropy())


def test_an_answer_that_is_changed_does_not_change_the_record() -> None:
    record = watched(Own(), x_of, statistics="all", keep=False)[0]
    expected = copy.deepcopy((record.entropy(), record.top_k(8)))
    record.entropy().zero_(), record.top_k(8)[1].zero_()
    assert_same((record.entropy(), record.top_k(8)), expected)


def test_a_copy_and_what_it_shows() -> None:
    seen = watched(Own(), x_of, statistics=["entropy"], keep=False)
    record = pickle.loads(pickle.dumps(seen[0]))
    assert_same(record.entropy(), seen[0].entropy())
    assert repr(record) == f"ComputedRecord(B={B}, H={H}, Q={S}, K={S}, statistics: lse, entropy)"
    assert record._repr_mimebundle_()[0] == {"text/plain": repr(record)}
    assert seen._repr_mimebundle_()[0] == {"text/plain": repr(seen)}
    assert seen.coverage().notes == (
        "queries and keys were not kept (keep=False), only these statistics: lse, entropy",
    )
    seen.tokens = [[f"{b}{i}" for i in range(S)] for b in "ab"]
    assert (seen.row_labels(record, 1) or ())[2] == "b2"


@pytest.mark.parametrize("offload", [None, "cpu", "disk"])
def test_max_bytes_counts_the_statistics(offload: Any) -> None:
    """Three layers with 4 bytes a row for each of two statistics, and 8 a key."""
    options = {"statistics": ["entropy"], "keep": False, "offload": offload}
    size, (make, run) = 3 * B * S * (2 * 4 + 8), MODELS["by hand"]
    expected = watched(make(), run, **options, max_bytes=size)
    assert len(expected) == 3
    if offload != "disk":
        with pytest.raises(RecordError, match=r"max_bytes.*keep=False"):
            watched(make(), run, **options, max_bytes=size - 1)
    assert len(watched(make(), run, **options, only=-1, max_bytes=size // 3)) == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"keep": False}, r"keep=False keeps nothing but the statistics .* Received: statistics=\(\). Name some"),
    ({"keep": False, "statistics": []}, "Name some"),
    ({"statistics": ["entropie"]}, r"the names are lse, entropy, .* Received: names=\['entropie'\]"),
    ({"statistics": "entropie"}, r"Received: names=\['entropie'\]"),
    ({"statistics": 3}, "expected names, a dict of names and options, or .all.. Received: 3"),
    ({"statistics": {"top": {"share": 0.5}}}, "the options of top are top, as a dict. Received: 'top'"),
    ({"statistics": {"top": 3}}, "the options of top are top, as a dict. Received: 'top': 3"),
    ({"statistics": {"entropy": {"top": 3}}}, "the options of entropy are none"),
    ({"statistics": {"top": {"top": 0}}}, "top must be at least 1. Received: top=0"),
    *(
        ({"statistics": ["entropy"], "keep": False, name: value}, rf"{name} says what to keep .* Received: {name}=")
        for name, value in (("values", True), ("gradients", True), ("dtype", torch.bfloat16))
    ),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=str)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwiseError, match=message) as caught:
        headwise.watch(Own(), **options)
    assert type(caught.value) is ArgumentError


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_number_of_a_key_says_whether_it_is_the_same(dtype: torch.dtype) -> None:
    k = torch.randn(2, 3, 1500, 4, dtype=dtype)
    found = digests(k)
    assert found.shape == (2, 1, 1500, 1)
    assert found.unique().numel() == 3000
    assert torch.equal(digests(k[:, :, 700:]), found[:, :, 700:])  # whatever stands before it
    assert torch.equal(digests(k.transpose(1, 2).contiguous().transpose(1, 2)), found)
    places = [(head, place) for head in range(3) for place in range(4)]
    for at in (*((place,) for place in places), places[:2], places[3:7:3]):
        other = k.clone()
        for head, place in at:
            other[:, head, :, place] *= -1
        assert not bool((digests(other) == found).any())
