"""MultiHeadAttention: hand-computable numbers, then every option against one plain float64 oracle.

What it refuses is in test_multi_head_refuses.py, decoding in test_decoding.py, parity in test_parity.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headwise import masks
from headwise.errors import ShapeError
from headwise.masks import Mask
from headwise.nn import Cache, MultiHeadAttention
from headwise.nn.positions import Alibi, DynamicNTK, Positions, Rope, Rope2D, ShawRelative, T5Buckets
from headwise.records.site import is_causal

B, Q, K, M, H = 2, 5, 6, 16, 4

SCHEMES: dict[str, Callable[[int], Positions | None]] = {
    "none": lambda head_dim: None,
    "rope": lambda head_dim: Rope(head_dim),
    "rope interleaved": lambda head_dim: Rope(head_dim, interleaved=True, rotary_dim=2),
    "NTK": lambda head_dim: Rope(head_dim, scaling=DynamicNTK(4.0, 3)),
    "alibi": lambda head_dim: Alibi(H),
    "T5": lambda head_dim: T5Buckets(H, 8, 6),
    "Shaw": lambda head_dim: ShawRelative(head_dim, 2),
}


# Numbers to compute by hand


def identity(dim: int, heads: int, **options: Any) -> MultiHeadAttention:
    """All projections are the identity, without biases."""
    layer = MultiHeadAttention(dim, heads, bias=False, **options)
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.eye(dim).repeat(3, 1))
        layer.out.weight.copy_(torch.eye(dim))
    return layer


def test_two_tokens_one_head() -> None:
    # Scores of token 0: x0·x0 = ln 3, x0·x1 = 0, so it sees itself with 3/4 and the other with 1/4. Token 1 sees both
    # with scores 0 and 4: 1 / (1 + e^4).
    x = torch.tensor([[[math.log(3) ** 0.5, 0.0], [0.0, 2.0]]])
    y, record = identity(2, 1, scale=1.0)(x, record=True)
    low = 1 / (1 + math.e**4)
    torch.testing.assert_close(record.weights(), torch.tensor([[[[0.75, 0.25], [low, 1 - low]]]]))
    expected = [[0.75 * math.log(3) ** 0.5, 0.5], [low * math.log(3) ** 0.5, 2 - 2 * low]]
    torch.testing.assert_close(y, torch.tensor([expected]))


def test_heads_are_consecutive_columns_and_query_heads_share_key_heads_in_order() -> None:
    layer = MultiHeadAttention(4, 4, num_kv_heads=2, bias=False)
    with torch.no_grad():
        layer.qkv.weight.zero_()
        layer.qkv.weight[-2:, :2] = torch.eye(2)  # the two value heads are the input's first two columns
        layer.out.weight.copy_(torch.eye(4))
    y = layer(torch.tensor([[[1.0, 10.0, 0.0, 0.0], [3.0, 30.0, 0.0, 0.0]]]))
    torch.testing.assert_close(y, torch.tensor([[[2.0, 2.0, 20.0, 20.0]] * 2]))  # means: all scores are 0


# Every option against one plain float64 definition


@torch.no_grad()
def oracle(
    layer: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weights and output, from the layer's parameters, head by head. `allowed`: bool [B, H, Q, K], padding left out."""
    if layer.is_fused:
        weights_qkv = layer.qkv.weight.split(layer.projection_sizes)
        biases = [0.0] * 3 if layer.qkv.bias is None else layer.qkv.bias.split(layer.projection_sizes)
    else:
        weights_qkv = [layer.q.weight, layer.k.weight, layer.v.weight]
        biases = [0.0 if part.bias is None else part.bias for part in (layer.q, layer.k, layer.v)]
    k_ids = torch.arange(key.shape[1])[None] if real is None else (real.long().cumsum(1) - 1).clamp(min=0)
    q_ids = k_ids if query is key else torch.arange(query.shape[1])[None]
    a, y = [], []
    for h in range(layer.num_heads):
        g = h // (layer.num_heads // layer.num_kv_heads)
        own = []
        widths = (layer.head_dim, layer.head_dim, layer.value_head_dim)
        for x, w, b, width, i in zip((query, key, value), weights_qkv, biases, widths, (h, g, g), strict=True):
            columns = slice(i * width, (i + 1) * width)
            own.append(x[..., columns] @ w.T if layer.projection == "shared" else (x @ w.T + b)[..., columns])
        q, k, v = own
        if layer.q_norm is not None:
            q, k = layer.q_norm(q), layer.k_norm(k)
        bias: Tensor | float = 0.0
        if layer.positions is not None:
            q = layer.positions.rotate(q[:, None], q_ids, query.shape[1])[:, 0]
            k = layer.positions.rotate(k[:, None], k_ids, key.shape[1])[:, 0]
            heads = q[:, None].expand(-1, layer.num_heads, -1, -1)
            every = layer.positions.bias(heads, q_ids, k_ids, scale=layer.scale)
            bias = 0.0 if every is None else every[:, h]
        s = torch.einsum("bqd,bkd->bqk", q, k) * (layer.head_dim**-0.5 if layer.scale is None else layer.scale)
        s = s if layer.softcap is None else layer.softcap * torch.tanh(s / layer.softcap)
        s = (s + bias).masked_fill(~allowed[:, h], -math.inf)
        sink = torch.full_like(s[..., :1], -math.inf if layer.sinks is None else layer.sinks[h].item())
        a.append(torch.softmax(torch.cat((s, sink), -1), -1)[..., :-1].nan_to_num(0.0))
        y.append(torch.einsum("bqk,bke->bqe", a[-1], v))
    out = torch.cat(y, -1)
    if layer.gate is not None:
        out = out / (1 + torch.exp(-query @ layer.gate.weight.T))
    return torch.stack(a, 1), out @ layer.out.weight.T + (0.0 if layer.out.bias is None else layer.out.bias)


