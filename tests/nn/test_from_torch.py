"""PyTorch's attention and transformer modules with their weights in ours: equal outputs and gradients, or a refusal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise import masks
from headwise.errors import ArgumentError, DtypeError
from headwise.nn import MultiHeadAttention, positions
from headwise.nn.transformer import Decoder, Encoder
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer

B, Q, K, M, H = 2, 5, 7, 12, 3
REAL_Q = torch.tensor([[True] * Q, [True] * 3 + [False] * 2])
REAL_K = torch.tensor([[True] * 4 + [False] * 3, [True] * K])
CAUSAL = torch.ones(Q, Q, dtype=torch.bool).tril()


def randomised(module: nn.Module) -> Any:
    """With random biases and norms too, which are 0 and 1 at the start."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def first(x: Tensor, batch_first: bool) -> Tensor:
    """[B, S, M] as a torch layer wants it, and back."""
    return x if batch_first else x.transpose(0, 1)


def check_equal(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: list[Tensor], real: Tensor | None = None
) -> None:
    """Outputs within 1e-5 and gradients of the inputs within 1e-4, where tokens are real."""
    results = []
    for run in (ours, theirs):
        given = [x.detach().clone().requires_grad_() for x in inputs]
        out = run(*given)
        out = out if real is None else out[real]
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        results.append((out, [x.grad for x in given]))
    (out, gradients), (expected, expected_gradients) = results
    assert out.numel()
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-4)


