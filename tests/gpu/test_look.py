"""What the kernels in Triton find, against float64: by the interpreter of Triton on the CPU, and on a GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import Scores, make_call
from headwise.gpu import look
from headwise.masks import Mask
from headwise.native.sight import BAND, BLOCKS
from headwise.records import AttentionRecord
from headwise.records.statistics import STATISTICS, make
from tests.mask_zoo import ZOO, fits

ROOT = Path(__file__).parents[2]
NAMES = ("lse", "entropy", "distance", "learned_sink", "received")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")  # when it compiles
pytest.importorskip("triton", reason="triton is not installed")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton reads it once, when it is imported
compute = sys.modules["headwise.records.statistics.compute"]  # a function has this name, too


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if (request.param == "cpu") != INTERPRETED:
        pytest.skip("one process does not both interpret and compile kernels")
    if request.param == "cpu":
        monkeypatch.setattr(look, "DEVICES", ("cpu",))
    return str(request.param)


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_all_of_it_by_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.skipif(INTERPRETED, reason="what is interpreted is not compiled")
@pytest.mark.parametrize("kind", [BAND, BLOCKS])
def test_they_compile_for_a_gpu(kind: int) -> None:
    """To the machine code of an H100, which needs none."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from headwise.gpu import kernels

    types = dict.fromkeys(("q", "k"), "*bf16") | dict.fromkeys(("matrix", "first", "blocks", "words"), "*i64")
    types |= dict.fromkeys(("slopes", "sinks", *look.ANSWERS), "*fp32") | dict.fromkeys(("scale", "cap"), "fp32")
    given = {"KIND": kind, "CAPPED": True, "SLOPED": True, "SINKS": True, "WIDTH": 64}
    for kernel in (kernels.of_rows, kernels.of_keys):
        names = kernel.arg_names
        fixed = {name: value for name, value in given.items() if name in names}
        signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in names}
        source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()})
        made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_stages": 2})
        assert made.asm["cubin"]
        assert made.metadata.shared < 2**16


