"""Transformer layers and stacks: numbers by hand, records, training, stochastic depth, bad input.

That they equal PyTorch's is in test_from_torch.py, decoding in test_transformer_decoding.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.nn import Cache, MultiHeadAttention
from headwise.nn.transformer import Decoder, Encoder
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer
from tests.nn.stacks import CAUSAL, F64, H, M, decoder, gpt, in_chunks, rope_attention


def averaging(dim: int) -> MultiHeadAttention:
    """One head that gives each query the mean of what it may attend to."""
    attention = MultiHeadAttention(dim, 1)
    with torch.no_grad():
        attention.qkv.weight.zero_()
        attention.qkv.weight[-dim:] = torch.eye(dim)
        attention.out.weight.copy_(torch.eye(dim))
    return attention


def without_mlp(layer: Any) -> Any:
    nn.init.zeros_(layer.mlp.down.weight)
    return layer


class TestByHand:
    X = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])

    def check(self, out: Tensor, expected: list[list[float]]) -> None:
        torch.testing.assert_close(out, torch.tensor([expected], dtype=torch.float32), atol=1e-4, rtol=0.0)

    def test_rms_norm(self) -> None:
        layer = without_mlp(EncoderLayer(2, attention=averaging(2), norm="rms"))
        # (2, 0) / √((4 + 0) / 2) = (√2, 0); the second token adds the mean (√2/2, √2/2).
        root = 2**0.5
        self.check(layer(self.X, mask=CAUSAL), [[2 + root, 0], [root / 2, 2 + root / 2]])

    def test_the_mlp_comes_second(self) -> None:
        layer = EncoderLayer(2, attention=averaging(2), norm_first=False, activation="relu", ffn_dim=2)
        with torch.no_grad():
            layer.mlp.up.weight.copy_(torch.eye(2))
            layer.mlp.down.weight.copy_(3 * torch.eye(2))
        # After attention and norm (1, -1); + 3 · relu(1, -1) = (4, -1), normalised (1, -1).
        self.check(layer(self.X[:, :1]), [[1, -1]])
        layer.mlp_norm = nn.Identity()
        self.check(layer(self.X[:, :1]), [[4, -1]])

    def test_decoder_reads_the_memory_between(self) -> None:
        layer = without_mlp(DecoderLayer(2, self_attention=averaging(2), cross_attention=averaging(2)))
        memory = torch.tensor([[[10.0, 20.0], [30.0, 60.0], [99.0, 99.0]]])
        real = torch.tensor([[True, True, False]])
        # As above, then plus the mean of the two real tokens of the memory, which is not normalised.
        self.check(layer(self.X, memory, mask=CAUSAL, memory_real=real), [[23, 39], [20, 42]])
        only_last = torch.tensor([[True, False, False], [False, True, False]])
        self.check(layer(self.X, memory, mask=CAUSAL, memory_mask=only_last), [[13, 19], [30, 62]])

    def test_decoder_reads_values_that_are_not_the_memory(self) -> None:
        layer = without_mlp(DecoderLayer(2, self_attention=averaging(2), cross_attention=averaging(2)))
        memory, value = torch.zeros(1, 2, 2), torch.full((1, 2, 2), 5.0)
        for model in (layer, Decoder.from_layers([layer])):
            self.check(model(self.X, memory, value, CAUSAL), [[8, 4], [5, 7]])


# Records


class TestRecords:
    def test_of_an_encoder(self) -> None:
        model, x = gpt(), torch.randn(2, 5, M, dtype=F64)
        out, seen = model(x, mask=CAUSAL, record=True)
        assert torch.equal(out, model(x, mask=CAUSAL))
        assert seen.layers == ["layers.0.attention", "layers.1.attention"]
        record = seen["layers.1.attention"]
        assert (record.site.kind, record.site.causal, record.site.layer) == ("self", True, 1)
        assert record.shape == (2, H, 5, 5)
        weights = seen[0].weights()
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert not bool(weights.triu(1).any())
        assert list(seen.statistics("entropy")) == seen.layers

    def test_of_a_decoder(self) -> None:
        model, x, memory = decoder(), torch.randn(2, 5, M, dtype=F64), torch.randn(2, 4, 5, dtype=F64)
        _, seen = model(x, memory, mask=CAUSAL, record=True)
        assert seen.layers == [f"layers.{i}.{name}_attention" for i in range(2) for name in ("self", "cross")]
        assert [(r.site.kind, r.site.layer) for r in seen.records] == [
            ("self", 0),
            ("cross", 0),
            ("self", 1),
            ("cross", 1),
        ]
        assert seen.only("cross_attention").layers == ["layers.0.cross_attention", "layers.1.cross_attention"]
        assert seen["layers.1.cross_attention"].shape == (2, H, 5, 4)

    def test_of_one_layer(self) -> None:
        x = torch.randn(1, 3, M)
        _, seen = EncoderLayer(M, H)(x, record=True)
        assert seen.layers == ["attention"]
        _, seen = DecoderLayer(M, H)(x, x, record=True)
        assert seen.layers == ["self_attention", "cross_attention"]

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_are_what_watch_sees(self, checkpointing: bool) -> None:
        memory = torch.randn(2, 5, 5, dtype=F64)  # as long as the sequence: nothing but the modules tells them apart
        x = torch.randn(2, 5, M, dtype=F64)
        cases: list[tuple[nn.Module, dict[str, Any]]] = [(gpt(), {}), (decoder(), {"key": memory})]
        for model, given_too in cases:
            model.checkpointing = checkpointing
            _, own = model(x, mask=CAUSAL, record=True, **given_too)
            with headwise.watch(model, values=True) as seen:
                model(x, mask=CAUSAL, **given_too).sum().backward()
            assert seen.layers == own.layers
            assert len(seen.records) == len(own.records)
            for theirs, ours in zip(seen.records, own.records, strict=True):
                assert theirs.site == ours.site
                torch.testing.assert_close(theirs.weights(), ours.weights())
                assert theirs.extras.output_weight is not None
                attention = model.get_submodule(theirs.site.name)
                torch.testing.assert_close(theirs.extras.output_weight.flatten(0, 1).T, attention.out.weight.detach())
            assert not seen.coverage().missed
            assert not seen.coverage().refused


# Training


class TestTraining:
    def test_checkpointing_gives_equal_outputs_and_gradients(self) -> None:
        options: dict[str, Any] = {"num_layers": 3, "num_heads": H, "dropout": 0.2, "drop_path": 0.3, "ffn_dim": 16}
        memory = torch.randn(4, 3, M)
        for kind, key in ((Encoder, None), (Decoder, memory)):
            plain: Any = kind(M, **options)
            twin = copy.deepcopy(plain)
            twin.checkpointing = True
            runs = []
            twin.layers[0].mlp.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
            results = []
            for model in (plain, twin):
                torch.manual_seed(1)
                x = torch.linspace(-1, 1, 4 * 5 * M).view(4, 5, M).requires_grad_()
                out = model(x, key, mask=CAUSAL, real=torch.ones(4, 5, dtype=torch.bool))
                out.square().sum().backward()
                results.append([out, x.grad, *(p.grad for p in model.parameters())])
            assert len(runs) == 2  # once more in the backward pass
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("kind", [Encoder, Decoder])
    def test_checkpointing_sees_the_mask_that_forward_saw(self, kind: Any) -> None:
        """It runs the layers again, when the caller may have written the next batch into its buffers."""
        model = kind(M, num_layers=2, num_heads=H, ffn_dim=16, checkpointing=True)
        memory = torch.randn(2, 4, M)
        x = torch.randn(2, 5, M, requires_grad=True)
        ids, allowed = torch.arange(5) // 2, torch.rand(5, 5) > 0.3
        real, memory_real = (torch.arange(n) < torch.tensor([[n - 1], [n - 2]]) for n in (5, 4))
        buffers = [real, ids] if kind is Encoder else [real, ids, memory_real]

        def run(mask: Any, *key: Tensor, real: Tensor, **more: Tensor) -> Tensor:
            return model(x, *key, mask=mask, real=real, **more).square().sum()

        key, more = ((memory,), {"memory_real": memory_real}) if kind is Decoder else ((), {})
        (expected,) = torch.autograd.grad(run(masks.documents(ids), *key, real=real, **more), x)
        loss = run(masks.documents(ids), *key, real=real, **more)
        for each in buffers:
            each.fill_(True)
        (found,) = torch.autograd.grad(loss, x)
        torch.testing.assert_close(found, expected)

        (expected,) = torch.autograd.grad(run(allowed.clone(), *key, real=real, **more), x)
        loss = run(allowed, *key, real=real, **more)
        allowed.logical_not_()
        (found,) = torch.autograd.grad(loss, x)
        torch.testing.assert_close(found, expected)
        if kind is Decoder:
            loss = run(None, memory, real=real, value=memory, **more)
            memory.zero_()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(loss, x)

    def test_checkpointing_rests_in_eval_mode_and_with_a_cache(self) -> None:
        model, x = gpt(checkpointing=True), torch.randn(1, 4, M, dtype=F64, requires_grad=True)
        runs: list[int] = []
        model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
        in_chunks(model, x, [2, 2], Cache()).sum().backward()
        model.eval()(x, mask=CAUSAL).sum().backward()
        assert len(runs) == 3

    def test_drop_path_rises_to_the_last_layer(self) -> None:
        model = Encoder(M, num_layers=4, num_heads=H, drop_path=0.2)
        assert [layer.drop_path.probability for layer in model.layers] == pytest.approx([0.05, 0.1, 0.15, 0.2])

    def test_drop_path_leaves_out_branches_of_examples(self) -> None:
        layer = EncoderLayer(M, H, drop_path=0.5)
        x = torch.randn(1, 3, M).expand(400, 3, M)
        outs = layer(x).detach()
        untouched = (outs == x).flatten(1).all(1)
        assert 60 < int(untouched.sum()) < 140  # both branches: a quarter
        assert len({round(float(out.sum()), 3) for out in outs}) == 4
        layer.eval()
        assert torch.equal(layer(x)[0], layer(x)[1])

    def test_dropout_is_off_in_eval_mode(self) -> None:
        model, x = Encoder(M, num_layers=2, num_heads=H, dropout=0.5, ffn_dim=16), torch.randn(1, 4, M)
        assert not torch.equal(model(x), model(x))
        model.eval()
        plain = Encoder(M, num_layers=2, num_heads=H, ffn_dim=16)
        plain.load_state_dict(model.state_dict())
        assert torch.equal(model(x), plain(x))

    @pytest.mark.parametrize("norm_first", [True, False])
    def test_dropout_is_of_what_a_branch_adds(self, norm_first: bool) -> None:
        layer = without_mlp(EncoderLayer(M, H, norm_first=norm_first, dropout=0.5))
        layer.attention_norm, layer.mlp_norm = nn.Identity(), nn.Identity()
        nn.init.zeros_(layer.attention.out.weight)
        nn.init.ones_(layer.mlp.down.bias)
        x = torch.zeros(1, 50, M)
        assert layer(x).unique().tolist() == [0.0, 2.0]
        assert layer.eval()(x).unique().tolist() == [1.0]

    def test_rates_of_dropout(self) -> None:
        layer = DecoderLayer(M, H, dropout=0.1)
        assert isinstance(layer.self_attention, MultiHeadAttention)
        assert (layer.dropout.p, layer.mlp.dropout.p, layer.self_attention.dropout) == (0.1, 0.1, 0.1)
        layer = DecoderLayer(M, H, dropout=0.1, attention_dropout=0.0, ffn_dropout=0.3)
        assert isinstance(layer.cross_attention, MultiHeadAttention)
        assert (layer.dropout.p, layer.mlp.dropout.p, layer.cross_attention.dropout) == (0.1, 0.3, 0.0)

    @pytest.mark.parametrize("make", [gpt, decoder])
    def test_every_parameter_gets_a_gradient(self, make: Any) -> None:
        model, x = make(), torch.randn(2, 4, M, dtype=F64)
        memory = {"key": torch.randn(2, 3, 5, dtype=F64)} if make is decoder else {}
        (model(x, mask=CAUSAL, **memory) * torch.randn(M, dtype=F64)).sum().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())] == []

    @pytest.mark.parametrize("norm", ["layer", "rms"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # what stands before it may give either
    def test_autocast(self, norm: Any, dtype: torch.dtype) -> None:
        model, x = Encoder(M, num_layers=2, num_heads=H, norm=norm), torch.randn(2, 4, M).to(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            low = model(x, mask=CAUSAL)
        assert low.dtype == dtype
        torch.testing.assert_close(low.float(), model(x.float(), mask=CAUSAL), atol=0.1, rtol=0.1)


# Making them


class TestMaking:
    def test_names_of_parts(self) -> None:
        parts = ["attention", "attention_norm", "mlp", "mlp_norm", "dropout", "drop_path"]
        assert [name for name, _ in EncoderLayer(M, H).named_children()] == parts
        parts = ["self_attention", "self_attention_norm", "cross_attention", "cross_attention_norm", *parts[2:]]
        assert [name for name, _ in DecoderLayer(M, H).named_children()] == parts
        assert [name for name, _ in Encoder(M, num_layers=1, num_heads=H).named_children()] == ["layers", "norm"]

    def test_without_bias_there_is_none(self) -> None:
        for model in (
            Encoder(M, num_layers=2, num_heads=H, bias=False),
            Decoder(M, num_layers=2, num_heads=H, bias=False),
        ):
            assert [name for name, _ in model.named_parameters() if "bias" in name] == []

    def test_the_final_norm_is_there_where_norms_stand_first(self) -> None:
        for norm_first in (True, False):
            model = Encoder(M, num_layers=1, num_heads=H, norm_first=norm_first, norm="rms", norm_eps=0.5)
            assert (model.norm is not None) is norm_first
        assert isinstance(Decoder(M, num_layers=1, num_heads=H).norm, nn.LayerNorm)
        assert Encoder(M, num_layers=1, num_heads=H, final_norm=False).norm is None
        norm = Encoder(M, num_layers=1, num_heads=H, norm_first=False, norm="rms", norm_eps=0.5, final_norm=True).norm
        assert isinstance(norm, nn.RMSNorm)
        assert norm.eps == 0.5

    def test_from_layers_that_differ(self) -> None:
        layers = [EncoderLayer(M, 3), EncoderLayer(M, 4, activation="swiglu")]
        x = torch.randn(1, 3, M)
        model = Encoder.from_layers(layers, nn.LayerNorm(M))
        assert isinstance(model, Encoder)
        torch.testing.assert_close(model(x), nn.LayerNorm(M)(layers[1](layers[0](x))))

    def test_reset_parameters(self) -> None:
        for model in (gpt(), decoder()):
            for parameter in model.parameters():
                nn.init.constant_(parameter, 7.0)
            model.reset_parameters()
            assert [name for name, p in model.named_parameters() if bool((p == 7.0).any())] == []

    def test_on_the_meta_device(self) -> None:
        model = Encoder(M, num_layers=2, num_heads=H, device="meta")
        assert {p.device.type for p in model.parameters()} == {"meta"}

    def test_says_what_it_is(self) -> None:
        shown = repr(Encoder(M, num_layers=1, num_heads=H, norm_first=False, checkpointing=True))
        assert "12, checkpointing=True" in shown
        assert "12, norm_first=False" in shown


# What they refuse


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"num_heads": None}, "num_heads: expected the number of heads, or a module as attention"),
            ({"norm": "batch"}, "norm: expected one of 'rms', 'layer'. Received: norm='batch'"),
            ({"dropout": 1.5}, "dropout: expected a probability"),
            ({"drop_path": -1}, "drop_path: expected a probability"),
            ({"attention": MultiHeadAttention(M, H)}, "num_heads: expected None with given attention modules"),
            (
                {"attention": MultiHeadAttention(8, 2), "num_heads": None},
                "dim=12, as this layer. Received: dim=8",
            ),
            ({"attention": "mha", "num_heads": None}, "attention: expected an attention module"),
            (
                {"attention": MultiHeadAttention(M, H), "num_heads": None, "attention_dropout": 0.1},
                "attention_dropout: expected None with given attention modules",
            ),
        ],
    )
    def test_options_of_a_layer(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ArgumentError, match=said):
            EncoderLayer(**{"dim": M, "num_heads": H, **options})

    def test_options_of_a_decoder_layer(self) -> None:
        ready = MultiHeadAttention(M, H)
        with pytest.raises(ArgumentError, match=r"a module as cross_attention"):
            DecoderLayer(M, self_attention=ready)
        with pytest.raises(ArgumentError, match="num_heads: expected None with given"):
            DecoderLayer(M, H, self_attention=ready, cross_attention=ready)
        with pytest.raises(ArgumentError, match="memory_dim: expected None with cross_attention"):
            DecoderLayer(M, H, cross_attention=ready, memory_dim=5)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"num_layers": 0}, "num_layers: expected a whole number of at least 1. Received: num_layers=0"),
            ({"attention": MultiHeadAttention(M, H)}, "expected a function that makes .* lambda: MultiHeadAttention"),
            ({"drop_path": 2}, "drop_path: expected a probability"),
        ],
    )
    def test_options_of_a_stack(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ArgumentError, match=said):
            Encoder(M, **{"num_layers": 2, "num_heads": H, **options})

    def test_layers_that_do_not_fit(self) -> None:
        with pytest.raises(ArgumentError, match=r"layers: expected one or more. Received: layers="):
            Encoder.from_layers([])
        with pytest.raises(ArgumentError, match=r"layers: expected the same dim in all layers"):
            Encoder.from_layers([EncoderLayer(12, 2), EncoderLayer(8, 2)])

    @pytest.mark.parametrize(
        "model", [EncoderLayer(M, H), Encoder(M, num_layers=1, num_heads=H)], ids=["layer", "stack"]
    )
    def test_calls_of_an_encoder(self, model: Any) -> None:
        x = torch.randn(2, 4, M)
        with pytest.raises(ArgumentError, match=r"key: expected None, an encoder reads one sequence"):
            model(x, x)
        with pytest.raises(ArgumentError, match="value: expected None"):
            model(x, value=x)
        with pytest.raises(ShapeError, match=r"query: expected \[B, S, 12\]. Received: query=\[2, 4, 5\]"):
            model(x[..., :5])
        with pytest.raises(ShapeError, match=r"x\[None\]"):
            model(x[0])
        with pytest.raises(DtypeError, match="query: expected a tensor"):
            model(None)
        with pytest.raises(DtypeError, match="real: expected bool or integers"):
            model(x, real=torch.ones(2, 4))
        with pytest.raises(ShapeError, match=r"real: expected \[2, 4\], one entry for each token"):
            model(x, real=torch.ones(2, 3, dtype=torch.bool))
        with pytest.raises(DtypeError, match="mask"):
            model(x, mask=torch.zeros(4, 4))
        with pytest.raises(ShapeError, match="position_ids"):
            Encoder(M, num_layers=1, attention=lambda: rope_attention().float())(x, position_ids=torch.arange(3))
        with pytest.raises(ArgumentError, match="position_ids"):
            model(x, position_ids=torch.arange(4))

    @pytest.mark.parametrize(
        "model", [DecoderLayer(M, H), Decoder(M, num_layers=1, num_heads=H)], ids=["layer", "stack"]
    )
    def test_calls_of_a_decoder(self, model: Any) -> None:
        x, memory = torch.randn(2, 4, M), torch.randn(2, 3, M)
        with pytest.raises(ArgumentError, match="key: expected the memory"):
            model(x)
        with pytest.raises(ShapeError, match=r"key: expected \[B, S, 12\]. Received: key=\[2, 3, 5\]"):
            model(x, memory[..., :5])
        with pytest.raises(ShapeError, match=r"key: expected the memory \[B, K, memory_dim\]. Received: key=\[3, 12\]"):
            model(x, memory[0])
        with pytest.raises(DtypeError, match=r"key: expected the memory, a tensor .*. Received: key=Band"):
            model(x, CAUSAL)
        with pytest.raises(ShapeError, match="key: expected the batch size of query, B=2"):
            model(x, memory[:1])
        with pytest.raises(DtypeError, match="memory_real: expected bool or integers"):
            model(x, memory, memory_real=torch.ones(2, 3))
        with pytest.raises(ShapeError, match=r"memory_real: expected \[2, 3\], one entry for each token"):
            model(x, memory, memory_real=torch.ones(2, 4, dtype=torch.bool))
