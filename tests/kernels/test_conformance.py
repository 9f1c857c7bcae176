"""Every mask, alone and composed, through every kernel, against the reference in float64: outputs and gradients.

A kernel that refuses must refuse with a reason, and is then not run; that each kernel takes what it is made for is
pinned in test_plan.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise
from headwise.call import AttentionCall, make_call
from headwise.kernels import KERNELS, decode, tiled
from headwise.kernels.kernel import refusal
from headwise.masks import Mask
from headwise.tiles import CUTTERS
from tests.mask_zoo import ZOO, compositions, fits

# Longer than one tile of 64, and no multiple of it.
QUICK, SLOW = [(2, 4, 30, 100), (2, 4, 1, 70)], [(2, 4, 100, 100), (2, 4, 100, 30)]
SIZES = [*QUICK, *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in SLOW)]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def check_every_kernel(
    mask: Mask | None, inputs: dict[str, Tensor], *, d_out: Tensor | None = None, **options: Any
) -> set[str]:
    """Compare outputs and gradients of the kernels that take the call with the float64 reference; return who ran."""
    exact = {name: x.detach().double().requires_grad_(x.requires_grad) for name, x in inputs.items()}
    truth = headwise.attention(**exact, mask=mask, kernel="reference", **options)
    d_out = torch.randn_like(truth) if d_out is None else d_out
    wanted = {name: x for name, x in exact.items() if x.requires_grad}
    true_grads = torch.autograd.grad(truth, list(wanted.values()), d_out.double()) if wanted else ()
    terms = sums_of_terms(make_call(**exact, mask=mask, **options), d_out) if wanted else {}
    ran = set()
    for name, kernel in KERNELS.items():
        for trains in (True, False):
            given_inputs = inputs if trains else {key: x.detach() for key, x in inputs.items()}
            reason = refusal(kernel, make_call(**given_inputs, mask=mask, **options))
            if reason is not None:
                assert len(reason) > 10, f"{name} must say why it refuses"
                with pytest.raises(headwise.errors.KernelRefused, match=name):
                    headwise.attention(**given_inputs, mask=mask, kernel=name, **options)
                continue
            out = headwise.attention(**given_inputs, mask=mask, kernel=name, **options)
            tolerance = TOLERANCE[out.dtype]
            assert out.dtype == inputs["q"].dtype
            torch.testing.assert_close(
                out.double(), truth, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
            if trains and wanted:
                leaves = [x for x in inputs.values() if x.requires_grad]
                grads = torch.autograd.grad(out, leaves, d_out.to(out.dtype))
                for of, grad, true_grad in zip(wanted, grads, true_grads, strict=True):
                    allowed = tolerance * (true_grad.abs() + max(1.0, float(true_grad.abs().max())))
                    if of in terms:
                        rounding = 4 * torch.finfo(torch.promote_types(out.dtype, torch.float32)).eps
                        allowed = allowed.maximum(rounding * terms[of])
                    worst = ((grad.double() - true_grad).abs() / allowed).max()
                    assert worst <= 1.0, f"{name}, gradient of {of}: {worst:.2f} times as far off as is allowed"
            ran.add(name)
    return ran


def sums_of_terms(call: AttentionCall, d_out: Tensor) -> dict[str, Tensor]:
    """What the gradients of q and k would be if no terms cancelled: their errors are parts of it.

    dQ = scale dS K and dK = scale dSᵀ Q, with dS = A (dA - Σ A dA), dA = dO vᵀ: of equal keys and values all of it is
    rounding, of as many terms as there are rows.
    """
    with torch.no_grad():
        size, weights = call.heads_per_key_head, call.weights()
        k, v = (x.abs().repeat_interleave(size, dim=1) for x in (call.k, call.v))
        d_weights = d_out.double().abs() @ v.mT
        d_scores = abs(call.scale) * weights * (d_weights + (weights * d_weights).sum(-1, keepdim=True))
        of_keys = d_scores.mT @ call.q.abs()
        return {"q": d_scores @ k, "k": of_keys.unflatten(1, (-1, size)).sum(2)}


def random_inputs(
    sizes: tuple[int, int, int, int], *, key_heads: int = 2, d: int = 8, e: int = 8, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    batch, heads, q_len, k_len = sizes
    shapes = {"q": (batch, heads, q_len, d), "k": (batch, key_heads, k_len, d), "v": (batch, key_heads, k_len, e)}
    return {name: torch.randn(shape).to(dtype).requires_grad_() for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param(name, sizes, marks=pytest.mark.slow if sizes in SLOW else ())
        for sizes in [*QUICK, *SLOW]
        for name in ZOO
        if fits(name, *sizes[2:])
    ],
    ids=str,
)
def test_every_mask_in_every_kernel(name: str, sizes: tuple[int, int, int, int]) -> None:
    ran = check_every_kernel(ZOO[name](*sizes), random_inputs(sizes))
    assert {"reference", "sdpa", "flex"} <= ran
    assert ("decode" in ran) == (sizes[2] == 1)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("learned", [False, True], ids=["", "learned"])
def test_slopes_in_every_kernel(sizes: tuple[int, int, int, int], learned: bool) -> None:
    inputs = random_inputs(sizes) | {"slopes": torch.tensor([0.5, 0.25, 0.02, -0.1], requires_grad=learned)}
    ran = check_every_kernel(headwise.masks.window(40, 3), inputs)
    assert ran == {"reference", "native", "sdpa", "tiled", "flex"} | ({"decode"} if sizes[2] == 1 else set())


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_values_that_are_the_first_columns_of_the_keys(trains: bool) -> None:
    """A compressed cache is keys and values at once; each must still get its own gradient."""
    torch.manual_seed(0)
    q, cache = torch.randn(2, 4, 1, 12), torch.randn(2, 1, 70, 12)
    cache[:, :, 3] = float("nan")
    mask = headwise.masks.padding(torch.arange(70).ne(3).repeat(2, 1))
    k = cache.requires_grad_(trains)
    v = k[..., :8]
    wanted = [q.requires_grad_(), k, v] if trains else []
    out = headwise.attention(q, k, v, mask=mask, kernel="decode")
    truth = headwise.attention(q, k, v.clone() if not trains else v, mask=mask, kernel="reference")
    torch.testing.assert_close(out, truth, rtol=2e-5, atol=2e-5)
    for grad, true_grad in zip(
        torch.autograd.grad(out.sum(), wanted) if trains else (),
        torch.autograd.grad(truth.sum(), wanted) if trains else (),
        strict=True,
    ):
        torch.testing.assert_close(grad, true_grad, rtol=2e-5, atol=2e-5)


@settings(max_examples=25)
@given(st.data())
def test_random_compositions_options_and_sizes(data: st.DataObject) -> None:
    heads, key_heads = data.draw(st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1), (1, 1)]))
    q_len = data.draw(st.sampled_from([1, 2, 17, 64, 65, 130]))
    k_len = data.draw(st.sampled_from([q_len, q_len + 1, q_len + 70, 64, 1]))
    sizes = (data.draw(st.integers(1, 3)), heads, q_len, k_len)
    mask = data.draw(st.none() | compositions(sizes))
    d, e = data.draw(st.sampled_from([(8, 8), (8, 5), (4, 12)]))
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16]))
    inputs = random_inputs(sizes, key_heads=key_heads, d=d, e=e, dtype=dtype)
    options: dict[str, Any] = {}
    if data.draw(st.booleans()):
        inputs["sinks"] = torch.randn(heads).to(dtype).requires_grad_()
    if data.draw(st.booleans()):
        inputs["slopes"] = (0.1 * torch.rand(heads)).to(dtype).requires_grad_(data.draw(st.booleans()))
    if data.draw(st.booleans()):
        shape = data.draw(st.sampled_from([(q_len, k_len), (heads, q_len, k_len), (sizes[0], 1, 1, k_len)]))
        inputs["bias"] = torch.randn(shape).to(dtype).requires_grad_(data.draw(st.booleans()))
    if data.draw(st.booleans()):
        options["softcap"] = 3.0
    if data.draw(st.booleans()):
        options["scale"] = 0.7
    check_every_kernel(mask, inputs, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_a_step_cut_into_parts_computes_the_same(parts: int, dtype: torch.dtype) -> None:
    inputs = {name: x.detach() for name, x in random_inputs((1, 6, 1, 101), dtype=dtype).items()}
    truth = headwise.attention(*(x.double() for x in inputs.values()), scale=0.7, kernel="reference")
    q = inputs["q"].squeeze(2).unflatten(1, (2, 3))
    out = decode.in_parts(q, inputs["k"], inputs["v"], 0.7, parts)
    assert out.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.flatten(1, 2)[:, :, None].double(), truth, rtol=tolerance, atol=tolerance)


def test_a_long_step_is_cut_where_threads_would_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    inputs = {name: x.detach() for name, x in random_inputs((1, 4, 1, 1700)).items()}
    assert decode._parts(make_call(**inputs)) == 3  # of at least 512 keys
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert decode._parts(make_call(**inputs)) == 1  # a thread for each key head is all there are
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    truth = headwise.attention(**inputs, kernel="reference")
    torch.testing.assert_close(headwise.attention(**inputs, kernel="decode"), truth, rtol=2e-5, atol=2e-5)


LAYOUTS = {
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strided rows": lambda x: x.mT.contiguous().mT,
    "every other row": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "one example for all": lambda x: x[:1].expand(2, -1, -1, -1),
    "one row for all": lambda x: x[:, :, :1].expand(-1, -1, x.shape[2], -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_strides_of_inputs_and_gradients(layout: str, dtype: torch.dtype) -> None:
    sizes = (2, 4, 100, 100)
    inputs = {
        name: LAYOUTS[layout](x.detach()).requires_grad_() for name, x in random_inputs(sizes, dtype=dtype).items()
    }
    for name in ("window", "documents", "global tokens", "padding, lengths"):
        for d_out in (LAYOUTS[layout](torch.randn(2, 4, 100, 8)), torch.ones(()).expand(2, 4, 100, 8)):
            check_every_kernel(ZOO[name](*sizes), inputs, d_out=d_out.to(dtype))


@pytest.mark.parametrize("height", [16, 64, 100, 256])
@pytest.mark.parametrize("offset", [0, 60], ids=["square", "cached"])
def test_tiles_of_any_height_compute_the_same(height: int, offset: int) -> None:
    k_len, q_len = 200, 200 - offset
    ids = torch.tensor([-1] * 5 + [0] * 90 + [1] * 60 + [2] * 30 + [1] * 10 + [-1] * 5)
    documents = headwise.masks.documents(ids)
    window = headwise.masks.window(20, 3)
    inputs = random_inputs((2, 4, q_len, k_len), dtype=torch.float64)
    cases = [
        (window, "band"),
        (documents, "documents"),
        (documents & headwise.masks.causal(), "documents"),
        (headwise.masks.lengths([150]), "documents"),
        (window | documents, "blocks"),
        (documents, "blocks"),
        (window, "blocks"),
    ]
    for mask, cutter in cases:
        truth = headwise.attention(**inputs, mask=mask, kernel="reference")
        cut = CUTTERS[cutter].cut(mask.aligned(q_len, k_len), q_len, k_len, height)
        call = make_call(**inputs, mask=mask)
        torch.testing.assert_close(tiled.run_tiles(call, cut), truth)
        with torch.no_grad():
            torch.testing.assert_close(tiled.run_tiles(call, cut), truth)


@pytest.fixture
def as_if_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of some hundreds are cut into tiles as lengths of many thousands are."""
    monkeypatch.setattr(tiled, "MANY_KEYS", 32)
    for cutter in CUTTERS.values():
        monkeypatch.setattr(cutter, "HEIGHTS", (64,))


