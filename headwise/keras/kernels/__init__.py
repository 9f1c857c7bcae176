"""Ways to compute attention with `keras.ops` ("kernels"), one file each, and the choice of a kernel."""

from headwise.keras.kernels.choice import KERNELS, choose

__all__ = ["KERNELS", "choose"]
