"""The destinations of a monitor's numbers: TensorBoard, a Lightning logger, a function; and the Lightning callback."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwise.capture.head_means import Means
from headwise.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from headwise.capture.training import Monitor

Metrics = dict[str, float]
Logger = Callable[[Metrics, dict[str, Means], int], object]  # the numbers, the means by layer, the step


def make_logger(log: Any) -> Logger:
    """The function that writes to `log` (see `monitor`). DtypeError for an object of another kind."""
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


def lightning_callback(watching: Monitor) -> Any:
    """A Lightning callback for a monitor. (Lightning accepts only subclasses of its own class.)"""

    class AttentionMonitor(_lightning().Callback):  # type: ignore[misc]
        """Starts, steps and stops a monitor together with the training."""

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            watching.step_number = trainer.global_step
            watching.start()

        def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
            step = watching.step_number
            metrics = watching.step()
            if metrics and not watching.logs:
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, step=step)

        def on_train_end(self, *_: Any) -> None:
            watching.stop()

        on_exception = on_train_end

    return AttentionMonitor()


def _lightning() -> Any:
    """The package lightning.pytorch or pytorch_lightning: the imported one, else the installed one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ArgumentError(
        "monitor: Lightning is not installed. Run pip install lightning, or call step() in your own loop"
    )
