"""Ways to compute attention with `keras.ops`, one file each, and the choice among them."""

from headwise.keras.kernels.choice import KERNELS, choose

__all__ = ["KERNELS", "choose"]