@st.composite
def layers(draw: st.DrawFn) -> tuple[MultiHeadAttention, bool]:
    """A layer with any options, and whether it is to read another sequence."""

    def any_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    cross, shared = any_of(False, True), any_of(False, False, True)
    options: dict[str, Any] = {"projection": "shared"} if shared else {"num_kv_heads": any_of(4, 2, 1)}
    if not shared:
        options |= {"head_dim": any_of(None, 6), "value_head_dim": any_of(None, 5), "bias": any_of(True, False)}
        if cross:
            options |= {"kdim": any_of(None, 7), "vdim": any_of(None, 9)}
    options |= {"output_bias": any_of(None, True, False), "qk_norm": any_of(None, "rms", "layer")}
    options |= {"softcap": any_of(None, 2.0), "sinks": any_of(True, False), "gate": any_of(True, False)}
    scheme = any_of(*SCHEMES)
    options["scale"] = any_of(None, 0.7)
    layer = MultiHeadAttention(M, H, positions=SCHEMES[scheme](options.get("head_dim") or 4), **options).double()
    return randomised(layer), cross


def randomised(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Every parameter gets something to do: biases, sinks and norms begin as constants."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.5)
    return layer


def inputs(layer: MultiHeadAttention, cross: bool) -> tuple[Tensor, ...]:
    """query [B, Q, M]; for cross-attention also key [B, K, kdim] and value [B, K, vdim]."""
    dtype = layer.out.weight.dtype
    query = torch.randn(B, Q, M, dtype=dtype)
    if not cross:
        return (query,)
    return query, torch.randn(B, K, layer.kdim, dtype=dtype), torch.randn(B, K, layer.vdim, dtype=dtype)


MASKS: dict[str, Callable[[int], Mask | Tensor | None]] = {
    "none": lambda keys: None,
    "causal": lambda keys: masks.causal(),
    "window": lambda keys: masks.window(2, 1),
    "Q×K": lambda keys: torch.rand(Q, keys) < 0.6,
    "H×Q×K": lambda keys: torch.rand(H, Q, keys) < 0.6,
    "B×H×Q×K": lambda keys: torch.rand(B, H, Q, keys) < 0.6,
    "with one empty row": lambda keys: torch.arange(Q)[:, None] != 1,
}


@given(layers(), st.sampled_from([*MASKS]), st.booleans())
@settings(max_examples=150)
def test_every_option_is_what_the_oracle_computes(
    made: tuple[MultiHeadAttention, bool], mask_name: str, pads: bool
) -> None:
    layer, cross = made
    given_ = inputs(layer, cross)
    keys = K if cross else Q
    mask = MASKS[mask_name](keys)
    if mask_name == "with one empty row":
        mask = mask.expand(Q, keys)
    padding = torch.arange(keys) >= torch.tensor([[2], [0]]) if pads else None
    allowed = torch.ones(B, H, Q, keys, dtype=torch.bool)
    if mask is not None:
        allowed &= mask.to_bool(Q, keys) if isinstance(mask, Mask) else mask
    if padding is not None:
        allowed &= padding[:, None, None]
    every = given_ if cross else given_ * 3
    weights, expected = oracle(layer, *every, allowed, padding)

    y = layer(*given_, mask=mask, real=padding)
    torch.testing.assert_close(y, expected, atol=1e-9, rtol=1e-7)
    recorded, record = layer(*given_, mask=mask, real=padding, record=True)
    assert torch.equal(recorded, y)  # recording takes no other path
    assert record.shape == (B, H, Q, keys)
    assert record.site.kind == ("cross" if cross else "self")
    torch.testing.assert_close(record.weights(), weights, atol=1e-9, rtol=1e-7)


@given(layers())
@settings(max_examples=40)
def test_every_parameter_and_input_receives_a_gradient(made: tuple[MultiHeadAttention, bool]) -> None:
    layer, cross = made
    given_ = [x.requires_grad_() for x in inputs(layer, cross)]
    layer(*given_, mask=masks.causal()).square().sum().backward()
    for name, x in [*layer.named_parameters(), *zip(("query", "key", "value"), given_, strict=False)]:
        assert x.grad is not None, name
        assert x.grad.isfinite().all(), name
        # What is added to all keys alike cancels in the softmax: its gradient is rightly 0.
        assert x.grad.abs().sum() > 1e-8 or name in ("k.bias", "k_norm.bias"), name


def test_the_gradients_are_those_of_the_numbers() -> None:
    layer = randomised(MultiHeadAttention(4, 2, num_kv_heads=1, qk_norm="rms", sinks=True, gate=True).double())
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, state, (x,), {"mask": masks.causal()})

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


