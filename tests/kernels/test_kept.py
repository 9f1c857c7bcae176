"""What the caller writes into between forward and backward: the gradients are those of the call that forward saw, or
an error names the argument that was changed."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError, checkpoint

import headwise
from headwise import masks
from headwise.errors import ChangedError
from headwise.masks import Mask
from headwise.models.cross_entropy import linear_cross_entropy
from headwise.native import dropout
from headwise.native.library import instruction_set
from tests.held import check_held

N = 130
KERNELS = ("auto", "native", "tiled", "sdpa", "reference")
AT = torch.arange(N)
here = pytest.mark.skipif(instruction_set() is None, reason="the native kernels are not here")


def inputs(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, N, 8, generator=generator).requires_grad_() for _ in range(3)]


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)) > 0.5


# name -> (a tensor, what is written into it, the mask made of it)
TENSORS: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], object], Callable[[Tensor], Mask | Tensor]]] = {
    "documents": (lambda: AT // 40, lambda x: x.fill_(0), lambda x: masks.documents(x) & masks.causal()),
    "documents alone": (lambda: AT // 40, lambda x: x.copy_((AT + 25) // 40), masks.documents),
    "padding": (lambda: torch.tensor([[90], [60]]) > AT, lambda x: x.fill_(True), masks.padding),
    "lengths": (lambda: torch.tensor([90, 60]), lambda x: x.fill_(N), lambda x: masks.lengths(x) & masks.causal()),
    "prefix": (lambda: torch.tensor([50]), lambda x: x.fill_(3), masks.prefix),
    "block sparse": (lambda: random(3, 3), lambda x: x.logical_not_(), lambda x: masks.block_sparse(x, 64)),
    "tensor": (lambda: random(N, N), lambda x: x.logical_not_(), lambda x: x),
    "tensor, by head": (lambda: random(2, 4, N, N), lambda x: x.logical_not_(), masks.from_tensor),
    "predicate": (
        lambda: AT % 7,
        lambda x: x.fill_(0),
        lambda x: masks.from_predicate(lambda b, h, q, k: x[k] <= x[q]),
    ),
}


def gradients(kernel: str, mask: Mask | Tensor, change: Callable[[], object], **options: Any) -> list[Tensor]:
    leaves = inputs()
    torch.manual_seed(0)
    loss = headwise.attention(*leaves, mask=mask, kernel=kernel, **options).square().sum()
    change()
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TENSORS)
def test_gradients_are_those_of_the_mask_that_forward_saw(name: str, kernel: str) -> None:
    make, change, mask = TENSORS[name]
    x = make()
    options: dict[str, Any] = {"dropout": 0.1} if kernel == "native" else {}
    expected = gradients(kernel, mask(make()), lambda: None, **options)
    found = gradients(kernel, mask(x), lambda: change(x), **options)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["native", "tiled", "sdpa", "auto"])
@pytest.mark.parametrize("name", ["small bias", "slopes", "sinks", "trained sinks"])
def test_small_options_are_copied(name: str, kernel: str) -> None:
    x = torch.randn(N) if name == "small bias" else torch.full((4,), 0.1)
    x.requires_grad_(name.startswith("trained"))
    mask, name = None if kernel == "sdpa" else masks.documents(AT // 40), name.split()[-1]
    expected = gradients(kernel, mask, lambda: None, **{name: x.clone()})  # type: ignore[arg-type]
    for mine, theirs in zip(gradients(kernel, mask, x.data.zero_, **{name: x}), expected, strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kernel", ["native", "tiled", "sdpa", "auto"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_large_bias_that_changes_is_named(kernel: str, trained: bool) -> None:
    if trained and kernel in ("tiled", "sdpa"):
        pytest.skip("it refuses, or does not read it again")
    bias = torch.randn(4, N, N, requires_grad=trained)
    mask = None if kernel == "sdpa" else masks.documents(AT // 40)

    def change() -> None:
        with torch.no_grad():
            bias.zero_()

    with pytest.raises(ChangedError, match=r"^bias: expected what forward saw.* Received: bias, .*bias\.clone"):
        gradients(kernel, mask, change, bias=bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_a_bias_that_backward_does_not_read_may_change(kernel: str) -> None:
    bias = torch.randn(N, N)
    mask = masks.documents(AT // 40)
    expected = gradients(kernel, mask, lambda: None, bias=bias.clone())
    for mine, theirs in zip(gradients(kernel, mask, lambda: bias.zero_(), bias=bias), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kernel", ["native", "tiled", "sdpa"])
def test_rows_that_are_computed_again_by_the_definition(kernel: str) -> None:
    """NaN in a key that some rows do not see."""

    def run(ids: Tensor, change: Callable[[], object]) -> list[Tensor]:
        q, k, v = inputs()
        with torch.no_grad():
            v[:, :, 100] = math.nan
        out = headwise.attention(q, k, v, mask=masks.documents(ids), kernel=kernel)
        change()
        return list(torch.autograd.grad(out[:, :, :40].square().sum(), (q, k, v)))

    ids = AT // 40
    expected = run(ids.clone(), lambda: None)
    assert expected[0][:, :, :40].isfinite().all()
    for mine, theirs in zip(run(ids, lambda: ids.fill_(0)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("trained", [False, True])
def test_options_of_rows_that_are_computed_again(trained: bool) -> None:
    """They are copied."""

    def run(change: bool) -> list[Tensor]:
        q, k, v = inputs()
        bias = torch.linspace(-1, 1, N).requires_grad_(trained)
        with torch.no_grad():
            k[:, :, 100] = math.nan
        out = headwise.attention(q, k, v, mask=masks.documents(AT // 40), bias=bias)
        with torch.no_grad():
            bias.mul_(2.0 if change else 1.0)
        return list(torch.autograd.grad(out[:, :, :40].square().sum(), (q, k, v)))

    for mine, theirs in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["q", "k", "bias", "sinks", "mask, matrix", "mask, table"])
def test_tensors_of_inference_mode_are_copied(name: str, kernel: str) -> None:
    q, k, v = inputs()
    given: dict[str, Any] = {"q": q, "k": k, "v": v, "mask": masks.documents(AT // 40)}
    with torch.inference_mode():
        if name in given:
            given[name] = given[name].clone()
        elif name.startswith("mask"):
            given["mask"] = random(N, N) if name == "mask, matrix" else masks.documents(AT // 40)
        else:
            given[name] = torch.randn(N, N) if name == "bias" else torch.zeros(4)
    plain = {key: x.clone() if isinstance(x, Tensor) and x.is_inference() else x for key, x in given.items()}
    found, expected = (headwise.attention(**x, kernel=kernel).square().sum() for x in (given, plain))
    if name in ("bias", "sinks"):
        with torch.inference_mode():
            given[name].zero_()
    for mine, theirs in zip(*(torch.autograd.grad(x, v) for x in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["documents", "padding", "tensor, by head", "bias"])
def test_what_is_computed_again_for_backward_is_the_same_call(name: str, kernel: str) -> None:
    """`torch.utils.checkpoint` runs forward again, on what its tensors hold then."""
    make, change, made = TENSORS.get(name, (lambda: torch.randn(N, N), lambda x: x.zero_(), lambda x: x))

    def run(x: Tensor, change: Callable[[], object], **how: Any) -> list[Tensor]:
        leaves = inputs()
        given = {"bias": x, "mask": masks.causal()} if name == "bias" else {"mask": made(x)}
        out = checkpoint(lambda *qkv: headwise.attention(*qkv, **given, kernel=kernel), *leaves, **how)
        change()
        return list(torch.autograd.grad(out.square().sum(), leaves))

    torch.manual_seed(0)
    x = make()
    expected = run(x.clone(), lambda: None, use_reentrant=False)
    given: dict[str, Any] = {"bias": x, "mask": masks.causal()} if name == "bias" else {"mask": made(x)}
    plain = gradients(kernel, change=lambda: None, **given)
    for mine, theirs in zip(expected, plain, strict=True):
        torch.testing.assert_close(mine, theirs)
    # (Where the other mask takes another way, torch itself notices that other tensors are saved.)
    named = r"^bias: expected what forward saw" if name == "bias" else r"^mask: expected what forward saw"
    with pytest.raises((ChangedError, CheckpointError), match=rf"{named}|different number of tensors"):
        run(x, lambda: change(x), use_reentrant=False)


@pytest.mark.parametrize("kernel", ["native", "tiled", "sdpa"])
def test_hooks_that_pack_what_is_saved_may_keep_a_copy(kernel: str) -> None:
    bias, ids = torch.randn(N, N), AT // 40
    expected = gradients(kernel, masks.documents(ids.clone()), lambda: None, bias=bias.clone())
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        found = gradients(kernel, masks.documents(ids), lambda: (bias.zero_(), ids.zero_()), bias=bias)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@here
@pytest.mark.parametrize("name", ["documents", "tensor"])
def test_compiled_code_gives_the_same_gradients_or_an_error(name: str) -> None:
    make, change, mask = TENSORS[name]
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return headwise.attention(q, k, v, mask=mask(x), softcap=9.0)  # (of "native")

    leaves, x = inputs(), make()
    expected = torch.autograd.grad(run(*leaves, x.clone()).square().sum(), leaves)
    out = run(*leaves, x).square().sum()
    change(x)
    try:
        found = torch.autograd.grad(out, leaves)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017 (either will do)
    else:
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)


# --- What a Function holds --------------------------------------------------------------------------------------------

CLASSES = {  # class: the test that calls `check_held` on it
    "_Native": "kernels/test_kept.py",
    "_Tiled": "kernels/test_kept.py",
    "_Products": "kernels/test_kept.py",
    "_Weighed": "kernels/test_kept.py",
    "_Same": "kernels/test_kept.py",
    "_Last": "kernels/test_kept.py",
    "_Dropout": "kernels/test_kept.py",
    "_LinearCrossEntropy": "kernels/test_kept.py",
    "_Ring": "parallel/worker.py",
    "_Needed": "parallel/worker.py",
    "Turned": "parallel/worker.py",
    "_Gather": "parallel/worker.py",
    "Call": "keras/test_doctor.py",
}


def test_every_function_of_the_package_is_looked_at() -> None:
    found = set()
    for path in Path(headwise.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(x).endswith("autograd.Function") for x in node.bases):
                found.add(node.name)
    assert found == set(CLASSES)
    for name, test in CLASSES.items():
        text = (Path(__file__).parents[1] / test).read_text(encoding="utf-8")
        assert name in text, f"{test} does not look at {name}"
        assert "check_held(" in text


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("kernel", ["native", "tiled"])
def test_a_function_holds_no_memory_of_its_caller(kernel: str, name: str) -> None:
    make, _, made = TENSORS[name]
    x = make()
    leaves = inputs()
    options = {"bias": torch.randn(N, N), "slopes": torch.full((4,), 0.1), "sinks": torch.zeros(4)}
    given = [*leaves, *options.values(), x]
    out = headwise.attention(*leaves, mask=made(x), kernel=kernel, **options)  # type: ignore[arg-type]
    assert check_held(out, given) >= {"_Native" if kernel == "native" else "_Tiled"}
    (gradient,) = torch.autograd.grad(out.sum(), leaves[0], create_graph=True)
    assert check_held(gradient, given) >= {"_Last"}
    again = checkpoint(
        lambda: headwise.attention(*leaves, mask=made(x), kernel=kernel, **options),  # type: ignore[arg-type]
        use_reentrant=False,
    )
    assert check_held(again, given) >= {"_Same"}
    with torch.no_grad():
        leaves[2][:, :, 100] = math.nan
    out = headwise.attention(*leaves, mask=made(x), kernel=kernel, **options)  # type: ignore[arg-type]
    assert check_held(out, given) >= {"_Products", "_Weighed"}


@here
def test_other_functions_hold_none_either() -> None:
    x = torch.randn(6, 8, requires_grad=True)
    assert check_held(dropout.dropout(x, 0.5), [x]) == {"_Dropout"}
    weight, labels = torch.randn(5, 8, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, 0])
    assert check_held(linear_cross_entropy(x, weight, labels), [x, weight, labels]) == {"_LinearCrossEntropy"}
    q, k, v = inputs()
    allowed = random(1, 1, N, N)
    out = torch.ops.headwise.attend(q, k, v, allowed, None, None, None, None, -9, 9, 1.0, 0.0, 0.0)[0]
    check_held(out, [q, k, v, allowed])
