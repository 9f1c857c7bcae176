"""Reads and writes export.json, the description of an export in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from headwise.errors import CheckpointError
from headwise.export.comparing import Difference
from headwise.files import check_seal, parsed, read_text, restore_folder, writing
from headwise.graphs.graph import Value

NAME = "export.json"


@dataclass(frozen=True)
class GraphFile:
    """One graph of an export (a function of named tensors), and the file that holds it.

    Args:
        name: the name of the graph.
        file: the path of the graph's file in the export's folder.
        inputs, outputs: the graph's input and output tensors, in the order that they have in the file.
        differences: for each output, how much it differs from the output of the PyTorch model.
        tolerance: the largest allowed difference, in standard deviations of the values.
        opset: the ONNX opset; None for other formats.
    """

    name: str
    file: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    differences: tuple[Difference, ...] = ()
    tolerance: float = 0.0
    opset: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of an export.json: what is in an export's folder.

    Args:
        kind: the name of the export's format: "onnx", "torch", "savedmodel" or another of `FORMATS`.
        task: the name of the task ("classify" …); "tensors" for an export without a task. The export of a task also has
            the task's config.yaml and tokenizer, from which `headwise.tasks.training.run.rebuild` rebuilds the task,
            except for its weights.
        precision: "fp32", "fp16", "bf16" or "int8".
        graphs: the graphs and their files.
        notes: further remarks for people, one sentence each.
        versions: the versions of headwise and of the packages that wrote the export, by package name.
        options: the options of the export, by name: "attention", "weights", "aoti", "signatures".
    """

    kind: str
    task: str
    precision: str
    graphs: tuple[GraphFile, ...]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def is_export(folder: Path) -> bool:
    """Return whether a folder is an export of headwise, which means that it has an export.json."""
    restore_folder(folder)
    return (folder / NAME).is_file()


def read(folder: Path) -> Manifest:
    """Read export.json, the manifest of an export.

    Raises:
        CheckpointError: the folder or its export.json is missing, damaged, or cannot be read.
    """
    path = folder / NAME
    if not is_export(folder):
        what = f"it has no {NAME}" if folder.is_dir() else "it is not a folder"
        raise CheckpointError(f"{folder} is not an export: {what}. `headwise export ... --out {folder}` writes one")
    check_seal(folder, NAME)
    try:
        found = parsed(json.loads, read_text(path))
        graphs = tuple(_graph(each) for each in found.pop("graphs"))
        manifest = Manifest(graphs=graphs, notes=tuple(found.pop("notes")), **found)
        names = [x for each in graphs for x in (each.name, each.file)]
        "".join([manifest.kind, manifest.task, manifest.precision, *names])  # TypeError: one is no text
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise CheckpointError(f"cannot read {path}: {type(cause).__name__}: {cause}") from cause


def write(folder: Path, manifest: Manifest) -> None:
    """Write export.json. Raises FileError if it cannot be written."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False, default=_plain) + "\n"
    with writing(folder / NAME) as part:
        part.write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"expected a JSON value. Received: {value!r}")


def _graph(found: dict[str, Any]) -> GraphFile:
    inputs, outputs = (tuple(_value(each) for each in found.pop(side)) for side in ("inputs", "outputs"))
    differences = tuple(Difference(**each) for each in found.pop("differences"))
    return GraphFile(inputs=inputs, outputs=outputs, differences=differences, **found)


def _value(found: dict[str, Any]) -> Value:
    dtype = getattr(torch, found["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype: {found['dtype']!r}")
    return Value(found["name"], dtype, tuple(found["axes"]))