def test_shaws_vectors_for_values_are_added() -> None:
    layer = randomised(MultiHeadAttention(M, H, positions=ShawRelative(4, 2, values=True), bias=False).double())
    x = torch.randn(B, Q, M, dtype=torch.float64)
    y, record = layer(x, mask=masks.causal(), record=True)
    table = layer.positions.value_embedding.weight[(torch.arange(Q) - torch.arange(Q)[:, None]).clamp(-2, 2) + 2]
    v = (x @ layer.qkv.weight.T)[..., 2 * M :].unflatten(-1, (H, 4))
    a = record.weights()
    heads = torch.einsum("bhqk,bkhe->bqhe", a, v) + torch.einsum("bhqk,qke->bqhe", a, table)
    torch.testing.assert_close(y, heads.flatten(2) @ layer.out.weight.T)


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({}, True),
        ({"real": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}, True),
        ({"real": torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 0]])}, True),
        ({"real": torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}, False),  # the third stands beside the first
        ({"position_ids": torch.tensor([0, 1, 5, 6, 7])}, False),
        ({"key": torch.randn(B, K, M, dtype=torch.float64)}, False),
    ],
    ids=["plain", "left padding", "right padding", "padding between", "position_ids", "another sequence"],
)
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["", "causal"])
def test_alibi_is_slopes_where_the_tokens_follow_one_another(
    given: dict[str, Tensor], numbers: bool, mask: Mask | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = randomised(MultiHeadAttention(M, H, positions=Alibi(H)).double())
    x = torch.randn(B, Q, M, dtype=torch.float64)
    out, record = layer(x, mask=mask, record=True, **given)
    assert (record.slopes is not None, record.bias is None) == (numbers, numbers)
    monkeypatch.setattr(Alibi, "slopes_of_heads", lambda self: None)
    dense, other = layer(x, mask=mask, record=True, **given)
    assert other.bias is not None
    real = given.get("real", torch.ones(B, Q)).bool()  # what stands at padding means nothing
    torch.testing.assert_close(out[real], dense[real])
    torch.testing.assert_close(record.weights()[0][:, real[0]], other.weights()[0][:, real[0]])


def test_alibi_is_slopes_behind_a_cache() -> None:
    layer = randomised(MultiHeadAttention(M, H, positions=Alibi(H)).double())
    x, real = torch.randn(B, Q, M, dtype=torch.float64), torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    whole, cache = layer(x, mask=masks.causal(), real=real), Cache()
    layer(x[:, :3], mask=masks.causal(), real=real[:, :3], cache=cache)
    rest, record = layer(x[:, 3:], mask=masks.causal(), cache=cache, record=True)
    assert record.slopes is layer.positions.slopes or torch.equal(record.slopes, layer.positions.slopes)
    torch.testing.assert_close(rest, whole[:, 3:])


def test_a_scheme_derived_from_alibi_has_a_bias_of_its_own() -> None:
    class Steep(Alibi):
        def bias(self, *args: Any, **kwargs: Any) -> Tensor:
            return 2 * super().bias(*args, **kwargs)

    x = torch.randn(B, Q, M)
    _, record = MultiHeadAttention(M, H, positions=Steep(H))(x, record=True)
    torch.testing.assert_close(record.bias[0, 0], -2 * 0.25 * (torch.arange(Q) - torch.arange(Q)[:, None]).abs())


# What must hold of all of them


def test_dropout_is_off_in_eval_and_on_in_training() -> None:
    layer, x = MultiHeadAttention(M, H, dropout=0.5), torch.randn(B, 64, M)
    plain = MultiHeadAttention(M, H)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(x), plain(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    # Of a constant value the output is kept weights × 2: its mean stays, its spread says that half are dropped.
    with torch.no_grad():
        layer.qkv.weight.zero_()
        layer.qkv.bias[2 * M :] = 1.0
        layer.out.weight.copy_(torch.eye(M))
    y = layer(x)[..., ::4]  # one column of each head
    assert y.mean().item() == pytest.approx(1.0, abs=0.05)
    assert y.var().item() == pytest.approx(1 / 64, rel=0.3)


def test_a_row_that_sees_nothing_gives_the_output_bias_and_finite_gradients() -> None:
    layer, x = MultiHeadAttention(M, H), torch.randn(B, Q, M, requires_grad=True)
    nn.init.normal_(layer.out.bias)
    y = layer(x, mask=torch.zeros(Q, Q, dtype=torch.bool))
    torch.testing.assert_close(y, layer.out.bias.expand_as(y))
    y.sum().backward()
    assert not x.grad.any()
    y = layer(x.detach(), real=torch.tensor([[True] * Q, [False] * Q]))
    torch.testing.assert_close(y[1], layer.out.bias.expand(Q, M))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nan_in_padded_tokens_does_not_leak(scheme: str) -> None:
    layer = MultiHeadAttention(M, H, positions=SCHEMES[scheme](4))
    x, real = torch.randn(B, Q, M), torch.arange(Q) >= torch.tensor([[2], [0]])
    y = layer(x, real=real)
    spoilt = layer(x.masked_fill(~real[..., None], math.nan), real=real)
    torch.testing.assert_close(spoilt[real], y[real])
    query = torch.randn(B, 3, M)
    found = layer(query, x.masked_fill(~real[..., None], math.nan), real=real)
    torch.testing.assert_close(found, layer(query, x, real=real))


@given(layers())
def test_inputs_stay_as_they_are_and_need_not_be_contiguous(made: tuple[MultiHeadAttention, bool]) -> None:
    layer, cross = made
    given_ = inputs(layer, cross)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1)[..., ::1] for x in given_]
    assert not strided[0].is_contiguous()
    y = layer(*strided, mask=masks.causal())
    for x, same in zip(given_, strided, strict=True):
        assert torch.equal(x, same)
    torch.testing.assert_close(y, layer(*given_, mask=masks.causal()))


