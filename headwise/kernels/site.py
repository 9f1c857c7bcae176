"""What the calls of a layer have in common, found out at its first call: the fitted mask and the kernel, a `Site`.

To check the arguments, fit the mask and choose a kernel takes tens of microseconds, for which a short call on a GPU
waits. The next call with the same mask and the same kinds of tensors finds its site in the memo of the mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.call import AttentionCall, autocasts
from headwise.kernels.exact import Run
from headwise.kernels.kernel import Kernel
from headwise.kernels.plan import KERNELS, OWN, run_chosen, take
from headwise.masks import Mask
from headwise.tracing import is_bare

Key = tuple[Hashable, ...]
_FIELDS = [field.name for field in dataclasses.fields(AttentionCall)]


class Site(NamedTuple):
    """What follows from a mask and the kinds of q, k and v, for calls without other options."""

    fields: dict[str, Any]  # of the call, without q, k and v, and without the mask if it is the one that keeps the site
    kernel: Kernel
    used: Tensor | None  # as for `run_chosen`
    run_kernel: Run

    def call(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> AttentionCall:
        """Make a call at this site. `mask`: the mask that keeps the site."""
        made = object.__new__(AttentionCall)  # (its __init__ takes four times as long)
        made.__dict__.update({"mask": mask}, q=q, k=k, v=v)
        made.__dict__.update(self.fields)
        return made

    def run(self, call: AttentionCall) -> Tensor:
        """Run a call of this site: the output [B, H, Q, E]."""
        return run_chosen(call, self.kernel, self.used, self.run_kernel)


def make_site(call: AttentionCall, kernel: str, mask: Mask, key: Key) -> Site:
    """Choose the kernel of a call, and keep the site with the owned mask that the call's mask was fitted from."""
    left_out = ("q", "k", "v", "mask" if call.mask is mask else "")
    fields = {name: getattr(call, name) for name in _FIELDS if name not in left_out}
    chosen, used = take(call, kernel)
    prepare = getattr(chosen, "prepare", None)
    site = Site(fields, chosen, used, chosen.run if prepare is None else prepare(call))
    mask.keep(key, site)
    return site


def site_key(q: Tensor, k: Tensor, v: Tensor, scale: float | None, kernel: str) -> Key | None:
    """Return all that a site depends on beside its mask: the key for the memo of the mask. None = there is no site.

    There is none for a step of one query, whose lengths do not come again, where something of torch surrounds the call,
    and where kernels of other packages are asked each time.
    """
    if not (type(q) is type(k) is type(v) is Tensor and (scale is None or type(scale) is float) and is_bare()):
        return None
    if q.ndim != 4 or q.shape[2] == 1 or autocasts(q.device) or KERNELS != OWN:
        return None
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    kinds = (q.dtype, k.dtype, v.dtype, q.device, k.device, v.device)
    return ("site", kernel, scale, trains, q.shape, k.shape, v.shape, *kinds)
