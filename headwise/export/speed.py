"""Measures how fast an export and its PyTorch model run on this machine, by a few calls of each in turn."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from headwise.graphs.graph import Graph
from headwise.kernels.speeds import processor
from headwise.language import Sentence

BATCHES = (1, 16)
SECONDS = 0.25  # the time for one graph and batch size, for all runtimes together
MOST, LEAST = 30, 3  # the maximum and the minimum number of calls of each runtime


@dataclass(frozen=True)
class Timing:
    """The median time of one call, for each runtime.

    Args:
        graph: the name of the graph.
        batch: the batch size.
        shape: the shape of the first input.
        seconds: the name of a runtime -> seconds.
        threads: the number of threads of PyTorch and ONNX Runtime; TensorFlow chooses its own number.
    """

    graph: str
    batch: int
    shape: tuple[int, ...]
    seconds: dict[str, float]
    threads: int


Runs = Mapping[str, Callable[..., Any]]


@torch.no_grad()
def timings(graphs: Sequence[Graph], runs: Callable[[Graph], Runs]) -> tuple[Timing, ...]:
    """Measure each graph of an export and its PyTorch module, at several batch sizes.

    A graph without an axis "batch" is not measured.

    Args:
        graphs: the graphs that were exported.
        runs: a function that takes a graph and returns the functions that run its export, by the name of the runtime.
    """
    found = []
    for graph in graphs:
        beside: Runs = {"PyTorch": graph.module, **runs(graph)}
        found += [measure(beside, inputs, graph.name, batch) for batch, inputs in make_batches(graph).items()]
    return tuple(found)


def measure(runs: Runs, inputs: tuple[Tensor, ...], graph: str, batch: int) -> Timing:
    """Measure the median time of a call for each runtime; calls take turns, so that slow phases affect all runtimes."""
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


def make_batches(graph: Graph, sizes: Sequence[int] = BATCHES) -> dict[int, tuple[Tensor, ...]]:
    """Return for each batch size the rows of the graph's first example, repeated; {} if it has no axis "batch"."""
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
    """Describe this machine: return its processor, its number of cores and its operating system as a text."""
    told = Sentence("{processor}, {cores} cores, {system}")
    return told.format(processor=processor(), cores=os.cpu_count(), system=platform.system())
