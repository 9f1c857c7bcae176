"""Sites: a call that comes again is not checked and planned again, and whatever a site depends on makes another one."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import headwise
from headwise import attention, masks
from headwise.errors import ArgumentError, DtypeError, KernelRefused, MaskError, ShapeError
from headwise.kernels import KERNELS, site, site_key
from headwise.masks import Mask

MASKS: dict[str, Callable[[], Mask]] = {
    "window": lambda: masks.window(3, 0),  # without tables
    "documents": lambda: masks.documents(torch.arange(32) // 8) & masks.causal(),
    "two lengths": lambda: masks.lengths([32, 20]),
    "of these sizes": lambda: masks.window(3, 0).aligned(32, 32),  # which is its own fitted mask
}


def drawn(*shape: int, seed: int = 0, **given: object) -> Tensor:
    return torch.randn(*(shape or (2, 4, 32, 8)), generator=torch.Generator().manual_seed(seed)).to(**given)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of the sites that were made, in order."""
    found: list[str] = []

    def make(call: object, kernel: str, *rest: object) -> object:
        result = site.make_site(call, kernel, *rest)  # type: ignore[arg-type]
        found.append(next(name for name, each in KERNELS.items() if each is result.kernel))
        return result

    monkeypatch.setattr(sys.modules["headwise.functional"], "make_site", make)
    return found


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kernel", ["auto", "sdpa", "tiled", "flex", "reference"])
def test_the_second_call_knows_its_site(made: list[str], kernel: str, name: str) -> None:
    mask = MASKS[name]()
    for seed in range(3):
        q, k, v = (drawn(seed=10 * seed + i) for i in range(3))
        found = attention(q, k, v, mask=mask, kernel=kernel)
        expected = attention(q, k, v, mask=MASKS[name](), kernel="reference")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        made = made if seed else made[:1]
    assert len(made) == 1


def test_what_a_site_depends_on_makes_another_one(made: list[str]) -> None:
    mask, q, k = masks.window(3, 0), drawn(), drawn(2, 2, 40, 8, seed=1)
    calls: list[dict[str, object]] = [{}, {"kernel": "sdpa"}, {"scale": 0.5}, {"kernel": "sdpa", "scale": 0.5}]
    others = [(q, k), (q[:, :, :9], k), (q, k[:, :, :35]), (q.double(), k.double()), (q[:1], k[:1]), (q[:, :2], k)]
    for i, (a, b) in enumerate(others):
        for given in calls:
            for _ in range(2):
                found = attention(a, b, b, mask=mask, **given)  # type: ignore[call-overload]
                expected = attention(a, b, b, mask=masks.window(3, 0), scale=given.get("scale"), kernel="reference")  # type: ignore[call-overload]
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert len([name for name in made if name != "reference"]) >= i + 1
    a = q.clone().requires_grad_()
    for _ in range(2):  # of a call with gradients, though its sizes are known
        (grad,) = torch.autograd.grad(attention(a, k, k, mask=mask).sum(), [a])
        assert grad.abs().sum() > 0
    with torch.no_grad():
        assert not attention(a, k, k, mask=mask).requires_grad


def test_a_mask_whose_table_changes_has_another_site() -> None:
    table, q = torch.ones(32, 32).tril().bool(), drawn()
    mask = masks.from_tensor(table)
    for _ in range(2):
        attention(q, q, q, mask=mask)
    table[:, 3:9] = False
    found = attention(q, q, q, mask=mask)
    torch.testing.assert_close(found, attention(q, q, q, mask=table.clone(), kernel="reference"))


def test_arguments_that_do_not_fit_are_errors_at_a_known_site(made: list[str]) -> None:
    mask, q = masks.lengths([32, 20]), drawn()
    for kernel in ("auto", "sdpa"):
        attention(q, q, q, mask=mask, kernel=kernel)
        with pytest.raises(ShapeError, match="the same heads G"):
            attention(q, q, q[:, :, :31], mask=mask, kernel=kernel)
        with pytest.raises(DtypeError, match="one dtype"):
            attention(q, q, q.double(), mask=mask, kernel=kernel)
        with pytest.raises(ShapeError, match="B = 2"):
            attention(q[:1], q[:1], q[:1], mask=mask, kernel=kernel)
        with pytest.raises(ArgumentError, match="finite"):
            attention(q, q, q, mask=mask, kernel=kernel, scale=float("nan"))
    with pytest.raises(ArgumentError, match="kernel must be"):
        attention(q, q, q, mask=mask, kernel="quick")
    x = q.clone().requires_grad_()
    attention(q, q, q, mask=mask, kernel="flex")
    with pytest.raises(KernelRefused, match="no gradients on the CPU"):
        attention(x, x, x, mask=mask, kernel="flex")
    fixed = masks.from_tensor(torch.ones(32, 32, dtype=torch.bool))
    attention(q, q, q, mask=fixed)
    with pytest.raises(MaskError, match="made for"):
        attention(q, q[:, :, :30], q[:, :, :30], mask=fixed)


def test_what_surrounds_a_call_is_no_site() -> None:
    """Autocast, transforms and modes of torch change the call itself, or which kernel may run it."""
    q = drawn()
    assert site_key(q, q, q, None, "auto") is not None
    assert site_key(q[:, :, :1], q, q, None, "auto") is None  # a step
    assert site_key(torch.nn.Parameter(q), q, q, None, "auto") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert site_key(q, q, q, None, "auto") is None
        assert attention(q, q, q, mask=masks.causal()).dtype == torch.bfloat16
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert site_key(q, q, q, None, "auto") is None
    with torch.autograd.forward_ad.dual_level():
        assert site_key(q, q, q, None, "auto") is None
    torch.func.vmap(lambda x: pytest.fail("a site") if site_key(x, x, x, None, "auto") else x)(q[None])


def test_a_kernel_of_another_package_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    q, mask = drawn(), masks.window(3, 0)
    attention(q, q, q, mask=mask)
    monkeypatch.setitem(KERNELS, "mine", KERNELS["reference"])
    assert site_key(q, q, q, None, "auto") is None


def test_a_site_of_inference_mode_serves_training(made: list[str]) -> None:
    mask = masks.lengths([32, 20])
    with torch.inference_mode():
        x = drawn()
        attention(x, x, x, mask=mask, kernel="sdpa")
    y = drawn().requires_grad_()
    attention(y, y, y, mask=mask, kernel="sdpa").sum().backward()
    assert y.grad is not None


def test_a_site_keeps_neither_tensors_nor_its_mask_alive() -> None:
    for name, make in MASKS.items():
        mask, q = make(), drawn()
        attention(q, q, q, mask=mask, kernel="sdpa")  # (a BlockMask refers to its mask)
        of_tensor, of_mask = weakref.ref(q), weakref.ref(mask)
        gc.disable()
        try:
            del q
            assert of_tensor() is None, name
            del mask
            assert of_mask() is None, name
        finally:
            gc.enable()


def test_edits_and_listeners_see_the_calls_of_a_known_site() -> None:
    q, mask, heard = drawn(), masks.window(3, 0), []
    functional = sys.modules["headwise.functional"]
    plain = attention(q, q, q, mask=mask)
    with functional.listening(lambda call, out: heard.append(call)):
        _, record = headwise.attention(q, q, q, mask=mask, record=True)
    assert heard[0].mask is not None
    assert heard[0].shape == (2, 4, 32, 32)
    torch.testing.assert_close(record.weights() @ q, plain)
    with functional.editing(lambda call: torch.zeros_like(call.v)):
        assert not attention(q, q, q, mask=mask).any()
