"""`export`: write a task or a model as PyTorch programs, run each of them without headwise, and compare it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from headwise.errors import ArgumentError, ExportError, FileError
from headwise.export import manifest, task_files
from headwise.export.comparing import compared
from headwise.export.exported import Exported
from headwise.export.folder import replacing_folder
from headwise.export.graphs import graphs_of
from headwise.export.manifest import GraphFile, Manifest
from headwise.export.torch import programs
from headwise.export.torch.fresh import run_alone
from headwise.export.tracing import longest, trace
from headwise.graphs.graph import Graph
from headwise.graphs.weights import with_weights
from headwise.masks import Mask
from headwise.tasks.task import Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCES = {
    "fp32": 1e-4,
    "bf16": 0.5,
    "fp16": 5e-2,
}  # in standard deviations; significands have 8 bits (bf16) and 11 bits (fp16)


def export(
    subject: Task[Any] | nn.Module,
    out: str | Path,
    *,
    precision: str = "fp32",
    weights: bool = False,
    aoti: bool | None = None,
    rows: Any = None,
    mask: Mask | Tensor | None = None,
    examples: Sequence[tuple[Tensor, ...]] = (),
    tolerance: float | None = None,
    run: str | Path | None = None,
) -> Exported:
    """Write a task or a model as `torch.export` programs, and compare their outputs in a separate process.

    `torch.export.load` reads NAME.pt2; `torch._inductor.aoti_load_package` reads NAME.aoti.pt2.

    Args:
        subject: a task, a model or a module, see `graphs_of`. It is moved to the CPU and set to eval mode.
        out: a new or empty folder, or an old export, which is replaced.
        precision: "fp32", "bf16" or "fp16" for weights and computation; inputs and outputs stay float32.
        weights: whether the graphs also return the attention weights of every layer.
        aoti: whether to compile AOTInductor packages too; None = if a C++ compiler is found.
        rows: real inputs for the comparison, in the form that `task.predict` takes, in addition to random ones.
        mask, examples: for a module without a task, see `graphs_of`.
        tolerance: largest allowed difference from the model's outputs, in standard deviations of their values; None =
            1e-4 for fp32, 0.5 for bf16, 0.05 for fp16.
        run: the run folder of the task, whose config.yaml and scores.json are copied.

    Returns:
        The folder, its files, and the difference of each output of each graph.

    Raises:
        ArgumentError: an unknown option, or a folder that is not empty.
        ExportError: it cannot be traced, compiled or run, or its outputs differ. No file is left behind.
        FileError: a file cannot be written.
    """
    if precision not in DTYPES:
        raise ArgumentError(
            f"precision: expected one of {', '.join(DTYPES)} for torch. Received: precision={precision!r}"
            + (". int8 is available for onnx" if precision == "int8" else "")
        )
    compiles, note = _whether(aoti)
    limit = TOLERANCES[precision] if tolerance is None else tolerance
    out = Path(out).expanduser()
    with replacing_folder(out) as folder:
        graphs = graphs_of(subject, rows, mask=mask, examples=examples)
        if weights:
            graphs = tuple(with_weights(graph) for graph in graphs)
        traced = [trace(graph, DTYPES[precision]) for graph in graphs]
        ends = {axis: most for pair in zip(graphs, traced, strict=True) for axis, most in longest(*pair).items()}
        notes = [note, *(f"The size of axis {axis} is at most {most}." for axis, most in ends.items())]
        try:
            files = [_save(folder, graph, program, limit) for graph, program in zip(graphs, traced, strict=True)]
            asked = list(zip(files, graphs, strict=True))
            if compiles:
                packages, said = _compile(folder, files, traced, must=aoti is True)
                asked += zip(packages, graphs, strict=bool(packages))
                notes[0] = said
            checked = _checked(folder, asked)
        except OSError as cause:
            raise FileError(f"cannot write {out}: {cause.strerror or cause}") from cause
        task = subject if isinstance(subject, Task) else None
        name = "tensors" if task is None else task.name
        if task is not None:
            task_files.write(folder, task, None if run is None else Path(run).expanduser())
        if not any(graph.real for graph in graphs):
            notes.append(task_files.RANDOM_ONLY)
        versions = {each: importlib.metadata.version(each) for each in ("headwise", "torch")}
        options = {"weights": weights, "aoti": len(checked) > len(graphs)}
        manifest.write(folder, Manifest("torch", name, precision, checked, tuple(notes), versions, options))
    return Exported.load(out)


def _whether(aoti: bool | None) -> tuple[bool, str]:
    """Whether packages are compiled, and a note if they are not."""
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
    """The packages; or none and a note, if the compiler fails and packages were not requested (`must`)."""
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
        return [], f"No AOTInductor package was made: {cause}."
    return found, (
        "The AOTInductor packages are compiled for processors like the one they were made on. They check no inputs: "
        "tensors that are not contiguous, or too long, give wrong results without an error."
    )


def _checked(folder: Path, asked: Sequence[tuple[GraphFile, Graph]]) -> tuple[GraphFile, ...]:
    """The files with their differences. Raises ExportError if one is too large."""
    answers = run_alone([(folder / file.file, graph.examples) for file, graph in asked])
    return tuple(
        replace(file, differences=compared(graph, given, file.tolerance, file.file))
        for (file, graph), given in zip(asked, answers, strict=True)
    )
