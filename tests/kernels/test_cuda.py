"""The kernels that run on CUDA, against the float64 reference on the CPU. Skipped where there is no such device."""

from __future__ import annotations

import pytest
import torch

import headwise
from tests.mask_zoo import ZOO, fits

pytestmark = [
    pytest.mark.gpu,
    # torch's own, in the first backward pass and the first compilation of a process.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

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
    with pytest.raises(headwise.errors.DtypeError, match=r"mask must be on the device of q.*mask on cpu"):
        headwise.attention(q, q, q, mask=mask)
    assert headwise.attention(q, q, q, mask=mask.to("cuda")).isfinite().all()


def test_flex_stays_compiled_under_watch_and_edit() -> None:
    """Uncompiled it would store the scores of every head: 2 GiB here."""

    class Attends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return headwise.attention(x, x, x, mask=mask)

    mask = (headwise.masks.causal() & headwise.masks.window(256, 0)).to("cuda")
    x, model = torch.randn(1, 8, 8192, 64, device="cuda"), Attends()
    assert headwise.plan(x, x, x, mask=mask).kernel == "flex"
    with torch.no_grad():
        plain = model(x)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with headwise.edit(model, headwise.edits.temperature("*", 2.0)):
            changed = model(x)
        with headwise.watch(model) as seen:
            watched = model(x)
    assert torch.cuda.max_memory_allocated() - before < 2**29
    assert torch.equal(watched, plain)
    assert not torch.allclose(changed, plain, atol=1e-3)
    assert len(seen) == 1
