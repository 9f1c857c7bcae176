"""Sees the attention that any PyTorch model computes: `watch`, and `monitor` for training."""

from headwise.capture.context import Watch, watch
from headwise.capture.training import Monitor as monitor  # noqa: N813 (a context, in lower case as `watch` is)

__all__ = ["Watch", "monitor", "watch"]
