"""An option that is trained gets the gradient of the reference from every kernel, or the kernel refuses and says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import Int8, edits, masks
from headwise.errors import DtypeError, KernelRefused
from headwise.kernels import KERNELS
from headwise.masks import Mask
from headwise.options import TENSORS

N = 70
OPTIONS: dict[str, tuple[int, ...]] = {
    "bias": (4, N, N),
    "bias, of keys": (2, 1, 1, N),
    "bias, one number": (),
    "slopes": (4,),
    "sinks": (4,),
    "softcap": (),
    "softcap, [1]": (1,),
}
MASKS: dict[str, Mask | None] = {
    "no mask": None,
    "window": masks.window(9, 0),
    "documents": masks.documents(torch.arange(N) // 30),
}


def named(key: str) -> str:
    return key.partition(",")[0]


def gradient(kernel: str, given: dict[str, Tensor], mask: Mask | None, dtype: torch.dtype, q_len: int = N) -> Any:
    """Of each of these options; None = the kernel refuses."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, q_len, 8, generator=generator).to(dtype)
    k, v = (torch.randn(2, 2, N, 8, generator=generator).to(dtype) for _ in range(2))
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    try:
        out = headwise.attention(q, k, v, mask=mask, kernel=kernel, **leaves)  # type: ignore[arg-type]
    except KernelRefused:
        return None
    return torch.autograd.grad(out.double().square().sum(), list(leaves.values()))


def test_every_option_that_may_be_a_tensor_is_tried() -> None:
    assert {named(key) for key in OPTIONS} == set(TENSORS)


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("keys", [*((key,) for key in OPTIONS), ("bias", "slopes", "sinks", "softcap")], ids=str)
def test_each_kernel_gives_the_gradient_or_refuses(keys: tuple[str, ...], kernel: str) -> None:
    torch.manual_seed(1)
    given = {named(key): torch.rand(OPTIONS[key]) + 0.5 for key in keys}
    refused = 0
    for q_len in (N, 1):
        if q_len == 1:
            given = {name: x[..., -1:, :] if name == "bias" and x.ndim > 1 else x for name, x in given.items()}
        for mask in MASKS.values():
            expected = gradient("reference", given, mask, torch.float64, q_len)
            found = gradient(kernel, given, mask, torch.float32, q_len)
            if found is None:
                assert kernel != "auto"
                refused += 1
                continue
            for mine, theirs in zip(found, expected, strict=True):
                scale = theirs.abs().max().clamp(min=1.0)
                torch.testing.assert_close(mine / scale, theirs.to(mine.dtype) / scale, rtol=1e-4, atol=1e-4)
    assert refused < 6 or "softcap" in given or kernel in ("flex", "decode", "tiled")


def test_a_trained_softcap_is_refused_by_name() -> None:
    q, cap = torch.randn(1, 2, N, 8), torch.tensor(5.0, requires_grad=True)
    for kernel in ("native", "flex"):
        with pytest.raises(KernelRefused, match="it gives no gradient to softcap"):
            headwise.attention(q, q, q, softcap=cap, kernel=kernel)
    plan = headwise.plan(q, q, q, softcap=cap)
    assert plan.kernel == "reference"
    with torch.no_grad():
        assert headwise.plan(q, q, q, softcap=cap).kernel != "reference"  # a number
    _, record = headwise.attention(q, q, q, softcap=cap, record=True)
    assert record.softcap == 5.0
    assert isinstance(record.softcap, float)


def test_a_trained_softcap_in_an_edited_and_in_a_compiled_call() -> None:
    q, cap = torch.randn(1, 2, 9, 8), torch.tensor(2.0, requires_grad=True)

    class Attend(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return headwise.attention(x, x, x, mask=masks.causal(), softcap=cap)

    module = Attend()
    (expected,) = torch.autograd.grad(module(q).square().sum(), cap)
    with headwise.edit(module, edits.weights("*", lambda weights, at, rows: weights)):
        (found,) = torch.autograd.grad(module(q).square().sum(), cap)
    torch.testing.assert_close(found, expected)
    (found,) = torch.autograd.grad(torch.compile(module, backend="aot_eager", fullgraph=True)(q).square().sum(), cap)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["scale", "dropout"])
def test_numbers_that_get_no_gradient_are_refused(name: str) -> None:
    q, number = torch.randn(1, 2, 9, 8), torch.tensor(0.5)
    headwise.attention(q, q, q, **{name: number})  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match=rf"{name} must be a number, which gets no gradient. Received: {name}=Tensor"):
        headwise.attention(q, q, q, **{name: number.requires_grad_()})  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["auto", "native", "reference"])
def test_the_scale_of_int8_is_trained_too(kernel: str) -> None:
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, N, 8)
    values, scale = Int8.of(k).values, Int8.of(k).scale.requires_grad_()
    dense = values * scale[..., None]
    (expected,) = torch.autograd.grad(headwise.attention(q, dense, dense, kernel="reference").square().sum(), scale)
    given = Int8(values, scale)
    (found,) = torch.autograd.grad(headwise.attention(q, given, given, kernel=kernel).square().sum(), scale)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
