"""A mask in the form of a tensor: models pass it from where masks are made to where attention is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headwise.masks import Mask

# Operations that return what they were given, where they change neither sizes nor dtype nor device.
_COPIES = (
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.expand.default,
    torch.ops.aten.view.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.clone.default,
)


class MaskTensor(Tensor):
    """A bool tensor [B, 1, Q, K], True = may attend, whose cells are made only if an operation reads them.

    `mask` answers for the same cells without a matrix. Any operation on this tensor works on the cells and returns
    plain tensors; only one that changes nothing, such as a slice of all keys, returns the tensor as it is.
    """

    mask: Mask

    @staticmethod
    def __new__(cls, mask: Mask, shape: Sequence[int], device: torch.device) -> MaskTensor:
        """Make the tensor of a mask; `shape` is [B, 1, Q, K]."""
        made: MaskTensor = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)  # type: ignore[attr-defined]
        made.mask = mask
        return made

    def __init__(self, mask: Mask, shape: Sequence[int], device: torch.device) -> None:
        """All is set by `__new__`: a tensor's own constructor takes other arguments."""

    def make_cells(self) -> Tensor:
        """Return the plain bool tensor [B, 1, Q, K]."""
        q_len, k_len = self.shape[-2:]
        cells = self.mask.aligned(q_len, k_len).to_bool(q_len, k_len)
        return cells.to(self.device).expand(self.shape)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"MaskTensor({self.mask!r}, shape={list(self.shape)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return MaskTensor, (self.mask, tuple(self.shape), self.device)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _COPIES:
            (whole,) = (x for x in args if isinstance(x, MaskTensor))
            like = func(torch.empty_strided(whole.shape, whole.stride(), dtype=whole.dtype, device="meta"), *args[1:],
                        **{name: x for name, x in (kwargs or {}).items() if name != "device"})
            same_device = torch.device((kwargs or {}).get("device") or whole.device) == whole.device
            if like.shape == whole.shape and like.dtype == whole.dtype and same_device:
                return whole
        args, kwargs = tree_map_only(MaskTensor, MaskTensor.make_cells, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)
