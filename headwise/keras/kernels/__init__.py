"""Ways to compute attention with `keras.ops`: one file each, and what chooses among them."""

from headwise.keras.kernels.choice import KERNELS, choose

__all__ = ["KERNELS", "choose"]
