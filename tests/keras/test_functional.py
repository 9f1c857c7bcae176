"""`scaled_dot_product_attention`: numbers by hand, the same as headwise.attention, and what bad input gets."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError, KernelRefused, MaskError, ShapeError
from headwise.keras import masking, scaled_dot_product_attention
from headwise.keras.kernels import KERNELS
from headwise.masks import Mask
from tests.keras.backend import BACKEND, array, cases, compiled, gradients, tensor

S = 67  # no multiple of anything that a kernel blocks by


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def qkv(heads: int = 4, groups: int = 2, q_len: int = S, k_len: int = S, batch: int = 2) -> list[np.ndarray]:
    return [draw(batch, heads, q_len, 8), draw(batch, groups, k_len, 8, seed=1), draw(batch, groups, k_len, 6, seed=2)]


ZOO: dict[str, Mask | None] = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(5, 0),
    "window both sides": masks.window(3, 4) & masks.lengths([S, 40]),
    "padding": masks.lengths([S, 40]),
    "an empty example": masks.lengths([S, 0]) & masks.causal(),
    "documents": masks.documents(torch.arange(S) // 13),
    "prefix": masks.prefix(torch.tensor([5, 9])),
    "global": masks.global_tokens([0, 50]) | masks.window(3, 3),
    "dilated": masks.dilated(3),
    "big bird": masks.big_bird(S, block_size=8, window_blocks=3, global_blocks=1, random_blocks=1),
    "bits": masks.bits(torch.rand(S, S, generator=torch.Generator().manual_seed(0)) > 0.5),
    "a head each": masks.from_tensor(torch.rand(4, S, S, generator=torch.Generator().manual_seed(0)) > 0.9),
    "predicate": masks.from_predicate(lambda b, h, q, k: (q - k) % 2 == 0),
    "not": ~masks.window(2, 2),
}


def kernels_for(mask: Mask | None) -> list[str]:
    banded = mask is not None and mask.band() is not None and -math.inf not in mask.band()  # type: ignore[operator]
    masked = ["block_sparse"] if mask is not None else []
    return ["auto", "plain", "chunked", *(["banded"] if banded else []), *masked]


EVERYWHERE = [
    *(("none", "auto"), ("an empty example", "plain"), ("window both sides", "chunked")),
    *(("window", "banded"), ("window both sides", "block_sparse")),
]
CASES = cases([(name, kernel) for name, mask in ZOO.items() for kernel in kernels_for(mask)], *EVERYWHERE)


@pytest.mark.every_backend
def test_two_keys_by_hand() -> None:
    q, k = tensor([[[[1.0, 0.0]]]]), tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    v = tensor([[[[2.0], [4.0]]]])
    out, weights = scaled_dot_product_attention(q, k, v, scale=math.log(3.0), return_attention_scores=True)
    np.testing.assert_allclose(array(weights), [[[[0.75, 0.25]]]], atol=1e-6)  # e^ln3 : e^0
    np.testing.assert_allclose(array(out), [[[[2.5]]]], atol=1e-6)


def test_a_sink_takes_its_share_and_gives_nothing() -> None:
    q = k = tensor([[[[0.0]]]])
    out, weights = scaled_dot_product_attention(
        q, k, tensor([[[[8.0]]]]), sinks=tensor([math.log(3.0)]), return_attention_scores=True
    )
    np.testing.assert_allclose(array(weights), [[[[0.25]]]], atol=1e-6)  # e^0 : e^0 + 3
    np.testing.assert_allclose(array(out), [[[[2.0]]]], atol=1e-6)


@pytest.mark.every_backend
def test_every_mask_allows_what_it_allows_in_pytorch() -> None:
    known = [mask.aligned(S, S) for mask in ZOO.values() if mask is not None]
    at = tensor(np.arange(S, dtype=np.int32))
    for found, mask in zip(compiled(lambda at: [masking.cells(x, at, at) for x in known])(at), known, strict=True):
        wanted = np.broadcast_to(mask.to_bool(S).numpy(), (2, 4, S, S))
        np.testing.assert_array_equal(np.broadcast_to(array(found), wanted.shape), wanted)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_every_mask_and_kernel_gives_what_headwise_attention_gives(case: tuple[str, str]) -> None:
    name, kernel = case
    given, mask = qkv(), ZOO[name]
    options: dict[str, Any] = {"softcap": 3.0, "scale": 0.7}
    sinks, bias = draw(4), draw(1, 4, S, S)
    wanted = [torch.tensor(x, requires_grad=True) for x in (*given, bias, sinks)]
    out = headwise.attention(*wanted[:3], mask=mask, bias=wanted[3], sinks=wanted[4], **options)
    (out**2).sum().backward()

    def run(q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, mask, bias=bias, sinks=sinks, kernel=kernel, **options)

    inputs = [tensor(x) for x in (*given, bias, sinks)]
    np.testing.assert_allclose(array(compiled(run)(*inputs)), out.detach().numpy(), atol=1e-5)
    found = gradients(lambda *x: ops.sum(run(*x) ** 2), *inputs)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want.grad.numpy(), atol=1e-4)


@settings(max_examples=20)
@given(
    data=st.data(),
    groups=st.sampled_from([1, 2]),
    ratio=st.sampled_from([1, 3]),
    q_len=st.integers(1, 70),
    k_len=st.integers(1, 70),
    left=st.integers(0, 9),
    right=st.integers(0, 9),
)
def test_windows_of_any_size_on_any_lengths(
    data: st.DataObject, groups: int, ratio: int, q_len: int, k_len: int, left: int, right: int
) -> None:
    given = qkv(groups * ratio, groups, q_len, k_len)
    mask = masks.window(left, right) & masks.lengths([k_len, k_len // 2])
    kernel = data.draw(st.sampled_from(KERNELS))
    want = headwise.attention(*(torch.tensor(x, dtype=torch.float64) for x in given), mask=mask)
    got = compiled(lambda *x: scaled_dot_product_attention(*x, mask, kernel=kernel))(*map(tensor, given))
    np.testing.assert_allclose(array(got), want.numpy(), atol=1e-5)


@pytest.mark.parametrize("kernel", ["auto", "plain", "chunked", "banded"])
def test_a_mask_makes_weights_exactly_0_and_an_empty_row_gives_0(kernel: str) -> None:
    mask = masks.window(3, 0) & masks.lengths([S, 0])
    inputs = [tensor(x) for x in qkv()]
    out, weights = scaled_dot_product_attention(*inputs, mask, kernel=kernel, return_attention_scores=True)
    forbidden = ~np.broadcast_to(mask.to_bool(S).numpy(), array(weights).shape)
    assert (array(weights)[forbidden] == 0).all()
    np.testing.assert_allclose(array(weights)[0].sum(-1), 1, atol=1e-5)
    assert (array(out)[1] == 0).all()
    for gradient in gradients(lambda *x: ops.sum(scaled_dot_product_attention(*x, mask, kernel=kernel) ** 2), *inputs):
        assert np.isfinite(gradient).all()
        assert (gradient[1] == 0).all()


@pytest.mark.parametrize(
    ("kernel", "how"),
    [(kernel, "mask") for kernel in ("auto", "plain", "chunked", "block_sparse")]
    + [
        (kernel, "tensor") for kernel in ("auto", "plain", "chunked")
    ],  # a tensor's blocks are not known before the call
)
def test_nan_in_keys_that_nobody_may_attend_to_does_not_spread(kernel: str, how: str) -> None:
    q, k, v = qkv()
    mask = masks.lengths([S, 40])
    given = mask if how == "mask" else tensor(mask.to_bool(S).numpy())
    run = compiled(lambda *x: scaled_dot_product_attention(*x, given, kernel=kernel))
    want = array(run(*map(tensor, (q, k, v))))
    k[1, :, 40:], v[1, :, 40:] = np.nan, np.inf
    inputs = [tensor(x) for x in (q, k, v)]
    np.testing.assert_allclose(array(run(*inputs)), want, rtol=1e-5, atol=1e-6)
    for gradient in gradients(lambda *x: ops.sum(run(*x) ** 2), *inputs):
        assert np.isfinite(gradient).all()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = qkv()
    got = array(scaled_dot_product_attention(tensor(1e4 * q), tensor(1e4 * k), tensor(v)))
    best = np.repeat(np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, 2, 1)).argmax(-1), 1)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[0, 0], v[0, 0][best.reshape(2, 4, S)[0, 0]], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_softmax_is_float32_in_half_precision(dtype: str) -> None:
    inputs = [ops.cast(tensor(x), dtype) for x in qkv()]
    out, weights = scaled_dot_product_attention(*inputs, masks.causal(), return_attention_scores=True)
    assert keras.backend.standardize_dtype(out.dtype) == dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(array(weights).sum(-1), 1, atol=1e-5)
    exact = headwise.attention(*(torch.tensor(x) for x in qkv()), mask=masks.causal()).numpy()
    np.testing.assert_allclose(array(ops.cast(out, "float32")), exact, atol=0.05)


@pytest.mark.parametrize("kernel", ["plain", "chunked", "banded"])
def test_dropout_drops_weights_in_every_kernel_and_keeps_their_mean(kernel: str) -> None:
    q, k = draw(1, 2, 300, 4), draw(1, 2, 300, 4, seed=1)
    v, mask = np.ones((1, 2, 300, 1), np.float32), masks.window(99, 0)
    given: dict[str, Any] = {"dropout": 0.5, "kernel": kernel}
    first, again, other = (
        array(scaled_dot_product_attention(*map(tensor, (q, k, v)), mask, seed=seed, **given)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert first.mean() == pytest.approx(1.0, abs=0.05)
    assert (first[0, :, 260] != first[0, :, 10]).all()  # not every chunk drops alike


@pytest.mark.every_backend
def test_dropout_is_the_same_when_a_chunk_is_computed_again_for_the_gradient() -> None:
    q, k, v = qkv(2, 2, 9, 9)
    inputs = [tensor(x) for x in (q, k, v)]
    given: dict[str, Any] = {"dropout": 0.5, "seed": 3, "kernel": "chunked"}
    out = array(scaled_dot_product_attention(*inputs, **given))
    (_, _, gradient) = gradients(lambda *x: ops.sum(scaled_dot_product_attention(*x, **given)), *inputs)
    # The output is linear in v: Σ out = gradient · v, if both dropped the same weights.
    assert (gradient * v).sum() == pytest.approx(out.sum(), rel=1e-4)


class TestBadInput:
    def test_ranks_and_sizes(self) -> None:
        q, k, v = map(tensor, qkv())
        with pytest.raises(ShapeError, match=r"q: expected \[B, H, Q, D\].*Received: q.shape=\(4, 67, 8\)"):
            scaled_dot_product_attention(q[0], k, v)
        with pytest.raises(ShapeError, match="a divisor of the query heads H"):
            scaled_dot_product_attention(q[:, :3], k, v)
        with pytest.raises(ShapeError, match="the same number of dimensions D"):
            scaled_dot_product_attention(q, k[..., :4], v)
        with pytest.raises(ShapeError, match="one length K"):
            scaled_dot_product_attention(q, k, v[:, :, :9])
        with pytest.raises(ShapeError, match="one batch size B"):
            scaled_dot_product_attention(q[:1], k, v)

    def test_dtypes(self) -> None:
        q, k, v = map(tensor, qkv())
        with pytest.raises(DtypeError, match="one dtype"):
            scaled_dot_product_attention(q, ops.cast(k, "float16"), v)
        with pytest.raises(DtypeError, match="expected a float tensor"):
            scaled_dot_product_attention(ops.cast(q, "int32"), k, v)

    @pytest.mark.parametrize(
        ("shape", "hint"),
        [
            ((S, 40), "Q, K"),
            ((2, S), r"Padding \[B, K\] goes in value_mask="),  # would broadcast, were Q = 1
            ((4, S, S), r"A mask for each head is \[1, H, Q, K\]"),
            ((3, 1, S, S), "B, H, Q, K"),
            ((2, 3, S, S), "B, H, Q, K"),
            ((2, 1, 1, 1), "B, H, Q, K"),
            ((S,), "expected"),
        ],
    )
    def test_masks_that_would_broadcast_wrongly(self, shape: tuple[int, ...], hint: str) -> None:
        with pytest.raises(ShapeError, match=hint):
            scaled_dot_product_attention(*map(tensor, qkv()), tensor(np.ones(shape, bool)))

    @pytest.mark.parametrize("shape", [(S, S), (2, S, S), (2, 1, S), (2, 1, 1, S), (1, 4, S, S), (2, 4, 1, S)])
    @pytest.mark.parametrize("kernel", ["auto", "plain", "chunked"])
    def test_masks_that_broadcast_rightly(self, shape: tuple[int, ...], kernel: str) -> None:
        allowed = np.random.default_rng(0).random(shape) > 0.3
        full = allowed[:, None] if allowed.ndim == 3 else allowed
        dense = torch.tensor(np.broadcast_to(full, (2, 4, S, S)).copy())
        want = headwise.attention(*map(torch.tensor, qkv()), mask=dense).numpy()
        for dtype in (bool, np.int32):
            run = compiled(lambda *x: scaled_dot_product_attention(*x, kernel=kernel))
            got = run(*map(tensor, qkv()), tensor(allowed.astype(dtype)))
            np.testing.assert_allclose(array(got), want, atol=1e-5)

    def test_an_additive_mask_is_a_bias(self) -> None:
        q, k, v = map(tensor, qkv())
        additive = np.where(masks.causal().to_bool(S).numpy(), 0.0, -np.inf).astype(np.float32)
        with pytest.raises(DtypeError, match="A tensor that is added to the scores is a bias"):
            scaled_dot_product_attention(q, k, v, tensor(additive))
        got = scaled_dot_product_attention(q, k, v, bias=tensor(additive))
        np.testing.assert_allclose(array(got), array(scaled_dot_product_attention(q, k, v, masks.causal())), atol=1e-6)

    @pytest.mark.every_backend
    def test_kernels_that_cannot_say_why(self) -> None:
        inputs = [tensor(x) for x in qkv()]
        with pytest.raises(ArgumentError, match="kernel: expected one of auto, plain"):
            scaled_dot_product_attention(*inputs, kernel="flash")
        with pytest.raises(KernelRefused, match="banded computes windows with both ends"):
            scaled_dot_product_attention(*inputs, masks.causal(), kernel="banded")
        with pytest.raises(KernelRefused, match="block_sparse needs a mask"):
            scaled_dot_product_attention(*inputs, tensor(np.ones((S, S), bool)), kernel="block_sparse")
        if BACKEND != "torch":
            with pytest.raises(KernelRefused, match=f"needs Keras on PyTorch.*on {BACKEND}"):
                scaled_dot_product_attention(*inputs, kernel="torch")
        else:
            np.testing.assert_array_equal(
                array(scaled_dot_product_attention(*inputs, kernel="torch")),
                headwise.attention(*map(torch.tensor, qkv())).numpy(),
            )

    def test_numbers(self) -> None:
        inputs = [tensor(x) for x in qkv()]
        with pytest.raises(ArgumentError, match="dropout must be a probability"):
            scaled_dot_product_attention(*inputs, dropout=1.0)
        with pytest.raises(ArgumentError, match="seed: expected an int"):
            scaled_dot_product_attention(*inputs, dropout=0.5)
        with pytest.raises(MaskError, match="n must not exceed"):
            scaled_dot_product_attention(*inputs, masks.lengths([S, S + 1]))
        with pytest.raises(ShapeError, match="attention_mask was made for B = 3, the call has B = 2"):
            scaled_dot_product_attention(*inputs, masks.lengths([S, S, S]))
        with pytest.raises(ShapeError, match=r"sinks: expected \[H\]"):
            scaled_dot_product_attention(*inputs, sinks=tensor(np.zeros(3)))
        with pytest.raises(ShapeError, match="bias: expected to broadcast"):
            scaled_dot_product_attention(*inputs, bias=tensor(np.zeros((S, 3))))
