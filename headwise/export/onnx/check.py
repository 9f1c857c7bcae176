"""Compares an ONNX file with the model: ONNX Runtime runs it on every example."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from headwise.errors import ExportError, shortened
from headwise.export import comparing
from headwise.export.comparing import Difference
from headwise.export.manifest import GraphFile
from headwise.export.onnx.session import Runtime, Session
from headwise.graphs.graph import Graph

# The largest allowed difference, in standard deviations of an output; the root mean square of the difference may be an
# eighth of this. Measured differences: fp32 1e-6 (MiniLM's hidden states 1e-5), fp16 1e-3 to 1e-2. Of int8, largest and
# root mean square: up to 0.36 and 0.04 in small models of each task, 0.24 and 0.07 in a fine-tuned MiniLM, 2.3 and 0.16
# in MiniLM's hidden states of 168 paragraphs.
TOLERANCES = {"fp32": 1e-4, "fp16": 5e-2, "int8": 2.0}


def compared(folder: Path, file: GraphFile, graph: Graph, tolerance: float) -> tuple[Difference, ...]:
    """Run an ONNX file on the graph's examples, and return how much each output differs from the PyTorch module's.

    Args:
        folder: the folder of the file.
        file: the entry of the ONNX file in the manifest (export.json).
        graph: the graph that was exported.
        tolerance: the largest allowed difference, in standard deviations of an output's values.

    Raises:
        ExportError: the file is no valid ONNX model, ONNX Runtime cannot load or run it, or an output differs too much.
    """
    import onnx

    path = folder / file.file
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as cause:
        raise ExportError(f"{path.name} is not a valid ONNX model: {cause}") from cause
    return comparing.compared(graph, outputs(folder, file, graph), tolerance)


def outputs(
    folder: Path, file: GraphFile, graph: Graph, providers: tuple[str, ...] = ("CPUExecutionProvider",)
) -> list[tuple[Tensor, ...]]:
    """Run the file in ONNX Runtime on each example, and return the outputs. ExportError if it cannot be run."""
    try:
        run = Session(folder, file, Runtime(providers=providers)).giving(*(value.name for value in graph.outputs))
        return [run(*given) for given in graph.examples]
    except Exception as cause:  # ONNX Runtime's errors have no class in common
        said = " ".join(str(cause).split())
        raise ExportError(f"{graph.name}: ONNX Runtime cannot run {file.file}: {shortened(said, 400)}") from cause
