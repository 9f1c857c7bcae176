"""Whether an ONNX file computes what the model does: in ONNX Runtime, on every example."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from headwise.errors import ExportError
from headwise.export import comparing
from headwise.export.comparing import Difference
from headwise.export.graph import Graph
from headwise.export.manifest import GraphFile
from headwise.export.onnx.session import Runtime, Session

# In units of the spread of an output's values, where it is furthest; in the mean an eighth of it. Measured: fp32 1e-6
# (MiniLM's states 1e-5), fp16 1e-3 to 1e-2, int8 0.05 to 0.3 in small models of each task and in a MiniLM that was
# fine-tuned (0.07 in the mean), 1.1 in MiniLM's states of random ids.
TOLERANCES = {"fp32": 1e-4, "fp16": 5e-2, "int8": 2.0}


def compared(
    folder: Path,
    file: GraphFile,
    graph: Graph,
    tolerance: float,
    providers: tuple[str, ...] = ("CPUExecutionProvider",),
) -> tuple[Difference, ...]:
    """How far the outputs of a file are from the module's.

    Args:
        folder: where the file is.
        file: what is said of it.
        graph: what it was made of.
        tolerance: how far they may be, in units of the spread of an output's values.
        providers: of ONNX Runtime.

    Raises:
        ExportError: the file is no valid ONNX model, ONNX Runtime does not load or run it, or an output is further.
    """
    import onnx

    path = folder / file.file
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as cause:
        raise ExportError(f"{path.name} is no valid ONNX model: {cause}") from cause
    return comparing.compared(graph, outputs(folder, file, graph, providers), tolerance)


def outputs(
    folder: Path, file: GraphFile, graph: Graph, providers: tuple[str, ...] = ("CPUExecutionProvider",)
) -> list[tuple[Tensor, ...]]:
    """What ONNX Runtime makes of each example. Raises ExportError if it cannot load or run the file."""
    try:
        run = Session(folder, file, Runtime(providers=providers)).giving(*(value.name for value in graph.outputs))
        return [run(*given) for given in graph.examples]
    except Exception as cause:  # ONNX Runtime's errors have no class in common
        said = " ".join(str(cause).split())
        raise ExportError(f"{graph.name}: ONNX Runtime cannot run {file.file}: {said[:400]}") from cause
