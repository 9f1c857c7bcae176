"""What surrounds a call in torch: derivatives, traces and modes see it whole, whatever its mask was used for before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.errors import KernelRefused
from headwise.kernels import KERNELS, choose, reference
from headwise.kernels.plan import find_name
from headwise.masks import Mask

N = 160  # planned, not so small that torch's function is taken at once
GENERATOR = torch.Generator().manual_seed(0)
Q, K, V, DIRECTION, OTHER = (torch.randn(1, 4, N, 8, generator=GENERATOR) for _ in range(5))
Run = Callable[[Tensor], Tensor]


class Subclass(torch.Tensor):
    """Of somebody else."""


def dual(run: Run) -> Tensor:
    with forward_ad.dual_level():
        tangent: Tensor = forward_ad.unpack_dual(run(forward_ad.make_dual(Q, DIRECTION))).tangent
        return tangent


def counted(run: Run) -> Tensor:
    with FlopCounterMode(display=False):
        return run(Q)


# name -> what is computed there of a call with Q.
AROUND: dict[str, Callable[[Run], Tensor]] = {
    "nothing": lambda run: run(Q),
    "forward_ad": dual,
    "func.jvp": lambda run: torch.func.jvp(run, (Q,), (DIRECTION,))[1],
    "func.grad": lambda run: torch.func.grad(lambda q: run(q).square().sum())(Q),
    "func.vmap": lambda run: torch.func.vmap(run)(torch.stack([Q, OTHER])),
    "func.functionalize": lambda run: torch.func.functionalize(run)(Q),
    "FlopCounterMode": counted,
    "jit.trace": lambda run: torch.jit.trace(run, (Q,), check_trace=False)(OTHER),
    "make_fx": lambda run: make_fx(run)(Q)(OTHER),
    "make_fx, fake": lambda run: make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(Q)(OTHER),
    "a subclass": lambda run: run(Q.as_subclass(Subclass)).as_subclass(Tensor),
}

MASKS: dict[str, Callable[[], Mask | Tensor]] = {
    "window": lambda: masks.window(20, 0),
    "documents": lambda: masks.documents(torch.arange(N) // 50) & masks.causal(),
    "tensor": lambda: torch.rand(N, N, generator=torch.Generator().manual_seed(1)) > 0.5,
}

traces_warn = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning",
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:.*implemented the batching rule:UserWarning",  # torch's own kernel runs once for each example of vmap
)


def attend(mask: Any, kernel: str = "auto") -> Run:
    return lambda q: headwise.attention(q, K, V, mask=mask, kernel=kernel)


@traces_warn
@pytest.mark.parametrize("kernel", ["auto", *(name for name in KERNELS if name not in ("reference", "decode"))])
@pytest.mark.parametrize("around", AROUND)
def test_an_earlier_call_with_the_same_mask_changes_nothing(around: str, kernel: str) -> None:
    if (kernel, around) == ("flex", "nothing"):
        pytest.skip("tests/kernels/test_flex.py")
    for name, make in MASKS.items():
        expected = AROUND[around](attend(make(), "reference"))
        for warm in (True, False):
            mask = make()
            if warm:
                attend(mask)(Q)
            try:
                found = AROUND[around](attend(mask, kernel))
            except KernelRefused:
                assert kernel != "auto"
                continue
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
            # Nor does it change a later one.
            q = Q.clone().requires_grad_()
            out = attend(mask)(q)
            assert type(out) is Tensor
            torch.testing.assert_close(out, attend(make(), "reference")(Q), rtol=1e-4, atol=1e-4)
            out.sum().backward()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("warm", [True, False])
def test_fake_tensors_give_a_fake_output(name: str, warm: bool) -> None:
    mask = MASKS[name]()
    if warm:
        attend(mask)(Q)
    for kernel in ("auto", "sdpa", "reference"):
        with FakeTensorMode(allow_non_fake_inputs=True):
            out = headwise.attention(*(torch.empty(1, 4, N, 8) for _ in range(3)), mask=mask, kernel=kernel)
            assert headwise.plan(*(torch.empty(1, 4, N, 8) for _ in range(3)), mask=mask).kernel in (
                "sdpa",
                "reference",
            )
        assert isinstance(out, FakeTensor)
        assert out.shape == Q.shape
    torch.testing.assert_close(attend(mask)(Q), attend(MASKS[name](), "reference")(Q), rtol=1e-4, atol=1e-4)


def test_operations_that_are_counted_are_those_of_a_new_mask() -> None:
    counts = []
    for warm in (False, True):
        mask = masks.window(20, 0)
        if warm:
            attend(mask)(Q)
        with FlopCounterMode(display=False) as counter:  # (it counts matrix products, not those of a fused kernel)
            attend(mask)(Q)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("around", ["func.grad", "func.functionalize", "make_fx, fake"])
def test_a_mask_remembers_nothing_that_belongs_to_a_transform(around: str) -> None:
    mask = masks.padding(torch.arange(N)[None] < N - 9)
    AROUND[around](attend(mask))
    used = mask.used_keys(N, N)
    assert used is not None
    assert type(used) is Tensor
    assert not torch._C._functorch.is_functorch_wrapped_tensor(used)  # type: ignore[attr-defined]


def test_what_a_mask_worked_out_in_inference_mode_can_be_saved_for_backward() -> None:
    mask = masks.padding(torch.arange(N)[None] < N - 9)
    with torch.inference_mode():
        attend(mask)(Q)
        used = mask.used_keys(N, N)
    assert not used.is_inference()


def test_a_kernel_of_others_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Toy:
        OPTIONS = reference.OPTIONS
        why: str | None = None

        def refuse(self, call: object) -> str | None:
            return self.why

        def cost(self, call: Any) -> Any:
            return reference.cost(call).__class__(0, 0, 0, 0.0)

        def run(self, call: Any) -> Tensor:
            return reference.run(call)

    toy = Toy()
    monkeypatch.setitem(KERNELS, "toy", toy)
    call = make_call(Q, K, V, mask=masks.window(20, 0))
    assert choose(call) is toy
    toy.why = "it is busy"
    assert choose(call) is not toy
    toy.why = None
    assert choose(call) is toy
    monkeypatch.delitem(KERNELS, "toy")
    assert find_name(choose(call)) != "toy"
