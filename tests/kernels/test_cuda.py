"""The kernels that run on CUDA, against the float64 reference on the CPU. Skipped where there is no such device."""

from __future__ import annotations

import pytest
import torch

import headwise
from tests.mask_zoo import ZOO, fits

pytestmark = pytest.mark.gpu

SIZES = (2, 4, 256, 256)


@pytest.mark.parametrize("kernel", ["sdpa", "flex", "reference", "auto"])
@pytest.mark.parametrize("name", [name for name in ZOO if fits(name, *SIZES[2:])])
def test_every_mask_on_cuda(name: str, kernel: str) -> None:
    mask = ZOO[name](*SIZES)
    q = torch.randn(2, 4, 256, 64, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, 256, 64, dtype=torch.float64, requires_grad=True) for _ in range(2))
    truth = headwise.attention(q, k, v, mask=mask, kernel="reference")
    d_out = torch.randn_like(truth)
    true_grads = torch.autograd.grad(truth, (q, k, v), d_out)

    there = [x.detach().float().cuda().requires_grad_() for x in (q, k, v)]
    out = headwise.attention(*there, mask=mask.to("cuda"), kernel=kernel)
    grads = torch.autograd.grad(out, there, d_out.float().cuda())
    torch.testing.assert_close(out.cpu().double(), truth, rtol=2e-3, atol=2e-3)
    for grad, true_grad in zip(grads, true_grads, strict=True):
        torch.testing.assert_close(grad.cpu().double(), true_grad, rtol=5e-3, atol=5e-3)


def test_a_mask_must_be_on_the_device_of_the_call() -> None:
    q = torch.randn(1, 2, 8, 16, device="cuda")
    mask = headwise.masks.lengths([5])
    with pytest.raises(headwise.errors.DtypeError, match=r'mask is on another device.*Use .to\("cuda:0"\)'):
        headwise.attention(q, q, q, mask=mask)
    assert headwise.attention(q, q, q, mask=mask.to("cuda")).isfinite().all()
