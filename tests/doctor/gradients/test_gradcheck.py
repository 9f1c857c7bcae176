"""Gradients that are right, gradients that are not, and modules of which it is hard to say."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import dropout

from headwise.doctor.gradients.gradcheck import Gradients, TensorGradient, gradcheck
from headwise.errors import ArgumentError, DoctorError
from tests.doctor.laws.specimens import altered


class SelfAttention(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = self.weigh(q @ k.mT * q.shape[-1] ** -0.5)
        return self.o((weights @ v).transpose(1, 2).flatten(2))

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class _Softmax(torch.autograd.Function):
    """A softmax whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, factor: float) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights)
        ctx.factor = factor
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        inner = (gradient * weights).sum(-1, keepdim=True)
        return ctx.factor * weights * (gradient - inner), None


class Custom(SelfAttention):
    factor = 1.0

    def weigh(self, scores: Tensor) -> Tensor:
        return _Softmax.apply(scores, self.factor)


def _detached(self: Any, scores: Tensor) -> Tensor:
    return scores.softmax(-1).detach()


def of(found: Gradients) -> dict[str, TensorGradient]:
    return {x.name: x for x in found.tensors}


@pytest.mark.parametrize(
    "module",
    [SelfAttention(), Custom(), nn.MultiheadAttention(8, 2)],
    ids=["plain", "custom", "torch, sequence first"],
)
def test_right_gradients_are_right(module: nn.Module) -> None:
    found = gradcheck(module)
    assert found.right
    assert found.dtype == "float64"
    assert all(x.verdict == "right" and x.difference < 1e-7 for x in found.tensors)
    names = [name for name, _ in module.named_parameters()]
    assert [x.name for x in found.tensors if not x.name.startswith("input ")] == names
    inputs = [x.name for x in found.tensors if x.name.startswith("input ")]
    assert inputs == (["input query", "input key", "input value"] if len(names) == 4 else ["input query"])


def test_a_wrong_gradient_of_a_function_of_ones_own_is_found() -> None:
    found = gradcheck(altered(Custom, factor=1.01))
    assert not found.right
    wrong = {x.name for x in found.wrong}
    assert wrong == {"input query", "q.weight", "q.bias", "k.weight"}  # k.bias has no influence on a softmax
    worst = of(found)["q.weight"]
    assert worst.verdict == "wrong"
    assert worst.autograd == pytest.approx(1.01 * worst.numerical, rel=1e-4, abs=1e-9)


def test_a_detach_blocks_what_is_before_it() -> None:
    found = gradcheck(altered(SelfAttention, weigh=_detached))
    assert not found.right
    verdicts = {name: x.verdict for name, x in of(found).items()}
    assert verdicts["input query"] == "wrong"
    assert verdicts["q.weight"] == verdicts["q.bias"] == verdicts["k.weight"] == "blocked"
    assert verdicts["v.weight"] == verdicts["o.weight"] == "right"


def test_as_many_numbers_are_moved_as_are_asked_for() -> None:
    few, all_ = gradcheck(SelfAttention(), sampled=3), gradcheck(SelfAttention(4), sampled=None)
    assert {x.checked for x in few.tensors} == {3}
    assert {x.name: x.checked for x in all_.tensors}["q.weight"] == 16
    assert gradcheck(SelfAttention(), sampled=3, seed=1).right
    with pytest.raises(ArgumentError, match="sampled must be 1 or more"):
        gradcheck(SelfAttention(), sampled=0)


class _OneWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        wrong = gradient.clone()
        wrong[5, 6] += 1.0
        return wrong


def test_one_wrong_number_is_found_outside_the_sample() -> None:
    """A whole tensor is moved along a random direction too."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return SelfAttention.forward(self, x) + nn.functional.linear(x, _OneWrong.apply(self.o.weight))

    worst = of(gradcheck(altered(SelfAttention, forward=forward), sampled=1))["o.weight"]
    assert (worst.verdict, worst.at) == ("wrong", ())


def test_dropout_that_acts_in_eval_mode_drops_the_same_each_time() -> None:
    module = altered(SelfAttention, weigh=lambda self, x: dropout(x.softmax(-1), 0.5, training=True)).train()
    state = torch.random.get_rng_state()
    before = {name: x.clone() for name, x in module.named_parameters()}
    assert gradcheck(module).right
    assert module.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) and x.grad is None for name, x in module.named_parameters())


def test_a_kink_is_not_judged() -> None:
    """relu(gate) at gate = 0 has two slopes: 0 on one side, what autograd does not say on the other."""

    class Gated(SelfAttention):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.relu(self.gate) * x

    found = gradcheck(Gated())
    assert found.right
    assert of(found)["gate"].kinks == 9  # eight numbers and the direction
    assert all(x.kinks == 0 for x in found.tensors if x.name != "gate")


def test_what_is_not_used_and_what_is_frozen_is_not_wrong() -> None:
    class Odd(SelfAttention):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(8, 8)
            self.v.weight.requires_grad_(False)

    found = gradcheck(Odd())
    assert found.right
    assert of(found)["spare.weight"].verdict == "unused"
    assert of(found)["v.weight"].verdict == "frozen"


def test_what_cannot_run_in_float64_is_checked_as_far_as_float32_goes_and_says_so() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return SelfAttention.forward(self, x.float())

    found = gradcheck(altered(SelfAttention, forward=forward))
    assert (found.right, found.dtype) == (True, "float32")
    assert "it cannot run in float64: RuntimeError" in found.notes[0]
    assert not gradcheck(altered(SelfAttention, forward=forward, weigh=_detached)).right


def test_a_part_in_lower_precision_widens_what_is_let_pass() -> None:
    found = gradcheck(altered(SelfAttention, weigh=lambda self, x: x.softmax(-1, dtype=torch.float32).to(x.dtype)))
    assert (found.right, found.dtype) == (True, "float64")
    assert "computed in float32" in found.notes[0]


class _Unfinished(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise NotImplementedError("to do")


def test_a_backward_that_raises_is_a_problem_with_its_line() -> None:
    found = gradcheck(altered(SelfAttention, weigh=lambda self, x: _Unfinished.apply(x.softmax(-1))))
    assert not found.right
    assert found.problem.startswith("backward raised NotImplementedError: to do (")
    assert "test_gradcheck.py" in found.problem


def test_other_numbers_each_time_are_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return SelfAttention.forward(self, x) * self.calls

    with pytest.raises(DoctorError, match="SelfAttention must give the same output"):
        gradcheck(altered(SelfAttention, forward=forward, calls=0))


def test_the_report_names_the_worst() -> None:
    found = gradcheck(altered(SelfAttention, weigh=_detached))
    out = io.StringIO()
    Console(file=out, width=120).print(found)
    assert "no gradient" in out.getvalue()
    assert "4 of 9 gradients are wrong" in out.getvalue()
    right = io.StringIO()
    Console(file=right, width=120).print(gradcheck(SelfAttention()))
    assert "The gradients are right: " in right.getvalue()
    assert found.to_dict()["right"] is False