def test_a_record_says_whether_it_is_causal() -> None:
    layer, x = MultiHeadAttention(M, H), torch.randn(1, 4, M)
    cases = [(x, None, False), (x, masks.causal(), True), (x, masks.window(2, 1), False), (x[:, :1], None, True)]
    for tokens, mask, causal in cases:
        _, record = layer(tokens, mask=mask, record=True)
        assert record.site.causal == causal

    def never(*_: object) -> bool:
        raise AssertionError("asked for every cell of a long mask")

    assert not is_causal(masks.from_predicate(never), 2**13, 2**13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", [*SCHEMES, "Shaw with values"])
def test_a_module_in_half_precision_stays_near_float32(scheme: str, dtype: torch.dtype) -> None:
    made = SCHEMES.get(scheme, lambda head_dim: ShawRelative(head_dim, 2, values=True))(4)
    layer, x = MultiHeadAttention(M, H, positions=made, qk_norm="rms", sinks=True, gate=True), torch.randn(B, Q, M)
    lowered = copy.deepcopy(layer).to(dtype)
    y, record = lowered(x.to(dtype), mask=masks.causal(), record=True)
    assert y.dtype == dtype
    assert record.weights().dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x, mask=masks.causal()), atol=0.05, rtol=0.05)


def test_position_ids_say_where_tokens_stand() -> None:
    layer, x = MultiHeadAttention(M, H, positions=Rope(4)).double(), torch.randn(B, Q, M, dtype=torch.float64)
    y = layer(x)
    torch.testing.assert_close(layer(x, position_ids=torch.arange(Q) + 7), y)  # RoPE sees distances alone
    torch.testing.assert_close(layer(x, position_ids=torch.arange(Q).expand(B, -1)), y)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(x[:, order], position_ids=order), y[:, order])
    assert not torch.allclose(layer(x, position_ids=2 * torch.arange(Q)), y)


