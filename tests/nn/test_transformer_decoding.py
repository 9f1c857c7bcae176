"""Stacks with a cache: each step gives what the whole forward gives at that position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import ArgumentError, CacheError, ShapeError
from headwise.nn import Cache, MultiHeadAttention, positions
from headwise.nn.multi_head_latent import MultiHeadLatentAttention
from headwise.nn.transformer import Decoder, Encoder
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer
from tests.nn.stacks import CAUSAL, F64, H, M, decoder, gpt, in_chunks, rope_attention

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


class TestDecoding:
    @given(sizes=SIZES, capacity=st.sampled_from([None, 20]), norm_first=st.booleans())
    def test_encoder_in_steps_is_the_whole(self, sizes: list[int], capacity: int | None, norm_first: bool) -> None:
        model, x = gpt(norm_first=norm_first).eval(), torch.randn(2, sum(sizes), M, dtype=F64)
        with torch.no_grad():
            steps = in_chunks(model, x, sizes, Cache(capacity=capacity))
            torch.testing.assert_close(steps, model(x, mask=CAUSAL), atol=1e-10, rtol=0.0)

    @given(sizes=SIZES, capacity=st.sampled_from([None, 20]), norm_first=st.booleans())
    def test_decoder_in_steps_is_the_whole(self, sizes: list[int], capacity: int | None, norm_first: bool) -> None:
        model, x = decoder(norm_first=norm_first).eval(), torch.randn(2, sum(sizes), M, dtype=F64)
        memory, real = torch.randn(2, 6, 5, dtype=F64), torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
        with torch.no_grad():
            steps = in_chunks(model, x, sizes, Cache(capacity=capacity), key=memory, memory_real=real)
            whole = model(x, memory, mask=CAUSAL, memory_real=real)
        torch.testing.assert_close(steps, whole, atol=1e-10, rtol=0.0)

    @settings(max_examples=15)
    @given(lengths=st.lists(st.integers(0, 4), min_size=2, max_size=3), steps=st.integers(1, 4))
    def test_left_padding_changes_nothing(self, lengths: list[int], steps: int) -> None:
        longest = max(lengths)
        rows = [torch.randn(1, length + steps, M, dtype=F64) for length in lengths]
        junk = torch.full((1, longest, M), 9.0, dtype=F64)
        x = torch.cat([torch.cat((junk, row), 1)[:, -longest - steps :] for row in rows])
        real = torch.tensor([[False] * (longest - n) + [True] * (n + steps) for n in lengths])
        memory = torch.randn(len(rows), 3, 5, dtype=F64)
        sizes = ([longest] if longest else []) + steps * [1]
        for model, given_too in ((gpt().eval(), {}), (decoder().eval(), {"key": memory})):
            with torch.no_grad():
                outs = in_chunks(model, x, sizes, Cache(), real=real, **given_too)
                whole = model(x, mask=CAUSAL, real=real, **given_too)
                for i, row in enumerate(rows):
                    own = {name: y[i : i + 1] for name, y in given_too.items()}
                    alone = model(row, mask=CAUSAL, **own)
                    torch.testing.assert_close(outs[i : i + 1, longest - lengths[i] :], alone, atol=1e-10, rtol=0.0)
                    torch.testing.assert_close(whole[i : i + 1, longest - lengths[i] :], alone, atol=1e-10, rtol=0.0)

    def test_any_attention_will_do(self) -> None:
        def latent() -> MultiHeadLatentAttention:
            sizes = {"q_rank": None, "kv_rank": 4, "nope_dim": 3, "rope_dim": 2, "value_head_dim": 3}
            return MultiHeadLatentAttention(M, H, **sizes, dtype=F64)

        model = Encoder(M, num_layers=2, attention=latent, ffn_dim=16, dtype=F64).eval()
        x = torch.randn(2, 5, M, dtype=F64)
        real = torch.tensor([[False] * 2 + [True] * 3, [True] * 5])
        with torch.no_grad():
            steps = in_chunks(model, x, [3, 1, 1], Cache(), real=real)
            whole, seen = model(x, mask=CAUSAL, real=real, record=True)
        torch.testing.assert_close(steps[real], whole[real], atol=1e-10, rtol=0.0)
        assert seen.layers == ["layers.0.attention", "layers.1.attention"]

    def test_cross_attention_knows_where_the_step_stands(self) -> None:
        attention = MultiHeadAttention(M, H, positions=positions.Rope(4), dtype=F64)
        layer = DecoderLayer(M, H, cross_attention=attention, dtype=F64)
        x, memory = torch.randn(1, 5, M, dtype=F64), torch.randn(1, 4, M, dtype=F64)
        whole = layer(x, memory, mask=CAUSAL)
        torch.testing.assert_close(in_chunks(layer, x, [1] * 5, Cache(), key=memory), whole)
        torch.testing.assert_close(layer(x, memory, mask=CAUSAL, position_ids=torch.arange(5)), whole)

    def test_layers_with_and_without_positions(self) -> None:
        layers = [EncoderLayer(M, H, dtype=F64), EncoderLayer(M, attention=rope_attention(), dtype=F64)]
        model, x = Encoder.from_layers(layers), torch.randn(1, 4, M, dtype=F64)
        real = torch.tensor([[False, True, True, True]])
        alone = model(x[:, 1:], mask=CAUSAL)
        torch.testing.assert_close(model(x, mask=CAUSAL, real=real)[:, 1:], alone)
        ids = torch.tensor([7, 0, 1, 2])
        torch.testing.assert_close(model(x, mask=CAUSAL, real=real, position_ids=ids)[:, 1:], alone)
        torch.testing.assert_close(in_chunks(model, x, [3, 1], Cache(), real=real)[:, 1:], alone)
        spread = model(x, mask=CAUSAL, position_ids=torch.tensor([0, 10, 20, 30]))
        assert not torch.allclose(spread, model(x, mask=CAUSAL))

    def test_beams_and_cropping_go_through_the_stack(self) -> None:
        model, x = gpt().eval(), torch.randn(3, 6, M, dtype=F64)
        order, cache = torch.tensor([2, 2, 0]), Cache()
        with torch.no_grad():
            model(x, mask=CAUSAL, cache=cache)
            cache.reorder(order)
            cache.crop(4)
            last = model(x[order, 4:5], mask=CAUSAL, cache=cache)
            torch.testing.assert_close(last, model(x[order, :5], mask=CAUSAL)[:, 4:])

    def test_the_memory_is_projected_once(self) -> None:
        model, cache, memory = decoder().eval(), Cache(), torch.randn(1, 4, 5, dtype=F64)
        calls = []
        for layer in model.layers:
            layer.cross_attention.k.register_forward_hook(lambda *_: calls.append(1))
        with torch.no_grad():
            in_chunks(model, torch.randn(1, 4, M, dtype=F64), [1] * 4, cache, key=memory)
            assert len(calls) == 2
            with pytest.raises(CacheError, match="key: expected the memory"):
                model(torch.randn(1, 1, M, dtype=F64), memory + 1, mask=CAUSAL, cache=cache)

    @pytest.mark.parametrize("stacked", [False, True])
    def test_a_refused_memory_leaves_the_cache_as_it_was(self, stacked: bool) -> None:
        layer = DecoderLayer(M, H, memory_dim=5)
        model: Any = Decoder.from_layers([layer]) if stacked else layer
        cache, x, memory = Cache(), torch.randn(2, 3, M), torch.randn(2, 4, 5)
        model(x, memory, mask=CAUSAL, cache=cache)
        for wrong in (torch.ones(3, 3).bool(), torch.ones(5, 1, 3, 4).bool(), torch.ones(2, 2, 3, 4).bool()):
            with pytest.raises(ArgumentError):
                model(x, memory, mask=CAUSAL, cache=cache, memory_mask=wrong)
        with pytest.raises(ShapeError, match="key"):
            model(x, memory[..., :4], mask=CAUSAL, cache=cache)
        assert cache.length == 3
        model(x, memory, mask=CAUSAL, cache=cache, memory_mask=torch.ones(2, 1, 3, 4).bool())

    @pytest.mark.parametrize("stacked", [False, True])
    def test_positions_in_a_padded_memory_count_its_tokens(self, stacked: bool) -> None:
        attention = MultiHeadAttention(M, H, positions=positions.Rope(4), dtype=F64)
        layer = DecoderLayer(M, H, cross_attention=attention, dtype=F64)
        model: Any = Decoder.from_layers([layer]) if stacked else layer
        x, memory = torch.randn(1, 3, M, dtype=F64), torch.randn(1, 5, M, dtype=F64)
        real = torch.tensor([[False, False, True, True, True]])
        torch.testing.assert_close(model(x, memory, memory_real=real), model(x, memory[:, 2:]))

    def test_gradients_reach_every_step(self) -> None:
        model = gpt()
        x, y = (torch.randn(1, 4, M, dtype=F64, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        x.requires_grad_()
        y.requires_grad_()
        in_chunks(model, x, [2, 1, 1], Cache()).square().sum().backward()
        model(y, mask=CAUSAL).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)

    def test_a_cache_serves_one_model(self) -> None:
        cache, x = Cache(), torch.randn(1, 2, M, dtype=F64)
        gpt()(x, mask=CAUSAL, cache=cache)
        other = gpt()
        with pytest.raises(CacheError, match="Received: a cache of a"):
            other(x, mask=CAUSAL, cache=cache)
        full = Cache(capacity=3)
        other(x, mask=CAUSAL, cache=full)
        with pytest.raises(CacheError, match="capacity=3"):
            other(x, mask=CAUSAL, cache=full)
