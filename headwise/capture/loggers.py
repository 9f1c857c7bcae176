"""The destinations of the numbers that `monitor` computes: TensorBoard, a Lightning logger, or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwise.capture.head_means import Means
from headwise.errors import DtypeError

Metrics = dict[str, float]
Logger = Callable[[Metrics, dict[str, Means], int], object]  # the numbers, the means by layer, the step


def make_logger(log: Any) -> Logger:
    """Return the function that writes to `log` (see `monitor`). DtypeError for an object of another kind."""
    if log is None:
        return lambda metrics, layers, step: None
    if callable(getattr(log, "add_scalar", None)):

        def write(metrics: Metrics, layers: dict[str, Means], step: int) -> None:
            for name, value in metrics.items():
                log.add_scalar(name, value, step)
            if callable(getattr(log, "add_histogram", None)):
                for layer, means in layers.items():
                    for name, values in means.items():
                        log.add_histogram(f"{layer}/{name}", values, step)

        return write
    if callable(getattr(log, "log_metrics", None)):
        return lambda metrics, layers, step: log.log_metrics(metrics, step=step)
    if callable(log):
        return lambda metrics, layers, step: log(metrics, step)
    raise DtypeError(
        "monitor: log must be a SummaryWriter, a logger with log_metrics, a function of (metrics, step) or None. "
        f"Received: {type(log).__name__}"
    )
