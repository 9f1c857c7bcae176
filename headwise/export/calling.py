"""The example code of a model card: how to call an export without headwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from headwise.export.exported import Exported
from headwise.export.manifest import GraphFile, Kind
from headwise.export.torch.programs import PACKAGE
from headwise.graphs.graph import Value

TOKENIZER = "tokenizer.json"
_READ = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
}  # attributes of the tokenizer's output
_SIZES = {"batch": 1, "past": 0}  # sizes of named axes in the example; others have _SIZE
_SIZE = 5


def example(exported: Exported, labels: Sequence[str] = ()) -> str:
    """Python code that runs in an export's folder and calls each graph once, on a text or on zeros.

    Args:
        labels: the labels of a classifier, in the order of its logits.
    """
    graphs = [graph for graph in exported.manifest.graphs if not graph.file.endswith(PACKAGE)]
    reads_text = TOKENIZER in exported.files and "input_ids" in (value.name for value in graphs[0].inputs)
    imports, array, call = _KINDS[exported.manifest.kind]
    lines = [*imports, *(["from tokenizers import Tokenizer"] if reads_text else []), ""]
    known: set[str] = set()
    if reads_text:
        second = ', "another one"' if exported.manifest.task == "answer" else ""
        lines.append(f'read = Tokenizer.from_file("{TOKENIZER}").encode("a text to read"{second})')
    lines.append("values = {")
    for graph in graphs:
        for value in graph.inputs:
            if value.name not in known:
                numbers = f"[read.{_READ[value.name]}]" if reads_text and value.name in _READ else None
                lines.append(f'    "{value.name}": {array(value, numbers)},')
        known |= {value.name for value in (*graph.inputs, *graph.outputs)}
    lines.append("}")
    for graph in graphs:
        lines += call(graph)
    shown = f'values["{graphs[-1].outputs[0].name}"]'
    if labels:
        lines += [f"labels = {list(labels)!r}", f"print(labels[int({shown}[0].{_LARGEST[exported.manifest.kind]})])"]
    else:
        lines.append(f"print({shown}.shape)")
    return "\n".join(lines) + "\n"


def _numpy(value: Value, numbers: str | None) -> str:
    dtype = f"np.{_name(value.dtype)}"
    return f"np.{_filled(value)}({_shape(value)}, {dtype})" if numbers is None else f"np.array({numbers}, {dtype})"


def _torch(value: Value, numbers: str | None) -> str:
    if numbers is not None:
        return f"torch.tensor({numbers})"
    return f"torch.{_filled(value)}({_shape(value)}, dtype={value.dtype})"


def _tensorflow(value: Value, numbers: str | None) -> str:
    dtype = f"tf.{_name(value.dtype)}"
    return f"tf.{_filled(value)}({_shape(value)}, {dtype})" if numbers is None else f"tf.constant({numbers}, {dtype})"


def _call_onnx(graph: GraphFile) -> list[str]:
    return [
        f'session = onnxruntime.InferenceSession("{graph.file}")',
        "given = {each.name: values[each.name] for each in session.get_inputs()}",
        "values |= zip([each.name for each in session.get_outputs()], session.run(None, given))",
    ]


def _call_torch(graph: GraphFile) -> list[str]:
    inputs = ", ".join(f'values["{value.name}"]' for value in graph.inputs)
    outputs = ", ".join(f'"{value.name}"' for value in graph.outputs)
    lines = [f'program = torch.export.load("{graph.file}").module()']
    if len(graph.outputs) == 1:
        return [*lines, f"values[{outputs}] = program({inputs})"]
    return [*lines, f"values |= zip([{outputs}], program({inputs}))"]


def _call_tensorflow(graph: GraphFile) -> list[str]:
    return [
        f'served = tf.saved_model.load("{graph.file}").signatures["serving_default"]',
        "values |= served(**values)",
    ]


_KINDS: dict[Kind, tuple[Sequence[str], Callable[[Value, str | None], str], Callable[[GraphFile], list[str]]]] = {
    "onnx": (("import numpy as np", "import onnxruntime"), _numpy, _call_onnx),
    "torch": (("import torch",), _torch, _call_torch),
    "savedmodel": (("import tensorflow as tf",), _tensorflow, _call_tensorflow),
}


_LARGEST: dict[Kind, str] = {"onnx": "argmax()", "torch": "argmax()", "savedmodel": "numpy().argmax()"}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(value: Value) -> str:
    sizes = [_SIZES.get(axis, _SIZE) if isinstance(axis, str) else axis for axis in value.axes]
    return f"({', '.join(map(str, sizes))},)" if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"


def _filled(value: Value) -> str:
    """The fill value of an input: a mask is filled with ones, so nothing is masked."""
    return "ones" if value.dtype == torch.bool or value.name == "attention_mask" else "zeros"