def check_equal_weight_gradients(ours: Any, theirs: nn.Module) -> None:
    """After both ran backwards; `theirs` is used up: what converts its weights converts their gradients too."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    expected = dict(type(ours).from_torch(theirs).named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].detach(), atol=1e-4, rtol=1e-4, msg=name)


# Attention

WIDTHS: list[dict[str, int]] = [{}, {"kdim": 6}, {"vdim": 5}, {"kdim": 6, "vdim": 5}]


class TestAttention:
    @pytest.mark.parametrize(("bias", "batch_first"), list(itertools.product([True, False], repeat=2)))
    def test_self_attention(self, bias: bool, batch_first: bool) -> None:
        theirs = randomised(nn.MultiheadAttention(M, H, bias=bias, batch_first=batch_first))
        ours = MultiHeadAttention.from_torch(theirs)

        def run(x: Tensor) -> Tensor:
            x = x if batch_first else x.transpose(0, 1)
            out = theirs(x, x, x, attn_mask=~CAUSAL, key_padding_mask=~REAL_Q)[0]
            return out if batch_first else out.transpose(0, 1)

        x = torch.randn(B, Q, M)
        check_equal(lambda x: ours(x, mask=masks.causal(), real=REAL_Q), run, [x])
        check_equal(lambda x: ours(x, mask=CAUSAL, real=REAL_Q), run, [x])
        for module, given in ((ours, x), (theirs, first(x, batch_first))):
            module.zero_grad()
            out = module(given) if module is ours else module(given, given, given)[0]
            out.square().sum().backward()
        check_equal_weight_gradients(ours, theirs)

    @pytest.mark.parametrize(("widths", "bias"), list(itertools.product(WIDTHS, [True, False])))
    def test_cross_attention_of_any_widths(self, widths: dict[str, int], bias: bool) -> None:
        theirs = randomised(nn.MultiheadAttention(M, H, bias=bias, batch_first=True, **widths))
        ours = MultiHeadAttention.from_torch(theirs)
        mask = torch.rand(Q, K) < 0.6
        mask[:, 0] = True
        inputs = [torch.randn(B, Q, M), torch.randn(B, K, theirs.kdim), torch.randn(B, K, theirs.vdim)]
        check_equal(
            lambda q, k, v: ours(q, k, v, mask, real=REAL_K),
            lambda q, k, v: theirs(q, k, v, attn_mask=~mask, key_padding_mask=~REAL_K)[0],
            inputs,
        )

    @pytest.mark.parametrize(("widths", "bias"), list(itertools.product(WIDTHS, [True, False])))
    def test_there_and_back(self, widths: dict[str, int], bias: bool) -> None:
        theirs = randomised(nn.MultiheadAttention(M, H, bias=bias, batch_first=True, dropout=0.25, **widths)).eval()
        back = MultiHeadAttention.from_torch(theirs).to_torch()
        assert {name: x.tolist() for name, x in back.state_dict().items()} == {
            name: x.tolist() for name, x in theirs.state_dict().items()
        }
        assert (back.dropout, back.batch_first, back.training) == (0.25, True, False)
        assert (back.kdim, back.vdim, back.num_heads) == (theirs.kdim, theirs.vdim, H)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_the_dtype_stays(self, dtype: torch.dtype) -> None:
        theirs = nn.MultiheadAttention(M, H, dtype=dtype)
        ours = MultiHeadAttention.from_torch(theirs)
        assert {p.dtype for p in ours.parameters()} == {dtype}
        assert {p.dtype for p in ours.to_torch().parameters()} == {dtype}

    @pytest.mark.parametrize("training", [True, False])
    def test_dropout_and_training_stay(self, training: bool) -> None:
        theirs = nn.MultiheadAttention(M, H, dropout=0.5, batch_first=True).train(training)
        ours = MultiHeadAttention.from_torch(theirs, kernel="reference")
        assert (ours.dropout, ours.training, ours.kernel) == (0.5, training, "reference")
        x = torch.randn(B, Q, M)
        assert torch.equal(ours(x), ours(x)) is not training
        assert ours.to_torch().training is training

    def test_the_weights_are_copies(self) -> None:
        theirs = nn.MultiheadAttention(M, H)
        ours = MultiHeadAttention.from_torch(theirs)
        back = ours.to_torch()
        before = ours.qkv.weight.clone()
        nn.init.zeros_(theirs.in_proj_weight)
        nn.init.zeros_(back.in_proj_weight)
        assert torch.equal(ours.qkv.weight, before)

    @pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
    def test_what_ours_has_not_is_refused(self, option: str) -> None:
        with pytest.raises(ArgumentError, match=f"without {option}. Received: one with"):
            MultiHeadAttention.from_torch(nn.MultiheadAttention(M, H, **{option: True}))

    def test_another_module_is_refused(self) -> None:
        with pytest.raises(DtypeError, match=r"expected an nn\.MultiheadAttention. Received: Linear"):
            MultiHeadAttention.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"num_kv_heads": 1}, "num_kv_heads"),
            ({"head_dim": 8}, "head_dim"),
            ({"value_head_dim": 8}, "head_dim"),
            ({"scale": 1.0}, "scale"),
            ({"softcap": 5.0}, "softcap"),
            ({"sinks": True}, "sinks"),
            ({"qk_norm": "rms"}, "qk_norm"),
            ({"gate": True}, "gate"),
            ({"positions": positions.Rope(4)}, "positions"),
            ({"projection": "shared"}, "projection"),
            ({"output_bias": False}, "bias == output_bias"),
            ({"bias": False, "output_bias": True}, "bias == output_bias"),
        ],
    )
    def test_what_torch_has_not_is_refused(self, options: dict[str, Any], named: str) -> None:
        with pytest.raises(ArgumentError, match=named):
            MultiHeadAttention(M, H, **options).to_torch()

    def test_the_usual_scale_is_no_obstacle(self) -> None:
        assert isinstance(MultiHeadAttention(M, H, scale=(M // H) ** -0.5).to_torch(), nn.MultiheadAttention)


# Layers and stacks

ACTIVATIONS: list[Any] = ["relu", "gelu", functional.silu, nn.GELU("tanh"), nn.ReLU(), nn.SiLU()]
KINDS = list(itertools.product([True, False], [True, False], [True, False]))


class TestEncoder:
    @pytest.mark.parametrize(("norm_first", "bias", "batch_first"), KINDS)
    @pytest.mark.parametrize("training", [True, False])
    def test_layer(self, norm_first: bool, bias: bool, batch_first: bool, training: bool) -> None:
        theirs = nn.TransformerEncoderLayer(
            M, H, 20, 0.0, "gelu", norm_first=norm_first, bias=bias, batch_first=batch_first
        )
        randomised(theirs).train(training)
        ours = EncoderLayer.from_torch(theirs)
        assert ours.training is training

        def run(x: Tensor, mask: Tensor | None = None, real: Tensor | None = None) -> Tensor:
            padding = None if real is None else ~real
            return first(theirs(first(x, batch_first), mask, padding), batch_first)

        x = torch.randn(B, Q, M)
        check_equal(ours, run, [x])
        check_equal(lambda x: ours(x, mask=masks.causal()), lambda x: run(x, ~CAUSAL), [x])
        check_equal(lambda x: ours(x, mask=CAUSAL, real=REAL_Q), lambda x: run(x, ~CAUSAL, REAL_Q), [x], real=REAL_Q)
        for module in (ours, theirs):
            module.zero_grad()
            (module(x) if batch_first or module is ours else module(first(x, False))).square().sum().backward()
        check_equal_weight_gradients(ours, theirs)

    @pytest.mark.parametrize(
        "activation", ACTIVATIONS, ids=[getattr(each, "__name__", str(each)) for each in ACTIVATIONS]
    )
    def test_activations(self, activation: Any) -> None:
        theirs = randomised(nn.TransformerEncoderLayer(M, H, 20, 0.0, activation, batch_first=True))
        check_equal(EncoderLayer.from_torch(theirs), theirs, [torch.randn(B, Q, M)])

    @pytest.mark.parametrize(("norm_first", "final_norm"), list(itertools.product([True, False], repeat=2)))
    @pytest.mark.parametrize("training", [True, False])
    def test_stack(self, norm_first: bool, final_norm: bool, training: bool) -> None:
        layer = nn.TransformerEncoderLayer(M, H, 20, 0.0, "relu", norm_first=norm_first, batch_first=True)
        norm = nn.LayerNorm(M, eps=1e-3) if final_norm else None
        theirs = randomised(nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False)).train(training)
        ours = Encoder.from_torch(theirs)
        x = torch.randn(B, Q, M)
        check_equal(
            lambda x: ours(x, mask=masks.causal(), real=REAL_Q),
            lambda x: theirs(x, mask=~CAUSAL, src_key_padding_mask=~REAL_Q),
            [x],
            real=REAL_Q,
        )
        with torch.no_grad():  # torch's fused path
            torch.testing.assert_close(ours(x, real=REAL_Q)[REAL_Q], theirs(x, None, ~REAL_Q)[REAL_Q])

    def test_the_norms_stay_whatever_they_are(self) -> None:
        layer = nn.TransformerEncoderLayer(M, H, 20, 0.0, batch_first=True, layer_norm_eps=0.1)
        layer.norm2 = nn.RMSNorm(M, eps=0.2)  # type: ignore[assignment]
        theirs = randomised(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        check_equal(Encoder.from_torch(theirs), theirs, [torch.randn(B, Q, M)])

    def test_dropout_and_dtype_stay(self) -> None:
        theirs = nn.TransformerEncoderLayer(M, H, 20, 0.25, dtype=torch.float64)
        theirs.dropout.p, theirs.self_attn.dropout = 0.5, 0.75
        ours = EncoderLayer.from_torch(theirs)
        assert isinstance(ours.attention, MultiHeadAttention)
        assert (ours.dropout.p, ours.mlp.dropout.p, ours.attention.dropout) == (0.25, 0.5, 0.75)
        assert {p.dtype for p in ours.parameters()} == {torch.float64}


class TestDecoder:
    @pytest.mark.parametrize(("norm_first", "bias", "batch_first"), KINDS)
    @pytest.mark.parametrize("training", [True, False])
    def test_layer(self, norm_first: bool, bias: bool, batch_first: bool, training: bool) -> None:
        theirs = nn.TransformerDecoderLayer(
            M, H, 20, 0.0, "relu", norm_first=norm_first, bias=bias, batch_first=batch_first
        )
        randomised(theirs).train(training)
        ours = DecoderLayer.from_torch(theirs)
        assert ours.training is training
        mask = torch.rand(Q, K) < 0.6
        mask[:, [0, -1]] = True

        def run(x: Tensor, memory: Tensor, **given: Tensor) -> Tensor:
            return first(theirs(first(x, batch_first), first(memory, batch_first), **given), batch_first)

        inputs = [torch.randn(B, Q, M), torch.randn(B, K, M)]
        check_equal(ours, run, inputs)
        check_equal(
            lambda x, memory: ours(x, memory, mask=masks.causal(), memory_real=REAL_K),
            lambda x, memory: run(x, memory, tgt_mask=~CAUSAL, memory_key_padding_mask=~REAL_K),
            inputs,
        )
        check_equal(
            lambda x, memory: ours(x, memory, mask=CAUSAL, real=REAL_Q, memory_mask=mask, memory_real=REAL_K),
            lambda x, memory: run(
                x,
                memory,
                tgt_mask=~CAUSAL,
                tgt_key_padding_mask=~REAL_Q,
                memory_mask=~mask,
                memory_key_padding_mask=~REAL_K,
            ),
            inputs,
            real=REAL_Q,
        )

    @pytest.mark.parametrize(("norm_first", "final_norm"), list(itertools.product([True, False], repeat=2)))
    def test_stack(self, norm_first: bool, final_norm: bool) -> None:
        layer = nn.TransformerDecoderLayer(M, H, 20, 0.0, "gelu", norm_first=norm_first, batch_first=True)
        theirs = randomised(nn.TransformerDecoder(layer, 3, nn.LayerNorm(M) if final_norm else None))
        ours = Decoder.from_torch(theirs)
        inputs = [torch.randn(B, Q, M), torch.randn(B, K, M)]
        check_equal(
            lambda x, memory: ours(x, memory, mask=masks.causal(), real=REAL_Q, memory_real=REAL_K),
            lambda x, memory: theirs(
                x,
                memory,
                tgt_mask=~CAUSAL,
                tgt_key_padding_mask=~REAL_Q,
                memory_key_padding_mask=~REAL_K,
            ),
            inputs,
            real=REAL_Q,
        )
        for module in (ours, theirs):
            module.zero_grad()
            module(*inputs).square().sum().backward()
        check_equal_weight_gradients(ours, theirs)


def test_an_activation_that_ours_has_not_is_refused() -> None:
    for activation, name in ((torch.tanh, "tanh"), (nn.ELU(), "ELU"), (lambda x: x, "<lambda>")):
        with pytest.raises(ArgumentError, match=f"expected the activation relu, gelu or silu .* Received: {name}"):
            EncoderLayer.from_torch(nn.TransformerEncoderLayer(M, H, 20, activation=activation))  # type: ignore[arg-type]


def test_branches_of_different_dropout_are_refused() -> None:
    theirs = nn.TransformerDecoderLayer(M, H, 20, 0.1)
    theirs.dropout2.p = 0.2
    with pytest.raises(ArgumentError, match=r"expected one rate of dropout .* Received: \[0.1, 0.2, 0.1\]"):
        DecoderLayer.from_torch(theirs)


@pytest.mark.parametrize("ours", [EncoderLayer, DecoderLayer, Encoder, Decoder])
def test_another_module_is_refused(ours: Any) -> None:
    with pytest.raises(DtypeError, match=rf"expected an nn\.Transformer{ours.__name__}. Received: Linear"):
        ours.from_torch(nn.Linear(2, 2))
