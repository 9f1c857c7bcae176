"""Writes scripts for TensorRT beside the model: `tensorrt.sh` builds engines, `run_tensorrt.py` runs the graphs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headwise.export.comparing import compared
from headwise.export.manifest import GraphFile
from headwise.export.onnx.check import outputs
from headwise.graphs.graph import Graph, Value
from headwise.language import Sentence

PROVIDER = "TensorrtExecutionProvider"
SCRIPT, SHAPES, PROGRAM = "tensorrt.sh", "tensorrt.json", "run_tensorrt.py"
BATCH, LENGTH = (8, 32), (128, 512)  # for the axis "batch", and for others: (size to optimise for, largest size)

Sizes = dict[str, tuple[int, int, int]]  # name of an axis -> (smallest, usual, largest) size


def write(
    folder: Path, files: Sequence[GraphFile], graphs: Sequence[Graph], tolerance: float, longest: Mapping[str, int]
) -> Sequence[str]:
    """Write the scripts. If ONNX Runtime supports TensorRT, also run each graph on it and compare it with the model.

    `longest`: the maximum size of named axes. Returns notes on what was run. May raise OSError.

    Raises:
        ExportError: TensorRT cannot run a graph, or its outputs differ by more than the tolerance.
    """
    import onnxruntime

    sizes = [_sizes(graph, longest) for graph in graphs]
    (folder / SCRIPT).write_text(_script(files, sizes), encoding="utf-8")
    (folder / SCRIPT).chmod(0o755)
    told = [_told(file, each) for file, each in zip(files, sizes, strict=True)]
    (folder / SHAPES).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name(PROGRAM), folder / PROGRAM)

    there = onnxruntime.get_available_providers()
    if PROVIDER not in there:
        return [
            Sentence(
                "TensorRT was not run: this ONNX Runtime has no {provider}, only {there}. {script} and {program} run "
                "it on a machine that has it."
            ).format(provider=PROVIDER, there=", ".join(there), script=SCRIPT, program=PROGRAM)
        ]
    notes = []
    for file, graph in zip(files, graphs, strict=True):
        given = outputs(folder, file, graph, (PROVIDER, "CPUExecutionProvider"))
        found = compared(graph, given, tolerance, f"{graph.name} on TensorRT")
        furthest = max(found, key=lambda each: each.relative)
        notes.append(Sentence("TensorRT ran {file}: {furthest}.").format(file=file.file, furthest=furthest))
    return notes


def _sizes(graph: Graph, longest: Mapping[str, int]) -> Sizes:
    """Return (smallest, usual, largest) size of each dynamic axis of the graph, by the name of the axis.

    The smallest size is 1, or 0 if an example has an axis of size 0. The usual and the largest size are `BATCH` for the
    axis "batch", else `LENGTH`, but at most its size in `longest`.
    """
    found: Sizes = {}
    for number, value in enumerate(graph.inputs):
        for place, axis in enumerate(value.axes):
            if isinstance(axis, str):
                least = min(1, *(given[number].shape[place] for given in graph.examples))
                usual, largest = BATCH if axis == "batch" else LENGTH
                largest = min(largest, longest.get(axis, largest))
                found[axis] = (least, min(usual, largest), largest)
    return found


def _shapes(inputs: Iterable[Value], sizes: Sizes, which: int) -> dict[str, list[int]]:
    return {
        value.name: [sizes[axis][which] if isinstance(axis, str) else axis for axis in value.axes] for value in inputs
    }


def _told(file: GraphFile, sizes: Sizes) -> dict[str, object]:
    """Return the entry for one graph in tensorrt.json, which `run_tensorrt.py` reads: file, dtypes and shapes."""
    return {
        "file": file.file,
        "dtypes": {value.name: str(value.dtype).removeprefix("torch.") for value in file.inputs},
        **{word: _shapes(file.inputs, sizes, which) for which, word in enumerate(("min", "opt", "max"))},
    }


def _script(files: Sequence[GraphFile], sizes: Sequence[Sizes]) -> str:
    lines = [
        "#!/bin/sh",
        "# Builds a TensorRT engine of each graph for shapes from --minShapes to --maxShapes, tuned for --optShapes:",
        "# change them to your input shapes. If trtexec does not support the operator Attention, export the model",
        "# again with --attention plain. int8 models are for CPUs: use an fp32 or fp16 model with trtexec.",
        "set -e",
        'cd "$(dirname "$0")"',
    ]
    for file, each in zip(files, sizes, strict=True):
        engine = Path(file.file).with_suffix(".plan").name
        lines += ["", f"trtexec --onnx={file.file} --saveEngine={engine} \\"]
        spelled = [
            ",".join(
                f"{name}:{'x'.join(map(str, shape))}"
                for name, shape in _shapes(file.inputs, each, which).items()
                if any(isinstance(axis, str) for value in file.inputs if value.name == name for axis in value.axes)
            )
            for which in range(3)
        ]
        options = [f"--{word}Shapes={text}" for word, text in zip(("min", "opt", "max"), spelled, strict=True) if text]
        lines += [f"  {option} \\" for option in options] + ['  "$@"']
    return "\n".join(lines) + "\n"
