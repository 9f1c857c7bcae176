"""Norms whose output has the dtype of their input. (Under autocast, PyTorch's norms return another dtype, or warn.)"""

from __future__ import annotations

from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """nn.RMSNorm, [..., M] to [..., M], computed in the dtype of its weight. Zhang & Sennrich 2019, equation 4."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute x / √(mean(x²) + eps) · weight, and return it in the dtype of x."""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm, [..., M] to [..., M], computed in the dtype of its weight. Ba et al. 2016, equation 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute (x - mean) / √(variance + eps) · weight + bias, and return it in the dtype of x."""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


NORMS: dict[str, type[RMSNorm | LayerNorm]] = {"rms": RMSNorm, "layer": LayerNorm}