def draw(B: int, H: int, G: int, Q: int, K: int, D: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(Q + K)
    sizes = ((B, H, Q, D), (B, G, K, D))
    q, k = (torch.randn(size, generator=drawn, dtype=torch.float64) for size in sizes)
    return q, k


def moved(x: Any, device: str, dtype: torch.dtype = torch.float32) -> Any:
    return x.to(device, dtype) if isinstance(x, Tensor) else x


def check(device: str, q: Tensor, k: Tensor, mask: Mask | None, **options: Any) -> Scores:
    """Every statistic that the kernels find, of float32, against the tiles of float64."""
    truth = AttentionRecord(make_call(q, k, torch.zeros_like(k), mask=mask, **options)).statistics(*NAMES)
    here = [moved(x, device) for x in (q, k, torch.zeros_like(k))]
    given = {name: moved(x, device) for name, x in options.items()}
    call = make_call(*here, mask=mask if mask is None else mask.to(device), **given)
    assert look.refuse(call) is None
    found = compute.by_triton(call, make(NAMES, {}))
    assert found.keys() == set(NAMES)
    for name, answer in found.items():
        expected = getattr(truth, name)
        torch.testing.assert_close(
            answer.cpu().double(), expected, rtol=1e-4, atol=1e-4, msg=lambda said, name=name: f"{name}: {said}"
        )
    return call


def test_by_hand(device: str) -> None:
    """Weights 1; 1/3 2/3; 1/7 2/7 4/7."""
    k = torch.tensor([1.0, 2.0, 4.0]).log()[None, None, :, None].to(device)
    call = make_call(torch.ones_like(k), k, torch.zeros_like(k), mask=masks.causal().to(device))
    found = look.look(call, look.ANSWERS)
    lse = (found["highest"] + found["log_sum"]).flatten().tolist()
    assert lse == pytest.approx([0.0, math.log(3), math.log(7)], abs=1e-6)
    third = (math.log(7) + 2 * math.log(7 / 2) + 4 * math.log(7 / 4)) / 7
    two = math.log(3) / 3 + 2 / 3 * math.log(3 / 2)
    assert found["entropy"].flatten().tolist() == pytest.approx([0.0, two, third], abs=1e-6)
    assert found["distance"].flatten().tolist() == pytest.approx([0.0, 1 / 3, 4 / 7], abs=1e-6)
    assert found["received"].flatten().tolist() == pytest.approx([1 + 1 / 3 + 1 / 7, 2 / 3 + 2 / 7, 4 / 7], abs=1e-6)


@pytest.mark.parametrize("name", [name for name in ZOO if fits(name, 70, 130)])
def test_every_mask(name: str, device: str) -> None:
    check(device, *draw(2, 2, 1, 70, 130, 5), ZOO[name](2, 2, 70, 130))


def test_big_bird_and_no_mask(device: str) -> None:
    check(device, *draw(1, 2, 2, 130, 130, 16), ZOO["big bird"](1, 2, 130, 130))
    check(device, *draw(1, 2, 2, 130, 65, 24), None)


@pytest.mark.parametrize(
    "make_options",
    [
        lambda H: {"slopes": torch.linspace(0.01, 0.1, H).double()},
        lambda H: {"softcap": 1.5},
        lambda H: {"sinks": torch.tensor([-math.inf, *torch.linspace(-2, 9, H - 1).tolist()]).double()},
        lambda H: {"scale": -3.0},
        lambda H: {"scale": 40.0, "softcap": 20.0, "slopes": torch.ones(H).double(), "sinks": torch.zeros(H).double()},
    ],
)
def test_options(make_options: Callable[[int], dict[str, Any]], device: str) -> None:
    """On documents and rows that see nothing, of a band and of blocks."""
    q, k = draw(2, 4, 2, 100, 100, 16)
    for mask in (masks.causal(offset=-3), masks.documents(torch.arange(100) // 30 - 1) & masks.causal()):
        check(device, q, k, mask, **make_options(4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, device: str) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16 as if it were integers")
    q, k = (x.to(dtype).double() for x in draw(1, 2, 1, 100, 100, 64))
    truth = AttentionRecord(make_call(q, k, k, mask=masks.causal())).statistics(*NAMES)
    call = make_call(*(moved(x, device, dtype) for x in (q, k, k)), mask=masks.causal().to(device))
    for name, answer in compute.by_triton(call, make(NAMES, {})).items():
        torch.testing.assert_close(answer.cpu().double(), getattr(truth, name), rtol=1e-4, atol=1e-4)


def test_views_are_read_where_they_are(device: str) -> None:
    q, k = draw(2, 2, 2, 70, 70, 16)
    call = check(device, q.transpose(1, 2).contiguous().transpose(1, 2), k.transpose(2, 3).contiguous().mT, None)
    assert not call.q.is_contiguous()
    assert not call.k.is_contiguous()


def test_a_record_asks_them(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they do not find, the tiles do."""
    monkeypatch.setattr(compute, "refuse", lambda call: "not asked")
    asked: list[set[str]] = []
    looks = look.look

    def looking(call: Scores, names: set[str]) -> dict[str, Tensor]:
        asked.append(set(names))
        return looks(call, names)

    monkeypatch.setattr(look, "look", looking)
    q, k = draw(1, 2, 2, 70, 70, 16)
    truth = headwise.attention(q, k, k, mask=masks.causal(), record=True)[1].statistics()
    assert not asked  # float64
    here = [moved(x, device) for x in (q, k, k)]
    found = headwise.attention(*here, mask=masks.causal().to(device), record=True)[1].statistics()
    assert asked == [{"highest", "log_sum", "entropy", "distance", "received"}]
    for name in set(STATISTICS) - {"top", "keys_needed"}:
        torch.testing.assert_close(getattr(found, name).cpu().double(), getattr(truth, name), rtol=1e-4, atol=1e-4)


def test_what_they_refuse(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = (moved(x, device) for x in draw(1, 1, 1, 8, 8, 4))
    bias = torch.zeros(1, 1, 8, 8, device=device)
    assert look.refuse(make_call(q, k, k, bias=bias)) == "they have no bias"
    assert look.refuse(make_call(q.double(), k.double(), k.double())) == "they have no float64"
    wide = torch.zeros(1, 1, 8, 300, device=device)
    assert look.refuse(make_call(wide, wide, wide)) == "they are for heads of 1 to 128 and some queries and keys"
    monkeypatch.undo()
    here = q.cpu()
    assert look.refuse(make_call(here, here, here)) == "they run on CUDA (the call is on cpu)"