def test_patches_have_a_row_and_a_column() -> None:
    layer, x = MultiHeadAttention(M, H, positions=Rope2D(4)), torch.randn(B, 6, M)
    ids = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    order = torch.randperm(6)
    torch.testing.assert_close(layer(x[:, order], position_ids=ids[order]), layer(x, position_ids=ids)[:, order])
    with pytest.raises(ShapeError, match=r"position_ids: expected \(row, column\)"):
        layer(x)


def test_queries_of_the_same_sequence_may_have_other_values() -> None:
    """As in DETR, which adds positions to queries and keys alone."""
    layer = MultiHeadAttention(M, H)
    x, places = torch.randn(B, Q, M), torch.randn(B, Q, M)
    y, record = layer(x + places, x + places, x, record=True)
    same = x + places
    torch.testing.assert_close(layer(same, same, x), y)
    torch.testing.assert_close(record.weights(), layer(same, record=True)[1].weights())


def test_reset_parameters_and_what_is_printed() -> None:
    layer = MultiHeadAttention(M, H, num_kv_heads=2, sinks=True, qk_norm="rms", scale=0.5)
    bound = (6 / (M + M)) ** 0.5  # Glorot's, of each projection by itself
    q, k, _ = layer.qkv.weight.split(layer.projection_sizes)
    assert 0.8 * bound < q.abs().max() <= bound
    assert bound < k.abs().max() <= (6 / (M + 8)) ** 0.5
    randomised(layer).reset_parameters()
    assert not any(x.any() for x in (layer.qkv.bias, layer.sinks, layer.q_norm.weight - 1))
    assert repr(layer).startswith("MultiHeadAttention(\n  16, 4, num_kv_heads=2, scale=0.5, sinks=True\n")
