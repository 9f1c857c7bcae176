"""Each instruction set against the definition in float64, and what must not change a result."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import attention, masks
from headwise.call import AttentionCall, make_call
from headwise.errors import ArgumentError
from headwise.kernels import native
from headwise.native.attend import forward
from headwise.records.statistics import STATISTICS, make
from headwise.records.statistics.compute import by_native, by_tiles
from tests import oracle

MASKS: dict[str, masks.Mask | Tensor | None] = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(40, 3),
    "rows that see nothing": masks.causal(offset=-70),
    "padding": masks.lengths(torch.tensor([130, 7])),
    "documents": masks.documents(torch.arange(150)[None] // torch.tensor([[50], [65]])) & masks.causal(),
    "any": torch.rand(2, 4, 150, 150, generator=torch.Generator().manual_seed(0)) > 0.5,
}
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def drawn(
    dtype: torch.dtype, q_len: int = 150, k_len: int = 150, d: int = 33, e: int = 20, **options: Any
) -> AttentionCall:
    torch.manual_seed(1)
    shapes = ((2, 4, q_len, d), (2, 2, k_len, d), (2, 2, k_len, e))
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return make_call(q, k, v, **options)


def near(found: Tensor, expected: Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    largest = max(1.0, expected.abs().max().item())
    assert (found.double() - expected).abs().max().item() <= times * TOLERANCE[dtype] * largest


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_output_and_gradients(each_set: str, name: str, dtype: torch.dtype) -> None:
    call = drawn(dtype, mask=MASKS[name])
    exact = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
    expected = oracle.attention(*exact, mask=call.mask)
    found = native.run(call)
    d_out = torch.randn_like(found)
    near(found, expected, dtype)
    expected.backward(d_out.double())
    found.backward(d_out)
    for x, y in zip((call.q, call.k, call.v), exact, strict=True):
        near(x.grad, y.grad, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("q_len", [1, 20, 32, 33, 65])
def test_gradients_of_short_sequences_compute_a_part_of_their_blocks(
    each_set: str, q_len: int, dtype: torch.dtype
) -> None:
    for k_len in (1, 31, 33, 70):
        call = drawn(dtype, q_len, k_len, mask=masks.window(25, 3) if k_len == q_len else None, softcap=20.0)
        exact = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
        expected, found = oracle.attention(*exact, mask=call.mask, softcap=20.0), native.run(call)
        expected.sin().sum().backward()
        found.sin().sum().backward()
        for x, y in zip((call.q, call.k, call.v), exact, strict=True):
            near(x.grad, y.grad, dtype)


SLOPES = torch.tensor([0.5, 0.25, 0.02, -0.01])


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"softcap": 0.01},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"scale": -0.3},
        {"slopes": SLOPES},
    ],
    ids=str,
)
def test_options(each_set: str, options: dict[str, Any]) -> None:
    call = drawn(torch.float32, mask=masks.causal(), **options)
    exact = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
    expected, found = oracle.attention(*exact, mask=call.mask, **options), native.run(call)
    near(found, expected, torch.float32)
    expected.square().sum().backward()
    found.square().sum().backward()
    for x, y in zip((call.q, call.k, call.v), exact, strict=True):
        near(x.grad, y.grad, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_drops_the_same_weights_backward(each_set: str, dtype: torch.dtype) -> None:
    p, call = 0.3, drawn(dtype, mask=masks.causal(), dropout=0.3)
    seen = call.mask.to_bool(150)  # type: ignore[union-attr]
    with torch.no_grad():
        torch.manual_seed(5)
        eye = torch.eye(150, dtype=dtype).expand(2, 2, 150, 150)
        kept = native.run(dataclasses.replace(call, v=eye)) != 0
    share = (kept & seen).sum() / (seen.sum() * 8)
    assert abs(share - (1 - p)) < 0.01
    assert not torch.equal(kept[0, 0], kept[0, 1])
    exact = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
    weights = oracle.attention(*exact[:2], torch.eye(150).double().expand(2, 2, 150, 150), mask=call.mask)
    expected = (weights * kept / (1 - p)) @ exact[2].repeat_interleave(2, 1)
    torch.manual_seed(5)
    found = native.run(call)
    near(found, expected, dtype)
    d_out = torch.randn_like(found)
    expected.backward(d_out.double())
    found.backward(d_out)
    for x, y in zip((call.q, call.k, call.v), exact, strict=True):
        near(x.grad, y.grad, dtype)
    assert not torch.equal(native.run(call), found)  # another seed


@pytest.mark.parametrize("shape", [(2, 4, 150, 150), (1, 4, 150, 150), (150, 150), (2, 1, 1, 150)], ids=str)
def test_the_gradient_of_a_bias(each_set: str, shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, requires_grad=True)
    call = drawn(torch.float32, mask=masks.window(70, 5), softcap=3.0, bias=bias)
    exact = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v, bias)]
    options = {"softcap": 3.0, "bias": exact[3]}
    expected, found = oracle.attention(*exact[:3], mask=call.mask, **options), native.run(call)
    near(found, expected, torch.float32)
    expected.square().sum().backward()
    found.square().sum().backward()
    for x, y in zip((call.q, call.k, call.v, bias), exact, strict=True):
        near(x.grad, y.grad, torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(150, 150), (200, 70), (70, 330)])  # 330: more keys than are held at once
def test_the_gradients_of_slopes_and_sinks(each_set: str, q_len: int, k_len: int, dtype: torch.dtype) -> None:
    slopes, sinks = SLOPES.clone().requires_grad_(), torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
    bias, mask = torch.randn(q_len, k_len), masks.window(300, 5) & masks.lengths(torch.tensor([60, k_len]))
    call = drawn(dtype, q_len, k_len, mask=mask, bias=bias, softcap=3.0, slopes=slopes, sinks=sinks)
    exact = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v, slopes, sinks)]
    options = {"softcap": 3.0, "slopes": exact[3], "sinks": exact[4]}
    expected = oracle.attention(*exact[:3], mask=call.mask, bias=bias, **options, dtype=dtype)
    found = native.run(call)
    near(found, expected, dtype)
    d_out = torch.randn_like(found)
    expected.backward(d_out.double())
    found.backward(d_out)
    for x, y in zip((call.q, call.k, call.v), exact, strict=False):
        near(x.grad, y.grad, dtype)
    for x, y in zip((slopes, sinks), exact[3:], strict=True):
        near(x.grad, y.grad, torch.float32, times=10)  # in half precision too, although the output is rounded


def test_equal_values_give_queries_and_keys_no_gradient(each_set: str) -> None:
    """Their gradients are what is left of terms that cancel."""
    few = drawn(torch.float32, scale=0.7)
    call = dataclasses.replace(few, v=few.v[:, :, :1].expand(-1, -1, 150, -1))
    out = native.run(call)
    out.backward(torch.randn_like(out))
    assert max(x.grad.abs().max().item() for x in (few.q, few.k)) < 7e-6  # type: ignore[union-attr]


def test_slopes_make_no_matrix(each_set: str) -> None:
    """Distances far beyond what a matrix in memory allows: Q × K float32 numbers would be 4 GB a head."""
    length, slopes = 2**15, torch.tensor([0.5, 0.01], requires_grad=True)
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out, record = attention(q, k, v, mask=masks.window(64, 0), slopes=slopes, record=True, kernel="native")
    out.sum().backward()
    found = record.statistics("lse", "distance", "received")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    rows, keys = slice(20_000, 20_003), slice(19_900, 20_003)
    s = q[:, :, rows] @ k[:, :, keys].mT / 8**0.5 - slopes[:, None, None] * (
        torch.arange(20_000, 20_003)[:, None] - torch.arange(19_900, 20_003)
    )
    s = s.masked_fill(~masks.window(64, 0).to_bool(3, 103), -torch.inf)
    torch.testing.assert_close(out[:, :, rows], s.softmax(-1) @ v[:, :, keys], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.lse[:, :, rows], s.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_what_the_weights_tell(each_set: str, name: str, dtype: torch.dtype) -> None:
    options = {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]), "slopes": SLOPES}
    call = drawn(dtype, mask=MASKS[name], **options).detached()
    names = [name for name, statistic in STATISTICS.items() if statistic.native]
    assert names == list(STATISTICS)
    found, expected = (compute(call, make(names, {"size": (7, 9)})) for compute in (by_native, by_tiles))
    assert list(found) == names
    for name in names:
        if name == "top":
            near(found[name].weights, expected[name].weights.double(), torch.float32)
            at = call.weights().gather(3, found[name].keys)
            near(at, expected[name].weights.double(), torch.float32)
        elif name == "keys_needed":
            assert (found[name] != expected[name]).float().mean() < 0.002  # sums within round-off of the share
        else:
            near(found[name].nan_to_num(), expected[name].nan_to_num().double(), torch.float32)


@pytest.mark.parametrize("name", [*MASKS, "few queries"])
def test_statistics_with_and_without_the_output(each_set: str, name: str) -> None:
    q_len, k_len = (3, 1300) if name == "few queries" else (150, 150)  # 1300: keys that are read in parts
    options: dict[str, Any] = {"softcap": 5.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])} if name == "causal" else {}
    options |= {"scale": 1.0} if name in ("none", "few queries") else {}  # scores so far apart that the reference moves
    call = drawn(torch.float32, q_len, k_len, mask=MASKS.get(name, masks.window(1100, 0)), **options)
    with torch.no_grad():
        weights = call.weights().double()
    of_sink = (1.0 - weights.sum(-1)).clamp(min=0.0) if options else torch.zeros(weights.shape[:3])
    far = (torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)).abs().double()
    keys = torch.tensor([0, 70, -1]).expand(2, 4, 3).contiguous()
    expected = {
        "entropy": -(torch.xlogy(weights, weights).sum(-1) + torch.xlogy(of_sink, of_sink)),
        "distance": (weights * far).sum(-1),
        "top_weights": weights.amax(-1, keepdim=True),
        "at_keys": weights[..., [0, 70]].sum(-1),
        "received": weights.sum(2),
    }
    for out in (torch.empty(2, 4, q_len, 20), None):
        found = {each: torch.empty(2, 4, q_len) for each in ("highest", "log_sum", "entropy", "distance", "at_keys")}
        found |= {"top_weights": torch.empty(2, 4, q_len, 1), "received": torch.empty(2, 4, k_len)}
        top_keys = torch.empty(2, 4, q_len, 1, dtype=torch.int64)
        assert forward(call, out, **found, keys=keys, top_keys=top_keys)
        for each, answer in expected.items():
            near(found[each], answer, torch.float32)
        near(weights.gather(3, top_keys), expected["top_weights"], torch.float32)
        if not options:
            lse = torch.logsumexp(call.detached().scores(), -1)
            torch.testing.assert_close(found["highest"] + found["log_sum"], lse, rtol=1e-5, atol=1e-5)


def test_what_forward_does_not_answer(each_set: str) -> None:
    call = drawn(torch.float32)
    with pytest.raises(ArgumentError, match="missing"):
        forward(call, None, received=torch.empty(2, 4, 150))
    two = {"top_weights": torch.empty(2, 4, 150, 2), "top_keys": torch.empty(2, 4, 150, 2, dtype=torch.int64)}
    with pytest.raises(ArgumentError, match="only hw_attention_look"):
        forward(call, None, **two)


def test_entropy_where_a_sink_takes_all(each_set: str) -> None:
    """Scores of about finfo.min, as of a padded row, beside a learned sink."""
    bias = torch.zeros(150, 150)
    bias[3] = torch.finfo(torch.float32).min
    call = drawn(torch.float32, bias=bias, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])).detached()
    found, expected = (compute(call, make(("entropy",), {}))["entropy"] for compute in (by_native, by_tiles))
    near(found, expected.double(), torch.float32)
    assert (found[:, :, 3] == 0.0).all()
    beside = torch.empty(2, 4, 150)
    forward(call, None, entropy=beside)
    near(beside, expected.double(), torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    threads, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        call = drawn(dtype, 300, 200, mask=masks.window(100, 0))
        out = native.run(call)
        out.square().sum().backward()
        found.append([out, call.q.grad, call.k.grad, call.v.grad])
    torch.set_num_threads(threads)
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


FORK = """
import os, torch, headwise
torch.set_num_threads(2)
q = torch.randn(2, 4, 300, 32)
expected = headwise.attention(q, q, q, kernel="native").numpy().tobytes()
child = os.fork()
if child == 0:  # (torch's own threads do not survive a fork: here nothing but the kernel may use several)
    os._exit(headwise.attention(q, q, q, kernel="native").numpy().tobytes() != expected)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_fork_has_threads_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
