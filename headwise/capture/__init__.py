"""Seeing the attention of any PyTorch model: `watch`, and `monitor` for training."""

from headwise.capture.context import Watch, watch
from headwise.capture.training import Monitor, monitor

__all__ = ["Monitor", "Watch", "monitor", "watch"]
