"""Random calls against the definition, and the definition against numbers that a reader can check."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import conformance
from headwise import masks
from headwise.kernels import KERNELS
from tests import oracle

NAN, INF, LOW = math.nan, math.inf, torch.finfo(torch.float32).min


@pytest.fixture(scope="module")
def results() -> Iterator[list[conformance.Result]]:
    """Of 90 calls, on every kernel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        # As the program does. torch 2.8 has no such switch.
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
        calls = (conformance.draw_call(0, index) for index in range(90))
        yield [result for call in calls for result in conformance.check(call, ["auto", *KERNELS])]
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
def test_random_calls_match_the_definition(kernel: str, results: list[conformance.Result]) -> None:
    mine = [result for result in results if result.kernel == kernel]
    assert mine, "no call was drawn that this kernel takes"
    wrong = [(result, f"{result.call.index}: {'; '.join(map(str, result.mismatches))}") for result in mine]
    print(*(f"also torch's own: {text}\n" for result, text in wrong if result.shared))
    assert not [text for result, text in wrong if result.mismatches and not result.shared]


def test_every_mask_is_drawn() -> None:
    makers = {name for name in masks.__all__ if not isinstance(getattr(masks, name), type)}
    assert makers == set(conformance.MAKERS)


def test_a_call_is_drawn_from_its_seed_and_index_alone() -> None:
    for index in range(20):
        one, again, other = (conformance.draw_call(seed, index) for seed in (3, 3, 4))
        assert one.story == again.story != other.story
        for name, x in one.inputs.items():
            torch.testing.assert_close(x, again.inputs[name], rtol=0, atol=0, equal_nan=True)
            assert x.stride() == again.inputs[name].stride()


def test_each_instruction_set_is_forced_in_a_process_and_one_that_fails_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "instruction_sets", lambda: ["portable", "avx2", "amx"])
    ran: dict[str, list[str]] = {}

    def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        ran[env["HEADWISE_NATIVE"]] = command[2:]
        return subprocess.CompletedProcess(command, returncode=int(env["HEADWISE_NATIVE"] == "avx2"))

    monkeypatch.setattr(subprocess, "run", run)
    for asked, status in (("all", 1), ("amx portable", 0)):
        monkeypatch.setattr("sys.argv", ["conformance.py", "--calls=7", "--instruction-sets", *asked.split()])
        with pytest.raises(SystemExit) as exit_:
            conformance.main()
        assert exit_.value.code == status
    assert list(ran) == ["portable", "avx2", "amx"]
    assert ran["amx"] == ["--calls=7", "--start=0", "--seed=0", "--kernel=all"]
    first = "portable: matches\navx2: does not match (exit status 1)\namx: matches\n"
    assert capsys.readouterr().out == first + "amx: matches\nportable: matches\n"


@pytest.mark.parametrize("dtype", conformance.DTYPES, ids=str)
@pytest.mark.parametrize("scale", [None, -0.5, 0.0])
def test_the_math_path_is_torchs(dtype: torch.dtype, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {name: torch.randn(2, 3, 20, 8).to(dtype).requires_grad_() for name in "qkv"}
    options = {"mask": torch.rand(20, 20) < 0.6, "scale": scale, "softcap": None}
    call = conformance.Call(0, inputs, inputs, options, torch.randn(2, 3, 20, 8).to(dtype), {})
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            out = scaled_dot_product_attention(**_named(inputs), attn_mask=options["mask"], scale=scale)
            theirs = conformance.gradients(out, inputs, call.d_out)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
    for name, x in conformance.math_path(call, inputs).items():
        # Backward through the softmax, torch's uses weights that are rounded to the dtype.
        tolerance = 0 if name == "out" or dtype in (torch.float32, torch.float64) else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(x, theirs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def _named(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"query": inputs["q"], "key": inputs["k"], "value": inputs["v"]}


@pytest.mark.parametrize(
    ("got", "match"),
    [
        ([1.0, 2.0, NAN], True),
        ([1.0, 2.0 + 1e-6, NAN], True),
        ([1.0, 2.1, NAN], False),
        ([1.0, NAN, NAN], False),
        ([1.0, 2.0, 3.0], False),
    ],
)
def test_what_a_match_is(got: list[float], match: bool) -> None:
    true = torch.tensor([1.0, 2.0, NAN], dtype=torch.float64)
    _, mismatch = conformance.compare(torch.tensor(got), true, 1e-5, torch.float32)
    assert (mismatch == "") == match


def attend(scores: list[list[float]], values: list[float], **options: object) -> list[float]:
    """The oracle's output for one head with these scores [Q, K] and values [K]: keys are 1, so that q is the bias."""
    q_len, k_len = len(scores), len(values)
    q, k = torch.zeros(1, 1, q_len, 1), torch.zeros(1, 1, k_len, 1)
    bias = torch.tensor(scores, dtype=options.pop("bias_dtype", torch.float32))
    v = torch.tensor(values)[None, None, :, None]
    return oracle.attention(q, k, v, bias=bias, **options)[0, 0, :, 0].tolist()


LOG3 = math.log(3.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.75 * 4 + 0.25 * 8),
        ({"mask": torch.tensor([[True, False]])}, 4.0),
        ({"mask": torch.tensor([[False, False]])}, 0.0),
        ({"mask": masks.causal(offset=0)}, 4.0),
        ({"sinks": torch.tensor([0.0])}, (3 * 4 + 1 * 8) / 5),
        ({"sinks": torch.tensor([-INF])}, 5.0),
    ],
)
def test_the_oracle_by_hand(options: dict[str, object], expected: float) -> None:
    (out,) = attend([[LOG3, 0.0]], [4.0, 8.0], **options)
    assert out == pytest.approx(expected, rel=1e-6)


