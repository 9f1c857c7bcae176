"""A mask in the form of a tensor: models pass it from where masks are made to where attention is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headwise.masks import Mask

# Operations that return the same cells, if they change neither sizes nor dtype nor device.
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
    """A float tensor [B, 1, Q, K] to be added to scores, whose cells are made only if an operation reads them.

    A cell is 0 where the query may attend to the key, else the lowest number of the dtype. (Every model of transformers
    can work with such masks: its eager attention does.) `mask` answers for the same cells without a matrix; None allows
    all. Any operation on this tensor works on the cells and returns plain tensors; only one that changes nothing, such
    as a slice of all keys, returns another `MaskTensor`.
    """

    mask: Mask | None

    @staticmethod
    def __new__(cls, mask: Mask | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> MaskTensor:
        """Make the tensor of a mask; `shape` is [B, 1, Q, K]."""
        made: MaskTensor = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.mask = mask
        return made

    def __init__(self, mask: Mask | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """All is set by `__new__`: a tensor's own constructor takes other arguments."""

    def make_cells(self) -> Tensor:
        """Return the plain tensor [B, 1, Q, K]."""
        if self.mask is None:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        q_len, k_len = self.shape[-2:]
        allowed = self.mask.aligned(q_len, k_len).to_bool(q_len, k_len).to(self.device)
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.where(allowed, zero, torch.finfo(self.dtype).min).expand(self.shape)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"MaskTensor({self.mask!r}, shape={list(self.shape)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return MaskTensor, (self.mask, tuple(self.shape), self.dtype, self.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _COPIES:
            (given,) = (x for x in args if isinstance(x, MaskTensor))
            more = dict(kwargs or {})
            device = torch.device(more.pop("device", None) or given.device)
            copy = func(torch.empty(given.shape, dtype=given.dtype, device="meta"), *args[1:], **more)
            if (copy.shape, copy.dtype, device) == (given.shape, given.dtype, given.device):
                return MaskTensor(given.mask, given.shape, given.dtype, given.device)
        args, kwargs = tree_map_only(MaskTensor, MaskTensor.make_cells, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)
