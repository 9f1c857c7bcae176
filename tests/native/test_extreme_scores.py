"""Scores of 1e9 and more, scales near 0 and near the largest float: on each instruction set, against float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import attention, masks
from headwise.call import AttentionCall, make_call
from headwise.kernels import native
from headwise.native.attend import forward, look
from headwise.native.decoder import Decoder, Read
from headwise.native.linear import Encoder, Layer, norm_of, pack
from headwise.quantized import Int8
from tests import oracle

TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
LENGTHS = {"short": (40, 150), "long": (70, 330), "few queries": (3, 1300)}  # each goes a way of its own
MASK = masks.window(900, 2)
SCALES = [2.0**24, -(2.0**24), 1e10, -1e10, 1e25, 3e37, 1e-37, 1e-40, -1e-40, 1e-60]
CASES = [(scale, torch.float32) for scale in SCALES]
CASES += [(scale, dtype) for scale in (-1e10, 1e10, 1e-40) for dtype in (torch.float16, torch.bfloat16)]


def drawn(lengths: str, dtype: torch.dtype = torch.float32, **options: Any) -> AttentionCall:
    """Queries and keys of small integers, which every dtype multiplies exactly: many scores are equal."""
    draws, (q_len, k_len) = torch.Generator().manual_seed(3), LENGTHS[lengths]
    q, k = (torch.randint(-2, 3, shape, generator=draws) for shape in ((1, 4, q_len, 6), (1, 2, k_len, 6)))
    v = torch.randn(1, 2, k_len, 20, generator=draws)
    return make_call(*(x.to(dtype).requires_grad_() for x in (q, k, v)), **{"mask": MASK, **options})


@functools.cache
def exactly(lengths: str, dtype: torch.dtype, scale: float) -> tuple[Tensor, list[Tensor]]:
    """The output of the definition, and the gradients of q, k and v."""
    call = drawn(lengths, dtype)
    given = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
    out = oracle.attention(*given, mask=call.mask, scale=scale)
    return out.detach(), list(torch.autograd.grad(out.sin().sum(), given))


def near(found: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32, size: float = 1.0) -> None:
    off = (found.double() - expected).abs().max().item() / max(size, expected.abs().max().item())
    assert off <= TOLERANCE[dtype], f"{off:.2g} off"


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("scale", "dtype"), CASES, ids=str)
def test_outputs_and_gradients(each_set: str, scale: float, dtype: torch.dtype, lengths: str) -> None:
    call = drawn(lengths, dtype, scale=scale)
    expected, gradients = exactly(lengths, dtype, scale)
    found = native.run(call)
    near(found, expected, dtype)
    for x, y in zip(torch.autograd.grad(found.sin().sum(), (call.q, call.k, call.v)), gradients, strict=True):
        if y.to(dtype).isfinite().all():  # gradients have the size of the scale, which float16 may not
            near(x, y, dtype)


@pytest.mark.parametrize("scale", [2e3, -2e3])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_scores_that_are_rounded_by_more_than_the_weights_differ(
    each_set: str, dtype: torch.dtype, lengths: str, scale: float
) -> None:
    """Either key may win. But the weights of a row add up to 1, forward and backward."""
    call, draws = drawn(lengths, dtype, scale=scale), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for x in (call.q, call.k):
            x.copy_(500.0 * torch.randn(x.shape, generator=draws))
    out = native.run(call)
    assert (out.abs().amax(-1) <= call.v.abs().amax() * (1 + TOLERANCE[dtype])).all()  # not if it is NaN
    d_out = torch.ones(()).to(dtype).expand_as(out)
    d_q, d_k, d_v = torch.autograd.grad(out, (call.q, call.k, call.v), d_out)
    near(d_v.double().sum(2), torch.tensor(2.0 * out.shape[2]).double(), dtype)  # two heads share each value
    if dtype != torch.float16:
        assert all(x.isfinite().all() for x in (d_q, d_k))


@pytest.mark.parametrize("scale", [2.0**24, -(2.0**24), 1e25, 1e-40], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_what_the_weights_tell(each_set: str, lengths: str, scale: float) -> None:
    call = drawn(lengths, scale=scale).detached()
    (q_len, k_len), eye = call.shape[2:], torch.eye(call.shape[3])
    weights = oracle.attention(call.q, call.k, eye.expand(1, 2, -1, -1), mask=MASK, scale=scale)
    far = (torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)).abs().double()
    expected = {
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "distance": (weights * far).sum(-1),
        "top_weights": weights.amax(-1, keepdim=True),
        "received": weights.sum(2),
        "mean": weights.mean((2, 3), keepdim=True),
        "greatest": weights.amax((2, 3), keepdim=True),
    }
    for names in (set(expected), set(expected) - {"mean", "greatest"}):  # by look, and beside the output
        found = look(call, names | {"highest", "log_sum", "top_keys"}, {"top": 1, "size": (1, 1)})
        for each in names:
            near(found[each], expected[each])
        near(weights.gather(3, found["top_keys"]), expected["top_weights"])
    scores = scale * (call.q.double() @ call.k.double().repeat_interleave(2, 1).mT)
    lse = scores.masked_fill(~MASK.to_bool(q_len, k_len), -torch.inf).logsumexp(-1)
    torch.testing.assert_close((found["highest"] + found["log_sum"]).double(), lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 1e-40},
        {"softcap": 1e-20, "scale": 1e10},
        {"softcap": 2e38, "scale": 0.3},
        {"softcap": 1e6, "scale": 1e10},
        {"sinks": torch.tensor([3e9, -3e9, 0.0, 1e38]), "scale": 2.0**28},
        {"sinks": torch.tensor([1.0, -1.0, 0.0, 2.0]), "scale": 1e-40},
        {"slopes": torch.tensor([1e9, 3e37, 0.0, -1e6])},
        {"slopes": torch.tensor([1e9, 3e37, 0.0, -1e6]), "scale": -(2.0**24)},
        {"bias": 2.0**30 * torch.arange(1300.0)},
        {"bias": torch.full((1300,), -3e38), "scale": 2.0**24},
        {"bias": -(2.0**100) * torch.ones(1300), "sinks": torch.zeros(4)},
    ],
    ids=lambda options: " ".join(options),
)
def test_options(each_set: str, options: dict[str, Any], lengths: str) -> None:
    if "bias" in options:
        options = {**options, "bias": options["bias"][: LENGTHS[lengths][1]]}
    given = {name: x.requires_grad_() for name, x in options.items() if name in ("sinks", "slopes")}
    call = drawn(lengths, **options)
    leaves = [call.q, call.k, call.v, *given.values()]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    more = {**options, **dict(zip(given, exact[3:], strict=True))}
    expected, found = oracle.attention(*exact[:3], mask=MASK, **more, dtype=torch.float32), native.run(call)
    near(found, expected)
    gradients = torch.autograd.grad(expected.sin().sum(), exact)
    sizes = [abs(call.scale), abs(call.scale), 1.0, *(LENGTHS[lengths][1] for _ in given)]  # of terms that may cancel
    for x, y, size in zip(torch.autograd.grad(found.sin().sum(), leaves), gradients, sizes, strict=True):
        near(x, y, size=max(1.0, size))


def test_int8(each_set: str) -> None:
    call = drawn("few queries")
    k, v = (Int8.of(x.detach()) for x in (call.k, call.v))
    k = Int8(k.values, k.scale * 1e10, k.dtype)
    stands_for = [x.values.double() * x.scale[..., None].double() for x in (k, v)]
    with torch.no_grad():
        near(attention(call.q, k, v, mask=MASK), oracle.attention(call.q.double(), *stands_for, mask=MASK))


def an_encoder(scale: float) -> Tensor:
    x = torch.randn(70, 32)
    parts = [pack(torch.randn(size) / size[1] ** 0.5) for size in ((96, 32), (32, 32), (48, 32), (32, 48))]
    norm = norm_of(None, None, 32, 1e-5)
    return Encoder([Layer(*parts, norm, norm)], 2, "gelu", scale)(x, torch.tensor([0, 20, 70]))


def a_decoder(scale: float) -> Tensor:
    parts = [pack(torch.randn(size) / size[1] ** 0.5) for size in ((96, 32), (32, 32), (48, 32), (32, 48))]
    norm, x, keys = norm_of(None, None, 32, 1e-5), torch.randn(1, 32), torch.randn(2, 1, 1, 40, 1, 32)
    options: dict[str, Any] = {"rms": False, "frequencies": None}
    decoder = Decoder([Layer(*parts, norm, norm)], 2, "gelu", scale, scale, norm, pack(torch.randn(50, 32)), **options)
    return decoder.logits(x, Read(*keys, torch.zeros(1, 1, 40, dtype=torch.int64), torch.tensor([39])))


@pytest.mark.parametrize("made", [an_encoder, a_decoder])
def test_layers_of_packed_weights(each_set: str, made: Callable[[float], Tensor]) -> None:
    """From some scale on each query sees one key alone, and down to some scale all keys alike."""
    found = []
    for scale in (1e6, 1e30, 1e-12, 1e-40):
        torch.manual_seed(0)
        found.append(made(scale))
    near(found[1], found[0].double())
    near(found[3], found[2].double())
    assert (found[0] - found[2]).abs().max() > 0.1


def test_denormal_numbers_stay_what_they_are_for_the_caller() -> None:
    """The kernels take them for 0, and nothing else does: neither the thread that called them nor those of torch."""
    small, threads = torch.full((1 << 16,), 1e-39), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        call = drawn("long")
        out = torch.empty(1, 4, 70, 20)
        for flushes in (False, True):
            torch.set_flush_denormal(flushes)
            forward(call, out)
            native.run(call).sum().backward()
            look(call, {"needed"}, {"share": 0.5})
            assert bool(((small * 0.5) == 0.0).any()) == flushes
            assert bool(((small[:1] * 0.5) == 0.0).any()) == flushes
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