@pytest.mark.parametrize("name", ["causal", "prefix", "documents, in pieces", "big bird", "padding, lengths"])
@pytest.mark.parametrize("bias", [pytest.param(False, marks=pytest.mark.slow), True], ids=["no bias", "bias"])
@pytest.mark.usefixtures("as_if_long")
def test_wide_tiles_are_split_and_merged(name: str, bias: bool) -> None:
    sizes = (2, 4, 200, 200)
    inputs = random_inputs(sizes)
    if bias:
        inputs["bias"] = torch.randn(200, 200).masked_fill(torch.rand(200, 200) < 0.1, -torch.inf)
        inputs["bias"][[3, 150]] = -torch.inf  # two queries that attend to nothing, and
        inputs["bias"][70, :100] = -torch.inf  # one that sees nothing of the first tile
    inputs["sinks"] = torch.randn(4, requires_grad=True)
    check_every_kernel(ZOO[name](*sizes), inputs)
    del inputs["sinks"]
    ran = check_every_kernel(ZOO[name](*sizes), inputs)
    assert "tiled" in ran


@pytest.mark.usefixtures("as_if_long")
def test_the_wide_tiles_of_that_test_are_split() -> None:
    call = make_call(**random_inputs((2, 4, 200, 200)), mask=headwise.masks.prefix(60))
    assert any(tile.shared for tile in tiled._schedule(call).tiles)


@pytest.mark.parametrize("case", ["sdpa", "tiled, band", "tiled, documents", "tiled, blocks", "reference"])
def test_gradients_are_the_numerical_ones(case: str) -> None:
    kernel, _, cutter = case.partition(", ")
    mask = {
        "band": headwise.masks.window(3, 0),
        "documents": headwise.masks.documents([0, 0, 0, 1, 1, -1]) & headwise.masks.causal(),
        "blocks": headwise.masks.block_sparse(torch.tensor([[True, False], [True, True]]), 64),
    }.get(cutter, headwise.masks.causal())
    length = 128 if cutter == "blocks" else 6
    inputs = random_inputs((1, 2, length, length), key_heads=1, d=3, e=2, dtype=torch.float64)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        return headwise.attention(q, k, v, mask=mask, sinks=sinks, kernel=kernel)

    assert torch.autograd.gradcheck(run, (*inputs.values(), sinks), fast_mode=True)
