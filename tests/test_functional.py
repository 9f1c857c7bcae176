"""What `attention` promises, with numbers a reader can work out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import AttentionCall
from headwise.errors import ArgumentError, DtypeError, HeadwiseError, KernelRefused, MaskError, ShapeError
from headwise.functional import listening, running
from headwise.kernels import KERNELS
from headwise.native.library import instruction_set

# Kernels, `tiled` once for each cutter.
CPU_KERNELS = ["reference", "sdpa", "tiled, band", "tiled, blocks", "tiled, documents", "flex", "native"]


def heads(*rows: list[float]) -> Tensor:
    """One example, one head: [1, 1, len(rows), len(row)]."""
    return torch.tensor(rows)[None, None]


# One query that scores its three keys 0, log 2 and log 4: weights 1/7, 2/7, 4/7.
Q = heads([1.0])
K = heads([0.0], [math.log(2)], [math.log(4)])
V = heads([7.0, 0.0], [7.0, 7.0], [0.0, 7.0])


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
def test_a_worked_example(kernel: str) -> None:
    out = headwise.attention(Q, K, V, kernel=kernel.partition(",")[0])
    torch.testing.assert_close(out, heads([3.0, 6.0]))  # 7 · 1/7 + 7 · 2/7 = 3;  7 · 2/7 + 7 · 4/7 = 6


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mask": torch.tensor([[True, True, False]])}, [7.0, 14 / 3]),  # weights 1/3, 2/3
        ({"scale": 2.0}, [(7 + 28) / 21, (28 + 112) / 21]),  # weights 1, 4, 16 of 21
        ({"bias": torch.tensor([[0.0, 0.0, -math.log(4)]])}, [21 / 4, 21 / 4]),  # weights 1/4, 2/4, 1/4
        ({"sinks": torch.tensor([0.0])}, [21 / 8, 42 / 8]),  # the sink adds 1 to the sum of 7
        ({"bias": torch.tensor([[0.0, -math.inf, -math.inf]])}, [7.0, 0.0]),
        ({"slopes": torch.tensor([math.log(2)])}, [7 * 5 / 21, 7 * 20 / 21]),  # weights 1/21, 4/21, 16/21
    ],
    ids=["mask", "scale", "bias", "sinks", "bias of -inf", "slopes"],
)
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
def test_options_worked_by_hand(kernel: str, options: dict[str, Any], expected: list[float]) -> None:
    torch.testing.assert_close(headwise.attention(Q, K, V, kernel=kernel.partition(",")[0], **options), heads(expected))


def test_slopes_are_the_bias_of_the_distances() -> None:
    q, k, slopes = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8), torch.tensor([0.5, 0.1])
    bias = -slopes[:, None, None] * torch.tensor([[2.0, 1, 0, 1, 2], [3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    torch.testing.assert_close(headwise.attention(q, k, k, slopes=slopes), headwise.attention(q, k, k, bias=bias))


def test_softcap_comes_before_the_bias() -> None:
    bias = torch.tensor([[0.0, 1.0, 2.0]])
    s = torch.tanh(torch.tensor([0.0, math.log(2), math.log(4)]) / 0.5) * 0.5 + bias[0]
    expected = torch.softmax(s, 0) @ V[0, 0]
    torch.testing.assert_close(headwise.attention(Q, K, V, softcap=0.5, bias=bias)[0, 0, 0], expected)


def test_a_query_head_reads_the_key_head_of_its_group() -> None:
    q = torch.zeros(1, 4, 1, 1)
    v = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    assert headwise.attention(q, v, v).flatten().tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_a_query_that_may_attend_to_nothing_gets_zero_and_zero_gradients(kernel: str) -> None:
    mask: masks.Mask = {
        "tiled, band": masks.causal(offset=-2),
        "tiled, documents": masks.documents([-1, -1, 0, 0]) & masks.causal(),
        "tiled, blocks": masks.causal(offset=-2),
    }.get(kernel, masks.causal(offset=-2))
    trains = kernel != "flex"
    length = 130 if kernel == "tiled, blocks" else 4
    if kernel == "tiled, blocks":
        mask = masks.causal(offset=-64) & masks.dilated(1)
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=trains) for _ in range(3))
    out = headwise.attention(q, k, v, mask=mask, kernel=kernel.partition(",")[0])
    assert torch.equal(out[:, :, :2], torch.zeros(1, 2, 2, 8))
    assert out[:, :, -1].abs().min() > 0
    if trains:
        out.sum().backward()
        assert torch.equal(q.grad[:, :, :2], torch.zeros(1, 2, 2, 8))
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "tiled, blocks"])
def test_a_query_emptied_by_the_bias_is_empty_too(kernel: str) -> None:
    q, k, v = (torch.randn(1, 2, 70, 8, requires_grad=True) for _ in range(3))
    bias = torch.zeros(70, 70)
    bias[5] = -torch.inf
    mask = masks.causal() & masks.dilated(1)
    out = headwise.attention(q, k, v, mask=mask, bias=bias, kernel=kernel.partition(",")[0])
    assert not out[:, :, 5].any()
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert not q.grad[:, :, 5].any()
    _, record = headwise.attention(q, k, v, mask=mask, bias=bias, record=True)
    assert not record.weights(rows=5).any()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_what_a_key_that_nobody_sees_holds_cannot_spread(kernel: str, poison: float) -> None:
    mask: masks.Mask = {
        "tiled, band": masks.window(3, 0),
        "tiled, documents": masks.documents([0, 0, 1, 1, -1, -1]),
        "tiled, blocks": masks.lengths([4]) & masks.window(64, 0),
    }.get(kernel, masks.lengths([4]))
    length = 130 if kernel == "tiled, blocks" else 6
    trains = kernel != "flex"
    q_len = 2 if kernel == "tiled, band" else length  # the window of the last two queries leaves the first key out
    unseen = slice(0, 1) if kernel == "tiled, band" else slice(4, None)
    q = torch.randn(1, 2, q_len, 8, requires_grad=trains)
    k, v = (torch.randn(1, 2, length, 8, requires_grad=trains) for _ in range(2))
    clean = headwise.attention(q, k, v, mask=mask, kernel=kernel.partition(",")[0])
    with torch.no_grad():
        k[:, :, unseen], v[:, :, unseen] = poison, poison
    out = headwise.attention(q, k, v, mask=mask, kernel=kernel.partition(",")[0])
    torch.testing.assert_close(out, clean)
    if trains:
        out.sum().backward()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
        assert not k.grad[:, :, unseen].any()


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_no_queries_and_no_keys(kernel: str) -> None:
    x, none = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 0, 8)
    assert headwise.attention(none, x, x, kernel=kernel.partition(",")[0]).shape == (2, 4, 0, 8)
    assert torch.equal(headwise.attention(x, none, none, kernel=kernel.partition(",")[0]), torch.zeros(2, 4, 3, 8))
    allowed = torch.ones(0, 3, dtype=torch.bool)
    for mask in (masks.causal(), masks.lengths([2, 1]), masks.window(1, 0) | masks.prefix(0), allowed):
        assert headwise.attention(none, x, x, mask=mask, kernel=kernel.partition(",")[0]).shape == (2, 4, 0, 8)
    for mask in (masks.causal(), masks.lengths([0, 0]), masks.window(1, 0) | masks.prefix(0), allowed.T):
        out, record = headwise.attention(x, none, none, mask=mask, kernel=kernel.partition(",")[0], record=True)
        assert torch.equal(out, torch.zeros(2, 4, 3, 8))
        assert record.weights().shape == (2, 4, 3, 0)
        assert torch.equal(record.lse, torch.full((2, 4, 3), -math.inf))
        assert not record.entropy().any()


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_dropout_drops_that_share_and_keeps_the_mean(kernel: str) -> None:
    x = torch.zeros(1, 1, 64, 1)
    v = torch.ones(1, 1, 64, 1)
    outs = torch.stack([headwise.attention(x, x, v, dropout=0.5, kernel=kernel.partition(",")[0]) for _ in range(64)])
    assert abs(float(outs.mean()) - 1.0) < 0.02  # a weight of 1/64 is kept half of the time, and doubled
    assert outs.std() > 0.05


def test_half_precision_softmax_is_computed_in_float32() -> None:
    # 4096 equal weights of 2^-12: added up in bfloat16 the sum would stop growing at 256.
    q, k = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16), torch.zeros(1, 1, 4096, 8, dtype=torch.bfloat16)
    v = torch.ones(1, 1, 4096, 8, dtype=torch.bfloat16)
    for kernel in ("reference", "sdpa"):
        assert headwise.attention(q, k, v, kernel=kernel.partition(",")[0]).float().sub(1).abs().max() < 0.01


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "tiled, band", "tiled, blocks", "flex"])
def test_autocast_lowers_the_inputs_and_nothing_else(kernel: str) -> None:
    q, k, v = (torch.randn(1, 2, 70, 8) for _ in range(3))
    mask = masks.causal()
    low = [x.bfloat16() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, record = headwise.attention(q, k, v, mask=mask, kernel=kernel.partition(",")[0], record=True)
        weights = record.weights()
        double = headwise.attention(q.double(), k.double(), v.double(), mask=mask, kernel=kernel.partition(",")[0])
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, headwise.attention(*low, mask=mask, kernel=kernel.partition(",")[0]))
    expected = headwise.attention(*low, mask=mask, record=True)[1].weights()
    assert torch.equal(weights, expected)  # float32, of the lowered inputs
    torch.testing.assert_close(double, headwise.attention(q.double(), k.double(), v.double(), mask=mask))


def test_large_logits_do_not_overflow() -> None:
    q = torch.full((1, 1, 2, 4), 1e4)
    out = headwise.attention(q, q, q, mask=masks.causal())
    assert torch.equal(out, q)


def test_a_bool_tensor_is_a_mask_and_needs_no_wrapping() -> None:
    q = torch.randn(2, 3, 5, 4)
    allowed = torch.rand(2, 1, 5, 5) > 0.3
    expected = headwise.attention(q, q, q, mask=masks.from_tensor(allowed))
    assert torch.equal(headwise.attention(q, q, q, mask=allowed), expected)


@pytest.mark.parametrize("name", list(KERNELS))
def test_tensors_that_are_not_contiguous(name: str) -> None:
    x = torch.randn(2, 70, 4, 8).transpose(1, 2)  # what a model's view(B, S, H, D).transpose(1, 2) gives
    q, k = (x[:, :, -1:], x[:, ::2]) if name == "decode" else (x, x)
    mask = masks.window(2, 0)
    expected = headwise.attention(q.contiguous(), k.contiguous(), k.contiguous(), mask=mask, kernel="reference")
    torch.testing.assert_close(headwise.attention(q, k, k, mask=mask, kernel=name), expected)


def test_inputs_are_left_as_they_were() -> None:
    q, k, v = (torch.randn(1, 2, 70, 8) for _ in range(3))
    before = [x.clone() for x in (q, k, v)]
    for name in KERNELS:
        mask = masks.window(2, 0)
        if name == "decode":
            headwise.attention(q[:, :, -1:], k[:, :1], v[:, :1], mask=mask, kernel=name)
        else:
            headwise.attention(q, k, v, mask=mask, sinks=torch.zeros(2), kernel=name)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))


def test_listeners_hear_every_call_in_order_and_only_inside() -> None:
    q = torch.randn(1, 2, 4, 8)
    outer: list[float] = []
    inner: list[float] = []

    def inner_listener(call: AttentionCall, out: Tensor) -> None:
        assert out.shape == q.shape
        inner.append(call.scale)

    with listening(lambda call, _: outer.append(call.scale)):
        headwise.attention(q, q, q, scale=0.1)
        with listening(inner_listener):
            headwise.attention(q, q, q, scale=0.2)
        with pytest.raises(ShapeError), listening(inner_listener):
            headwise.attention(q, q[0], q)
    headwise.attention(q, q, q, scale=0.3)
    assert outer == [0.1, 0.2]
    assert inner == [0.2]


def test_a_record_of_a_call_with_dropout_holds_the_weights_before_it() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    _, record = headwise.attention(q, k, v, dropout=0.5, record=True)
    _, without = headwise.attention(q, k, v, record=True)
    assert record.dropout == 0.5
    assert torch.equal(record.weights(), without.weights())


def test_a_row_that_is_pushed_down_as_a_whole_attends_to_all_keys_alike() -> None:
    """What an additive mask of finfo.min makes of a query of padding: its scores all round to the same number."""
    bias = torch.tensor([[torch.finfo(torch.float32).min], [0.0]])
    q = torch.cat([Q, Q], dim=2)
    for kernel in ("reference", "sdpa"):
        out, record = headwise.attention(q, K, V, bias=bias, kernel=kernel.partition(",")[0], record=True)
        torch.testing.assert_close(record.weights()[0, 0], torch.tensor([[1 / 3] * 3, [1 / 7, 2 / 7, 4 / 7]]))
        torch.testing.assert_close(record.entropy()[0, 0, 0], torch.tensor(math.log(3)))
        torch.testing.assert_close(out, record.weights() @ V)


def test_one_column_of_the_weights_knows_its_bias() -> None:
    _, record = headwise.attention(Q, K, V, bias=torch.tensor([math.log(6), 0.0, 0.0]), record=True)
    assert record.weights(cols=0).item() == pytest.approx(6 / 12)


def test_nobody_who_looks_at_torch_sees_a_call_twice() -> None:
    q = torch.randn(1, 2, 4, 8)
    seen: list[bool] = []

    class Look(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "scaled_dot_product" in getattr(func, "__name__", ""):
                seen.append(running())
            return func(*args, **(kwargs or {}))

    with Look():
        headwise.attention(q, q, q, kernel="sdpa")
    assert seen == [True]
    assert not running()
    with pytest.raises(KernelRefused):
        headwise.attention(q, q, q, kernel="tiled")
    assert not running()


X = torch.zeros(2, 4, 5, 8)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"q": X[0]}, ShapeError, r"q must be \[B, H, Q, D\]. Received: q=\[4, 5, 8\]"),
        ({"q": [1.0]}, DtypeError, r"q must be a tensor \[B, H, Q, D\]. Received: q=list"),
        ({"k": X[:1]}, ShapeError, r"same batch size B. Received: q=\[2, 4, 5, 8\], k=\[1, 4, 5, 8\]"),
        ({"v": X[:, :, :3]}, ShapeError, r"k and v must have the same heads G and length K"),
        ({"k": X[..., :3]}, ShapeError, r"q and k must have the same head dimension D"),
        ({"k": X[:, :3], "v": X[:, :3]}, ShapeError, r"query heads H must be a multiple of the key/value heads G"),
        ({"q": X[:, :, :, :0], "k": X[..., :0]}, ShapeError, r"B, H, D and E must be at least 1"),
        ({"q": X.long()}, DtypeError, r"q must be float16, bfloat16, float32 or float64. Received: q=torch.int64"),
        ({"k": X.double()}, DtypeError, r"q, k and v must have one dtype.*k=torch.float64"),
        ({"k": X.to("meta"), "v": X.to("meta")}, DtypeError, r"q, k and v must be on one device.*k=meta"),
        ({"mask": torch.zeros(5, 5)}, DtypeError, r"expected a bool tensor.*float32. An additive mask goes in bias="),
        (
            {"mask": torch.ones(5, 5, dtype=torch.int32)},
            DtypeError,
            r"torch.int32. If 1 means may attend, pass mask.bool",
        ),
        ({"mask": "causal"}, DtypeError, r"mask must be a headwise mask, a bool tensor or None. Received: str"),
        ({"mask": torch.ones(5, 5, dtype=torch.bool, device="meta")}, DtypeError, r"mask must be on the device of q"),
        (
            {"mask": torch.ones(2, 5, dtype=torch.bool)},
            MaskError,
            r"A mask over keys alone, \[B, K\], is masks.padding",
        ),
        (
            {"mask": torch.ones(3, 1, 5, 5, dtype=torch.bool)},
            ShapeError,
            r"made for B = 3, the call has B = 2. Received: B=3. Make one for B = 2",
        ),
        ({"mask": torch.ones(3, 5, 5, dtype=torch.bool)}, ShapeError, r"made for H = 3, the call has H = 4"),
        ({"mask": masks.lengths([6, 2])}, MaskError, r"n must not exceed the 5 keys. Received: n=\[6, 2\]"),
        (
            {"bias": torch.ones(5, 5, dtype=torch.bool)},
            DtypeError,
            r"Received: bias=torch.bool. A bool mask goes in mask=",
        ),
        (
            {"bias": torch.ones(5, 4)},
            ShapeError,
            r"bias must broadcast to \[B, H, Q, K\] = \[2, 4, 5, 5\]. Received: bias=\[5, 4\]",
        ),
        ({"sinks": torch.ones(3)}, ShapeError, r"sinks must be \[H\] = \[4\].*Received: sinks=\[3\]"),
        ({"slopes": [0.5] * 4}, DtypeError, r"slopes must be a float tensor \[H\].*Received: slopes=list"),
        ({"slopes": torch.ones(1, 4)}, ShapeError, r"slopes must be \[H\] = \[4\], one slope .*slopes=\[1, 4\]"),
        ({"scale": math.nan}, ArgumentError, r"scale must be a finite number.*nan"),
        ({"softcap": 0.0}, ArgumentError, r"softcap must be a finite number above 0, or None. Received: softcap=0.0"),
        ({"dropout": 1.0}, ArgumentError, r"dropout must be a probability in \[0, 1\). Received: dropout=1.0"),
        (
            {"kernel": "fast"},
            ArgumentError,
            r"kernel must be 'auto' or one of decode, native, .*kernel='fast'",
        ),
        ({"kernel": "tiled"}, KernelRefused, r"kernel 'tiled' cannot run this call: the call has no mask"),
    ],
)
def test_bad_input_gets_one_line_that_names_it(
    arguments: dict[str, Any], kind: type[HeadwiseError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        headwise.attention(**{"q": X, "k": X, "v": X, **arguments})
    assert "\n" not in str(caught.value)


def test_errors_are_also_the_built_in_kind() -> None:
    with pytest.raises(ValueError, match="q must be"):
        headwise.attention(X[0], X, X)
    with pytest.raises(TypeError, match="q must be a tensor"):
        headwise.attention(None, X, X)  # type: ignore[call-overload]
    with pytest.raises(RuntimeError, match="cannot run"):
        headwise.attention(X, X, X, kernel="tiled")


@pytest.mark.parametrize("kernel", ["native", "tiled", "sdpa"])
def test_second_derivatives_are_refused_where_there_are_none(kernel: str) -> None:
    """Also where the gradient that arrives is a constant, as that of a sum."""
    q, k, v = (torch.randn(1, 2, 70, 8, requires_grad=True) for _ in range(3))
    options: dict[str, Any] = {"mask": masks.window(9, 0), "sinks": torch.zeros(2) if kernel == "sdpa" else None}
    if kernel == "native" and instruction_set() is None:
        pytest.skip("the native kernels are not here")
    (gradient,) = torch.autograd.grad(headwise.attention(q, k, v, kernel=kernel, **options).sum(), q, create_graph=True)
    assert gradient.isfinite().all()
    with pytest.raises(KernelRefused, match=r'second derivatives.*kernel="reference"'):
        gradient.square().sum().backward()
    # These allow inputs that are unused, and would take a missing derivative for 0.
    x, direction = q.detach(), torch.ones_like(q)
    for derivative, total in ((torch.autograd.functional.hvp, True), (torch.autograd.functional.jvp, False)):
        with pytest.raises(KernelRefused, match="second derivatives"):
            derivative(
                lambda x, total=total: (y := headwise.attention(x, k, v, kernel=kernel, **options), y.sum())[total],
                x,
                direction,
            )


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch itself
def test_forward_mode_and_torch_func_see_all() -> None:
    torch.manual_seed(0)
    q, tangent = torch.randn(1, 2, 200, 64), torch.randn(1, 2, 200, 64)
    mask = masks.causal() & masks.window(20, 0)

    def run(x: Tensor, kernel: str = "auto") -> Tensor:
        return headwise.attention(x, q, q, mask=mask, kernel=kernel)

    with torch.autograd.forward_ad.dual_level():
        found, expected = (
            torch.autograd.forward_ad.unpack_dual(run(torch.autograd.forward_ad.make_dual(q, tangent), kernel)).tangent
            for kernel in ("auto", "reference")
        )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    found, expected = (torch.func.grad(lambda x, k=k: run(x, k).square().sum())(q) for k in ("auto", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
