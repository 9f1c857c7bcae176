"""`write`: writes graphs as PyTorch programs, runs each without headwise, and compares it with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from headwise.errors import ArgumentError, ExportError
from headwise.export.comparing import compared
from headwise.export.manifest import GraphFile
from headwise.export.speed import Runs, timings
from headwise.export.torch import programs
from headwise.export.tracing import find_longest, trace
from headwise.export.writing import Order, Written
from headwise.graphs.graph import Graph
from headwise.language import Sentence

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCES = {
    "fp32": 1e-4,
    "bf16": 0.5,
    "fp16": 5e-2,
}  # in standard deviations of an output; significands have 8 bits (bf16) and 11 bits (fp16)


def write(order: Order, *, aoti: bool | None = None) -> Written:
    """Write the graphs as `torch.export` programs, and compare their outputs in a separate process.

    `torch.export.load` reads NAME.pt2; `torch._inductor.aoti_load_package` reads NAME.aoti.pt2.

    Args:
        aoti: whether to compile AOTInductor packages too; None = only if a C++ compiler is found.

    Raises:
        ArgumentError: `aoti` is True, but there is no compiler.
        ExportError: a graph cannot be traced, compiled or run, or its outputs differ too much.
    """
    compiles, note = _whether(aoti)
    limit = TOLERANCES[order.precision] if order.tolerance is None else order.tolerance
    folder, graphs = order.folder, order.graphs
    traced = [trace(graph, DTYPES[order.precision]) for graph in graphs]
    files = [_save(folder, graph, program, limit) for graph, program in zip(graphs, traced, strict=True)]
    asked = list(zip(files, graphs, strict=True))
    if compiles:
        packages, note = _compile(folder, files, traced, must=aoti is True)
        asked += zip(packages, graphs, strict=bool(packages))
    checked = _checked(folder, asked)
    taken = timings(graphs, lambda graph: _runs(folder, checked, graph)) if order.speed else ()
    options, ends = {"aoti": len(checked) > len(graphs)}, find_longest(graphs, traced)
    return Written(checked, [note], options=options, speed=taken, longest=ends)


def _whether(aoti: bool | None) -> tuple[bool, str]:
    """Return whether to compile AOTInductor packages, and a note that says why not ("" if they are compiled)."""
    compiler = programs.compiler()
    if aoti is True and compiler is None:
        raise ArgumentError("aoti: AOTInductor needs a C++ compiler, but none was found. Install g++ or set CXX")
    if aoti is False:
        return False, "AOTInductor packages were not requested."
    if compiler is None:
        return False, "No AOTInductor package was made: no C++ compiler was found (g++, or the value of CXX)."
    return True, ""


def _save(folder: Path, graph: Graph, program: ExportedProgram, limit: float) -> GraphFile:
    path = folder / f"{graph.name}.pt2"
    programs.save(program, path)
    return GraphFile(graph.name, path.name, graph.inputs, graph.outputs, (), limit)


def _compile(
    folder: Path, files: Sequence[GraphFile], traced: Sequence[ExportedProgram], *, must: bool
) -> tuple[list[GraphFile], str]:
    """Compile graphs; return the packages and a note. If it fails, no packages, or with `must` an ExportError."""
    found = []
    try:
        for file, program in zip(files, traced, strict=True):
            path = folder / f"{file.name}{programs.PACKAGE}"
            programs.compile_package(program, path)
            found.append(replace(file, name=f"{file.name}.aoti", file=path.name))
    except ExportError as cause:
        if must:
            raise
        for file in found:
            (folder / file.file).unlink()
        return [], Sentence("No AOTInductor package was made: {cause}.").format(cause=cause)
    return found, (
        "The AOTInductor packages are compiled for processors like the one they were made on. They check no inputs: "
        "tensors that are not contiguous, or too long, give wrong results without an error."
    )


def _checked(folder: Path, asked: Sequence[tuple[GraphFile, Graph]]) -> tuple[GraphFile, ...]:
    """Run the files without headwise, and return them with their differences from PyTorch. ExportError if too large."""
    answers = programs.run_alone([(folder / file.file, graph.examples) for file, graph in asked])
    return tuple(
        replace(file, differences=compared(graph, given, file.tolerance, file.file))
        for (file, graph), given in zip(asked, answers, strict=True)
    )


def _runs(folder: Path, files: Sequence[GraphFile], graph: Graph) -> Runs:
    of_graph = {each.name: str(folder / each.file) for each in files}
    found: dict[str, Any] = {"torch.export": torch.export.load(of_graph[graph.name]).module()}
    if package := of_graph.get(f"{graph.name}.aoti"):
        found["AOTInductor"] = torch._inductor.aoti_load_package(package)
    return found
