"""Keys and values in int8, with one scale per token and head: a quarter of the memory of float32."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.errors import DtypeError, ShapeError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Int8:
    """Keys or values [B, G, K, D] as whole numbers from -127 to 127 and a factor for each token of each head.

    `attention` takes an Int8 in place of k and v. `Int8.of(x)` makes one; the largest number of a token becomes ±127,
    so each number is off by at most scale / 2.

    Args:
        values: int8 [B, G, K, D].
        scale: float32 [B, G, K], on the same device.
        dtype: the dtype of `dequantized`, float32 by default.

    Raises:
        DtypeError, ShapeError: tensors that do not fit.
    """

    values: Tensor
    scale: Tensor
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int8 or self.scale.dtype != torch.float32 or not self.dtype.is_floating_point:
            raise DtypeError(
                "Int8: expected int8 values, a float32 scale and a float dtype. Received: "
                f"values={self.values.dtype}, scale={self.scale.dtype}, dtype={self.dtype}"
            )
        if self.values.ndim != 4 or self.scale.shape != self.values.shape[:3]:
            raise ShapeError(
                "Int8: expected values [B, G, K, D] and a scale [B, G, K]. Received: "
                f"values={list(self.values.shape)}, scale={list(self.scale.shape)}"
            )
        if self.values.device != self.scale.device:
            raise DtypeError(
                f"Int8: expected values and scale on one device. Received: {self.values.device}, {self.scale.device}"
            )

    @classmethod
    def of(cls, x: Tensor) -> Int8:
        """Quantize a float tensor [B, G, K, D]. The result has no gradient.

        A number that is not finite makes all numbers of its token and head NaN.
        """
        if not x.is_floating_point():
            raise DtypeError(f"Int8.of: expected a float tensor [B, G, K, D]. Received: {x.dtype}")
        if x.ndim != 4:
            raise ShapeError(f"Int8.of: expected a float tensor [B, G, K, D]. Received: {list(x.shape)}")
        numbers = x.detach().float()
        scale = numbers.abs().amax(-1) / 127.0
        scale = torch.where(scale.isfinite(), scale, torch.nan)
        step = torch.where(scale > 0.0, scale, 1.0)[..., None]  # (a token of zeros; a token that is not finite)
        return cls((numbers / step).round().nan_to_num(0.0).clamp(-127, 127).to(torch.int8), scale, x.dtype)

    @property
    def shape(self) -> torch.Size:
        """The shape [B, G, K, D] of the keys or values."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.values.device

    def __repr__(self) -> str:
        return f"Int8({list(self.shape)}, dtype={self.dtype}, device={str(self.device)!r})"

    def dequantized(self) -> Tensor:
        """Return the numbers that this object represents, as a tensor [B, G, K, D] in `dtype`."""
        return (self.values.float() * self.scale[..., None]).to(self.dtype)
