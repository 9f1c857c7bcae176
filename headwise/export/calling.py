"""Writes the example code of a model card (card.md), which shows how to call an export without headwise."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headwise.export import FORMATS
from headwise.export.exported import Exported
from headwise.graphs.graph import Value

TOKENIZER = "tokenizer.json"
_READ = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
}  # attributes of the tokenizer's output
_SIZES = {"batch": 1, "past": 0}  # the sizes of named axes in the example; other named axes have _SIZE
_SIZE = 5


def example(exported: Exported, labels: Sequence[str] = (), *, pairs: bool = False) -> str:
    """Return Python code that runs in an export's folder and calls each graph (each exported file) once.

    The code calls a graph that reads text on a sample text, and any other graph on tensors of zeros.

    Args:
        labels: the labels of a classifier, in the order of its logits; () = not a classifier.
        pairs: whether the task reads two texts at a time.
    """
    graphs, form = exported.manifest.graphs, FORMATS[exported.manifest.kind]
    reads_text = TOKENIZER in exported.files and "input_ids" in (value.name for value in graphs[0].inputs)
    lines = [*form.imports, *(["from tokenizers import Tokenizer"] if reads_text else []), ""]
    known: set[str] = set()
    if reads_text:
        second = ', "another one"' if pairs else ""
        lines.append(f'read = Tokenizer.from_file("{TOKENIZER}").encode("a text to read"{second})')
    lines.append("values = {")
    for graph in graphs:
        for value in graph.inputs:
            if value.name not in known:
                numbers = f"[read.{_READ[value.name]}]" if reads_text and value.name in _READ else None
                lines.append(f'    "{value.name}": {_array(value, numbers, form.array)},')
        known |= {value.name for value in (*graph.inputs, *graph.outputs)}
    lines.append("}")
    for graph in graphs:
        lines += form.call(graph)
    shown = f'values["{graphs[-1].outputs[0].name}"]'
    if labels:
        lines += [f"labels = {list(labels)!r}", f"print(labels[int({shown}[0].argmax())])"]
    else:
        lines.append(f"print({shown}.shape)")
    return "\n".join(lines) + "\n"


def _array(value: Value, numbers: str | None, array: str) -> str:
    """Return Python code for an input array: of `numbers`, or of zeros or ones if None. `array`: such as np.array."""
    module = array.partition(".")[0]
    dtype = f"dtype={module}.{str(value.dtype).removeprefix('torch.')}"
    if numbers is not None:
        return f"{array}({numbers}, {dtype})"
    filled = "ones" if value.dtype == torch.bool or value.name == "attention_mask" else "zeros"  # nothing is masked
    return f"{module}.{filled}({_shape(value)}, {dtype})"


def _shape(value: Value) -> str:
    sizes = [_SIZES.get(axis, _SIZE) if isinstance(axis, str) else axis for axis in value.axes]
    return f"({', '.join(map(str, sizes))},)" if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"
