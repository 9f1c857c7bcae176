"""The base class of callbacks that record the model's attention to a batch of examples, with the current weights."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import keras

from headwise.errors import ArgumentError
from headwise.keras.callbacks.logging import Logging, tensors
from headwise.keras.watching import watch
from headwise.records import AttentionRecord
from headwise.records.site import Site


class Watching(Logging):
    """A callback that records the attention of a model to a few examples.

    Args:
        x: examples, as the model takes them: an array, or a list or dict of arrays. They are one batch.
        log_dir, every, prefix: as for `Logging`.
        only: the layers to record: numbers, paths or patterns, as for `headwise.watch`. None = all layers.
    """

    def __init__(
        self,
        x: Any,
        log_dir: str | os.PathLike[str],
        *,
        every: int = 1,
        only: Any = None,
        prefix: str = "attention",
    ) -> None:
        super().__init__(log_dir, every=every, prefix=prefix)
        if x is None:
            raise ArgumentError("x: expected examples. Received: None")
        self._x, self._only = tensors("x", x), only
        self._warned = set[str]()

    def records(self) -> list[tuple[Site, AttentionRecord]]:
        """Return the site and record of each attention to the examples, in inference mode. The model is unchanged."""
        model = self.model
        gradients: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if keras.backend.backend() == "torch":
            import torch

            gradients = torch.no_grad()
        with gradients, keras.StatelessScope(), watch(model, only=self._only, max_bytes=None) as seen:
            model(self._x, **({"training": False} if model._call_has_training_arg else {}))
        coverage = seen.coverage()
        for site in (*coverage.missed, *coverage.refused):
            self._warn(f"{site.name} was {site.status}: {site.how}")
        if not len(seen):
            self._warn(f"no head was recorded: {'. '.join(coverage.notes)}")
        return [(record.site, record) for record in seen if record.site is not None]

    def _warn(self, message: str) -> None:
        """Give each warning only once: a long training should neither fail because of its monitor nor fill its log."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=2)
