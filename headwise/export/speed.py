"""How long an export takes beside PyTorch, on this machine: a few calls of each, in turn."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from headwise.export.exported import Exported
from headwise.export.graph import Graph

BATCHES = (1, 16)
SECONDS = 0.25  # for one batch size of one graph, all runtimes together
MOST, LEAST = 30, 3  # calls of each


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, the median.

    Args:
        graph: its name.
        batch: how many examples the call had.
        shape: of its first input.
        seconds: of each runtime, by its name.
        threads: that PyTorch used, and ONNX Runtime; TensorFlow uses as many as it chooses.
    """

    graph: str
    batch: int
    shape: tuple[int, ...]
    seconds: dict[str, float]
    threads: int

    def to_json(self) -> dict[str, Any]:
        """As `Timing(**found)` takes it."""
        return asdict(self)


Runs = Mapping[str, Callable[..., Any]]


@torch.no_grad()
def timings(exported: Exported, graphs: Sequence[Graph]) -> tuple[Timing, ...]:
    """The time of each graph of an ONNX or torch export beside its module; none of a graph without a batch.

    Args:
        exported: what was made of them.
        graphs: what it was made of.
    """
    found = []
    for graph in graphs:
        runs: Runs = {"PyTorch": graph.module, **_runs(exported, graph.name)}
        found += [measure(runs, inputs, graph.name, batch) for batch, inputs in batches_of(graph).items()]
    return tuple(found)


def measure(runs: Runs, inputs: tuple[Tensor, ...], graph: str, batch: int) -> Timing:
    """The median of each on these inputs, of calls that take turns: what slows the machine for a while slows all."""
    for run in runs.values():
        run(*inputs)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    for number in range(MOST):
        for name, run in runs.items():
            start = time.perf_counter()
            run(*inputs)
            taken[name].append(time.perf_counter() - start)
        if number + 1 >= LEAST and time.perf_counter() - begun > SECONDS:
            break
    seconds = {name: median(each) for name, each in taken.items()}
    return Timing(graph, batch, tuple(inputs[0].shape), seconds, torch.get_num_threads())


def batches_of(graph: Graph, sizes: Sequence[int] = BATCHES) -> dict[int, tuple[Tensor, ...]]:
    """The first example of a graph with other batch sizes, its rows repeated; none if it has no axis "batch"."""
    places = [value.axes.index("batch") if "batch" in value.axes else None for value in graph.inputs]
    if all(place is None for place in places):
        return {}
    return {
        size: tuple(
            x if place is None else x.index_select(place, torch.arange(size) % x.shape[place])
            for x, place in zip(graph.examples[0], places, strict=True)
        )
        for size in sizes
    }


def machine() -> str:
    """The processor, and how many cores of it there are."""
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()}"


def _runs(exported: Exported, name: str) -> Runs:
    files = {file.name: file for file in exported.manifest.graphs}
    if exported.manifest.kind == "onnx":
        from headwise.export.onnx.session import Session

        names = [value.name for value in files[name].outputs]
        return {"ONNX Runtime": Session(exported.folder, files[name]).giving(*names)}
    found: dict[str, Any] = {"torch.export": torch.export.load(exported.folder / files[name].file).module()}
    if package := files.get(f"{name}.aoti"):
        found["AOTInductor"] = torch._inductor.aoti_load_package(str(exported.folder / package.file))
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()