def test_scale_softcap_and_shared_key_heads_by_hand() -> None:
    q, k = torch.tensor([2.0, -2.0]).view(1, 2, 1, 1), torch.tensor([0.0, 3.0]).view(1, 1, 2, 1)
    v = torch.tensor([4.0, 8.0]).view(1, 1, 2, 1)
    for scale, softcap in ((1.0, None), (-0.5, None), (0.0, None), (1.0, 2.0), (None, None)):
        out = oracle.attention(q, k, v, scale=scale, softcap=softcap)
        for head, query in enumerate((2.0, -2.0)):
            s = (1.0 if scale is None else scale) * query * 3.0  # D = 1; the other key's score is 0
            s = s if softcap is None else softcap * math.tanh(s / softcap)
            assert out[0, head, 0, 0].item() == pytest.approx((4.0 + 8.0 * math.exp(s)) / (1.0 + math.exp(s)))


def test_a_bias_of_finfo_min_makes_weights_equal_where_it_is_all_there_is() -> None:
    assert attend([[LOG3 + LOW, LOW], [0.0, LOW]], [4.0, 8.0]) == [6.0, 4.0]
    q, k = torch.tensor([[[[1.0], [1.0]]]]), torch.tensor([[[[0.0], [2.0]]]])  # scores of 0 and 2
    v = torch.tensor([[[[4.0], [8.0]]]])
    assert oracle.attention(q, k, v, bias=torch.full((1, 1), LOW))[0, 0, :, 0].tolist() == [6.0, 6.0]
    # In float64 such a bias of float32 rounds the scores away too; -1e4 does not.
    kept = oracle.attention(q.double(), k.double(), v.double(), bias=torch.full((1, 1), -1e4))
    assert kept[0, 0, 0, 0].item() == pytest.approx((4 + 8 * math.exp(2)) / (1 + math.exp(2)))


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_a_key_holds_reaches_only_the_queries_that_see_it(bad: float) -> None:
    """The last key and value are not finite, or the value alone; only the last query sees them, and nothing else."""
    mask = torch.tensor([[True, False, False], [True, True, False], [False, False, True]])
    for spoilt in (("k", "v"), ("v",)):
        inputs = {name: torch.randn(1, 2, 3, 2).requires_grad_() for name in "qkv"}
        healthy = oracle.attention(**{name: x[:, :, :2] for name, x in inputs.items()}, mask=masks.causal())
        with torch.no_grad():
            for name in spoilt:
                inputs[name][:, :, 2] = bad
        out = oracle.attention(**inputs, mask=mask)
        assert out.isfinite().all(-1).tolist() == [[[True, True, False]] * 2]
        torch.testing.assert_close(out[:, :, :2], healthy)
        grads = torch.autograd.grad(out.sum(), list(inputs.values()))
        assert all(grad[:, :, :2].isfinite().all() for grad in grads)


def test_a_key_that_nobody_sees_and_an_empty_row_have_gradients_of_zero() -> None:
    inputs = {name: torch.randn(1, 1, 3, 2, dtype=torch.float64).requires_grad_() for name in "qkv"}
    bias = torch.zeros(3, 3, dtype=torch.float64)
    bias[1], bias[:, 2] = -INF, NAN  # a row that attends to nothing, and what the mask forbids
    bias.requires_grad_()
    with torch.no_grad():
        inputs["k"][:, :, 2] = inputs["v"][:, :, 2] = NAN
    sinks = torch.tensor([-INF], requires_grad=True)
    mask = torch.tensor([True, True, False]).expand(3, 3)
    out = oracle.attention(**inputs, mask=mask, bias=bias, sinks=sinks)
    assert out[0, 0, 1].tolist() == [0.0, 0.0]
    d_q, d_k, d_v, d_bias, d_sinks = torch.autograd.grad(out.sum(), [*inputs.values(), bias, sinks])
    assert all(grad.isfinite().all() for grad in (d_q, d_k, d_v, d_bias, d_sinks))
    assert not any(x.any() for x in (d_q[0, 0, 1], d_k[0, 0, 2], d_v[0, 0, 2], d_bias[1], d_bias[:, 2], d_sinks))


def test_gradients_of_the_oracle_are_the_numerical_ones() -> None:
    inputs = [torch.randn(1, 2, 4, 3, dtype=torch.float64).requires_grad_() for _ in range(3)]
    bias, sinks = torch.randn(2, 4, 4, dtype=torch.float64), torch.randn(2, dtype=torch.float64)

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        return oracle.attention(q, k, v, mask=masks.window(1, 1), bias=bias, sinks=sinks, softcap=2.0, scale=-0.7)

    assert torch.autograd.gradcheck(run, (*inputs, bias.requires_grad_(), sinks.requires_grad_()))
