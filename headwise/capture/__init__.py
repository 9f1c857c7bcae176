"""Seeing the attention of any PyTorch model: `watch`, and `monitor` for training."""

from headwise.capture.watch import watch

__all__ = ["watch"]
