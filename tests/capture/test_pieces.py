"""Attention in blocks and windows: the record has each query and each key at its own position.

What the models' own projections give, position by position, is compared with the queries and keys of the records, and
the masks with what the papers say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise.errors import RecordError
from headwise.records import AttentionRecord, Seen
from tests.capture.families.models import seed

B, T, H, D = 2, 16, 2, 4
M = H * D


@contextmanager
def outputs(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """What these modules return, in order."""
    found: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _m, _i, out: found.append(out.clone())) for module in modules]
    yield found
    for handle in handles:
        handle.remove()


def heads(x: Tensor) -> Tensor:
    """[B, T, M] -> [B, H, T, D]"""
    return x.unflatten(-1, (H, D)).transpose(1, 2)


def run(model: Any, *projections: nn.Module, **inputs: Any) -> tuple[Seen, list[Tensor]]:
    seed()
    model.eval()
    with torch.no_grad(), headwise.watch(model) as seen, outputs(*projections) as found:
        model(**inputs)
    return seen, found


def check(record: AttentionRecord, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | float = 0.0) -> None:
    """`allowed` [B|1, H|1, Q, K]; q and k [B, H, ·, D], q with its scale."""
    scores = (q @ k.mT + bias).masked_fill(~allowed, -torch.inf)
    expected = scores.softmax(-1).nan_to_num(0.0)
    torch.testing.assert_close(record.weights(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(record.k * 1.0, k.expand_as(record.k))


def ids() -> Tensor:
    return torch.randint(3, 50, (B, T), generator=torch.Generator().manual_seed(1))


def longt5(**more: Any) -> Any:
    return transformers.LongT5Config(
        vocab_size=50, d_model=M, d_kv=D, d_ff=8, local_radius=3, **{"num_layers": 1, "num_heads": H, **more},
    )  # fmt: skip


@pytest.mark.parametrize("padding", [False, True])
def test_longformer(padding: bool) -> None:
    config = transformers.LongformerConfig(
        vocab_size=50, hidden_size=M, num_hidden_layers=1, num_attention_heads=H, intermediate_size=8,
        attention_window=[4], max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    model = transformers.LongformerModel(config, add_pooling_layer=False)
    own = model.encoder.layer[0].attention.self
    there = torch.ones(B, T, dtype=torch.long)
    if padding:
        there[1, 10:] = 0
    everywhere = torch.zeros(B, T, dtype=torch.long)
    everywhere[:, 3] = 1
    with_global = run(
        model, own.query, own.key, own.query_global, own.key_global,
        input_ids=ids(), attention_mask=there, global_attention_mask=everywhere,
    )  # fmt: skip
    seen, (q, k, q_global, k_global) = with_global
    q, k, q_global, k_global = (heads(x.transpose(0, 1)) for x in (q, k, q_global, k_global))
    real = there.bool()[:, None, None]
    rows, cols = torch.arange(T)[:, None], torch.arange(T)
    near, is_global = (rows - cols).abs() <= 2, everywhere.bool()[:, None, None]
    local, of_global = seen
    check(local, q / D**0.5, k, (near | is_global) & real & real.mT)
    check(of_global, q_global / D**0.5, k_global, real)
    assert local.mask is not None
    assert of_global.shape == (B, H, 1, T)


def test_longt5() -> None:
    config = longt5()
    model = transformers.LongT5EncoderModel(config)
    own = model.encoder.block[0].layer[0].LocalSelfAttention
    seen, (q, k) = run(model, own.q, own.k, input_ids=ids())
    distance = torch.arange(T) - torch.arange(T)[:, None]
    buckets = own._relative_position_bucket(distance, True, config.relative_attention_num_buckets, 128)
    bias = own.relative_attention_bias(buckets).permute(2, 0, 1)[None].detach()
    check(seen[0], heads(q), heads(k), (distance.abs() < 4)[None, None], bias)


def test_big_bird() -> None:
    """Blocks of 2: the first and the last see everything; the others their neighbours, the first and the last.

    Outside of training the random block is always the first one, which so counts twice.
    """
    config = transformers.BigBirdConfig(
        vocab_size=50, hidden_size=M, num_hidden_layers=1, num_attention_heads=H, intermediate_size=8, block_size=2,
        num_random_blocks=1, attention_type="block_sparse", max_position_embeddings=40,
    )  # fmt: skip
    model = transformers.BigBirdModel(config, add_pooling_layer=False)
    own = model.encoder.layer[0].attention.self
    seen, (q, k) = run(model, own.query, own.key, input_ids=ids())
    blocks = torch.arange(T) // 2
    rows, cols = blocks[:, None], blocks
    last = T // 2 - 1
    allowed = ((rows - cols).abs() <= 1) | (cols == 0) | (cols == last) | (rows == 0) | (rows == last)
    twice = (cols == 0) & (rows > 0) & (rows < last)
    check(seen[0], heads(q) / D**0.5, heads(k), allowed[None, None], torch.where(twice, 2.0, 1.0).log())
    assert len(seen) == 1


def test_reformer_local() -> None:
    config = transformers.ReformerConfig(
        vocab_size=50, hidden_size=M, attention_head_size=D, num_attention_heads=H, attn_layers=["local"],
        local_attn_chunk_length=4, feed_forward_size=8, axial_pos_embds=False,
        max_position_embeddings=T, is_decoder=True,
    )  # fmt: skip
    model = transformers.ReformerModel(config)
    own = model.encoder.layers[0].attention.self_attention
    seen, (q, k) = run(model, own.query, own.key, input_ids=ids())
    rows, cols = torch.arange(T)[:, None], torch.arange(T)
    chunks = rows // 4 - cols // 4
    allowed = (cols <= rows) & (chunks <= 1)
    check(seen[0], heads(q), heads(k) / D**0.5, allowed[None, None])
    assert seen[0].site.causal


class Chunked(nn.Module):
    """Some queries at a time."""

    def __init__(self, *chunks: slice, change: Callable[[Tensor], Tensor] = lambda w: w) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(M, M, bias=False) for _ in range(3))
        self.chunks, self.change, self.num_heads = chunks, change, H

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(each(x)) for each in (self.q, self.k, self.v))
        return torch.cat([self.change((q[:, :, some] @ k.mT).softmax(-1)) @ v for some in self.chunks], 2)


def see(model: nn.Module, **options: Any) -> tuple[Seen, Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(B, T, M)
    model = nn.Sequential(model)
    with torch.no_grad(), headwise.watch(model, **options) as seen:
        model(x)
    return seen, heads(model[0].q(x)).detach(), heads(model[0].k(x)).detach()


def test_chunks_of_queries_are_one_record() -> None:
    seen, q, k = see(Chunked(slice(0, 5), slice(5, 9), slice(9, T)))
    (record,) = seen
    check(record, q, k, torch.ones(1, 1, T, T, dtype=torch.bool))
    assert record.site.name == "0"
    assert [(site.status, site.calls) for site in seen.coverage()] == [("seen", 1)]


@pytest.mark.parametrize("only", [None, [0, 1], [-2, -1]], ids=str)
def test_records_are_in_the_order_in_which_the_model_computes(only: list[int] | None) -> None:
    """Pieces are put together when the next ones begin, or at the end: the record has the place of its first piece."""

    class Fused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(heads(x), heads(x), heads(x))

    class Stack(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for each in self:
                x = each(x).transpose(1, 2).flatten(-2)
            return x

    pieces = (slice(0, 5), slice(5, T))
    model = Stack(Chunked(*pieces), Fused(), Chunked(*pieces), Fused())
    with torch.no_grad(), headwise.watch(model, only=only) as seen:
        model(torch.randn(B, T, M))
        model(torch.randn(B, T, M))
    names = {None: ["0", "1", "2", "3"], (0, 1): ["0", "1"], (-2, -1): ["2", "3"]}[only and tuple(only)]
    assert [record.site.name for record in seen] == names * 2
    assert list(seen.layers) == names


def test_queries_that_are_in_no_piece_attend_to_nothing() -> None:
    seen, q, k = see(Chunked(slice(2, 5), slice(9, 13)))
    (record,) = seen
    there = torch.zeros(1, 1, T, T, dtype=torch.bool)
    there[:, :, [2, 3, 4, 9, 10, 11, 12]] = True
    check(record, q, k, there)
    w = (q @ k.mT).softmax(-1)[:, :, [2, 9]]
    distance = (torch.arange(T) - torch.tensor([[2], [9]])).abs()
    torch.testing.assert_close(record.distance()[:, :, [2, 9]], (w * distance).sum(-1), rtol=0, atol=1e-4)


def test_keys_of_a_cache_come_before_the_new_ones() -> None:
    class Cached(Chunked):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (heads(each(x[:, 6:])) for each in (self.q, self.k, self.v))
            past = heads(x[:, :6]) * 0.1
            k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
            return torch.cat([(some @ k.mT).softmax(-1) @ v for some in q.split(4, 2)], 2)

    torch.manual_seed(1)
    model, x = nn.Sequential(Cached()), torch.randn(B, T, M)
    with torch.no_grad(), headwise.watch(model) as seen:
        model(x)
        q, k = (heads(each(x[:, 6:])) for each in (model[0].q, model[0].k))
    (record,) = seen
    check(record, q, torch.cat([heads(x[:, :6]) * 0.1, k], 2), torch.ones(1, 1, T - 6, T, dtype=torch.bool))


@pytest.mark.parametrize("length", [3, 4, 5, 12])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_longt5_of_any_length_and_one_head(length: int, n_heads: int) -> None:
    config = longt5(num_heads=n_heads)
    config.d_kv = M // n_heads
    model = transformers.LongT5EncoderModel(config)
    seen, _ = run(model, input_ids=ids()[:, :length])
    assert [record.shape for record in seen] == [(B, n_heads, length, length)]
    distance = torch.arange(length) - torch.arange(length)[:, None]
    assert torch.equal(seen[0].weights() > 0, (distance.abs() < 4).expand(B, n_heads, -1, -1))


def test_gradient_checkpointing_has_each_layer_once() -> None:
    model = transformers.LongT5EncoderModel(longt5(num_layers=2, dropout_rate=0.0)).train()
    model.activation_checkpointing_enable()
    with headwise.watch(model) as seen:
        model(ids()).last_hidden_state.sum().backward()
    assert [record.shape for record in seen] == [(B, H, T, T)] * 2
    assert len(set(seen.layers)) == 2


def test_scores_and_weights_that_are_mixed_over_heads() -> None:
    """As in timm's CaiT: a linear layer over the heads, before and after the softmax."""

    class Mixed(Chunked):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(H, H), nn.Linear(H, H)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (heads(each(x)) for each in (self.q, self.k, self.v))
            w = self.before((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
            self.softmax, self.used = w, self.after(w.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return self.used @ v

    model = Mixed()
    seen, *_ = see(model)
    (record,) = seen.records
    torch.testing.assert_close(record.weights(), model.softmax.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(record.used_weights(), model.used.detach(), rtol=0, atol=0)


def test_chunks_of_queries_beside_a_learned_sink() -> None:
    sink = torch.tensor([0.5, -1.0])

    class Sinks(Chunked):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (heads(each(x)) for each in (self.q, self.k, self.v))
            outs = []
            for some in q.split(5, 2):
                s = some @ k.mT
                column = sink.view(1, H, 1, 1).expand(*s.shape[:3], 1)
                outs.append(torch.cat([s, column], -1).softmax(-1)[..., :-1] @ v)
            return torch.cat(outs, 2)

    seen, q, k = see(Sinks())
    (record,) = seen
    scores = q @ k.mT
    expected = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sink.exp().view(1, H, 1, 1))
    torch.testing.assert_close(record.weights(), expected, rtol=0, atol=1e-6)


def test_keys_of_each_query() -> None:
    """Neighbourhood attention as one einsum: each query has the keys beside it."""

    class Neighbours(Chunked):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (heads(each(x)) for each in (self.q, self.k, self.v))
            k, v = (functional.pad(y, (0, 0, 1, 1)).unfold(2, 3, 1).mT for y in (k, v))
            outside = functional.pad(torch.ones(T), (1, 1)).unfold(0, 3, 1) == 0
            s = torch.einsum("bhtd,bhtwd->bhtw", q, k).masked_fill(outside, -torch.inf)
            return torch.einsum("bhtw,bhtwd->bhtd", s.softmax(-1), v)

    seen, q, k = see(Neighbours())
    near = (torch.arange(T) - torch.arange(T)[:, None]).abs() <= 1
    check(seen[0], q, k, near[None, None])
    assert str(seen[0].mask) == "window(1, 1, offset=0)"


def test_float64_as_the_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        seen, q, k = see(Chunked(slice(0, 5), slice(5, T)))
        check(seen[0], q, k, torch.ones(1, 1, T, T, dtype=torch.bool))
        seen, _ = run(transformers.LongT5EncoderModel(longt5()), input_ids=ids())
        assert seen[0].shape == (B, H, T, T)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_piece_whose_weights_are_changed_spoils_the_others() -> None:
    changes = iter([lambda w: w, lambda w: w * 0.5])
    seen, *_ = see(Chunked(slice(0, 5), slice(5, T), change=lambda w: next(changes)(w)))
    assert not len(seen)
    told = {site.status: site.how for site in seen.coverage()}
    assert set(told) == {"refused"}
    with pytest.raises(RecordError, match="no attention was seen"):
        seen["0"]


def test_the_same_queries_with_other_keys_are_two_attentions() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.k2 = (nn.Linear(M, M) for _ in range(3))
            self.num_heads = H

        def forward(self, x: Tensor) -> Tensor:
            q, k, other = (heads(each(x)) for each in (self.q, self.k, self.k2))
            return (q @ k.mT).softmax(-1) @ k + (q @ other.mT).softmax(-1) @ other

    seen, *_ = see(Two())
    assert [record.site.name for record in seen] == ["0", "0#2"]
    assert any("0, 0#2 have queries in common" in note for note in seen.coverage().notes)
    assert [record.shape for record in seen] == [(B, H, T, T)] * 2


def test_values_are_refused_in_blocks() -> None:
    config = transformers.LongT5Config(
        vocab_size=50, d_model=M, d_kv=D, d_ff=8, num_layers=1, num_heads=H, local_radius=3
    )
    model = transformers.LongT5EncoderModel(config).eval()
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        model(ids())
    (site,) = seen.coverage()
    assert site.status == "refused"
    assert "not put together for values=True" in site.how


def test_a_second_generation_has_its_blocks_too() -> None:
    model = transformers.LongT5ForConditionalGeneration(longt5(decoder_start_token_id=0)).eval()
    for _ in range(2):
        with headwise.watch(model) as seen:
            model.generate(ids(), max_new_tokens=3, min_new_tokens=3)
            model.generate(ids(), max_new_tokens=3, min_new_tokens=3)
        local = [record for record in seen if "LocalSelf" in record.site.name]
        assert [record.shape for record in local] == [(B, H, T, T)] * 2
        assert not [site for site in seen.coverage() if site.status != "seen"]
