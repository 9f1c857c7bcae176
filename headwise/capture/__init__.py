"""Seeing the attention of any PyTorch model: `watch`, and `monitor` for training."""

from headwise.capture.monitor import Monitor, monitor
from headwise.capture.watch import Watch, watch

__all__ = ["Monitor", "Watch", "monitor", "watch"]
