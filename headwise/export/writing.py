"""`Order` and `Written`: the argument and the result of the function by which a format writes an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headwise.export.graphs import make_graphs
from headwise.export.manifest import GraphFile
from headwise.export.speed import Timing
from headwise.graphs.graph import Graph
from headwise.masks import Mask
from headwise.tasks.task import Task


@dataclass(frozen=True)
class Order:
    """An order to a format's function: what to export, and how.

    Args:
        subject: what to export: a task, a model or a module.
        folder: an empty folder for the files.
        precision: one of the format's precisions.
        tolerance: the largest allowed difference from PyTorch, in standard deviations of the model's values; None = the
            format's default.
        speed: whether to measure the time of calls.
        weights, rows, mask, examples: see `headwise.export.exporting.export`.
    """

    subject: Task[Any] | nn.Module
    folder: Path
    precision: str
    tolerance: float | None
    speed: bool
    weights: bool
    rows: Any
    mask: Mask | None
    examples: Sequence[tuple[Tensor, ...]]

    @property
    def task(self) -> str:
        """The name of the task; "tensors" if there is none."""
        return self.subject.name if isinstance(self.subject, Task) else "tensors"

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs (functions of named tensors) of the subject, which is moved to the CPU and set to eval mode."""
        from headwise.graphs.weights import with_weights

        graphs = make_graphs(self.subject, self.rows, mask=self.mask, examples=self.examples)
        return tuple(with_weights(graph) for graph in graphs) if self.weights else graphs


@dataclass(frozen=True)
class Written:
    """The result of a format's function: the files that it has written, and how they compare with PyTorch.

    Args:
        files: the graphs with their differences from PyTorch; a graph without differences is reported as not compared.
        notes: sentences for people.
        versions: the versions of further packages that wrote the files, by name.
        options: the options with which the files were written, by name.
        speed: the times of calls; () = not measured.
        longest: the maximum size of named axes, by name; see `headwise.export.tracing.find_longest`.
    """

    files: Sequence[GraphFile]
    notes: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    speed: tuple[Timing, ...] = ()
    longest: Mapping[str, int] = field(default_factory=dict)
