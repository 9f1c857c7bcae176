"""export.json: what stands in an export's folder, for whoever loads it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from headwise.errors import CheckpointError, FileError
from headwise.export.comparing import Difference
from headwise.export.graph import Value
from headwise.files import replacing

NAME = "export.json"
Kind = Literal["onnx", "torch", "savedmodel"]


@dataclass(frozen=True)
class GraphFile:
    """One graph in one file.

    Args:
        name: the graph's.
        file: in the export's folder.
        inputs, outputs: in the order of the file.
        differences: how far each output is from the model's.
        tolerance: how far it might have been, in units of the spread of its values.
        opset: of ONNX.
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
    """What an export's folder holds.

    Args:
        kind: what wrote it.
        task: "classify", …; "tensors" for an export that is no task's. A task's folder has its config.yaml too, and
            its tokenizer, so that `headwise.tasks.training.run.rebuild` makes the task of it, except for its weights.
        precision: "fp32", "fp16", "bf16" or "int8".
        graphs: its files.
        notes: what else is to be said of it, a sentence each.
        versions: of headwise and of what wrote it, by name.
        options: how it was made, by name: "attention", "weights", "aoti", "signatures".
    """

    kind: Kind
    task: str
    precision: str
    graphs: tuple[GraphFile, ...]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def is_export(folder: Path) -> bool:
    """Whether a folder is an export of headwise: whether there is an export.json in it."""
    return (folder / NAME).is_file()


def read(folder: Path) -> Manifest:
    """The manifest of an export's folder.

    Raises:
        CheckpointError: no such folder, no export.json in it, or one that cannot be read.
    """
    path = folder / NAME
    if not path.is_file():
        what = f"there is no {NAME} in it" if folder.is_dir() else "it is no folder"
        raise CheckpointError(f"{folder} is no export: {what}. `headwise export ... --out {folder}` writes one")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        graphs = tuple(_graph(each) for each in found.pop("graphs"))
        return Manifest(graphs=graphs, notes=tuple(found.pop("notes")), **found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise CheckpointError(f"cannot read {path}: {type(cause).__name__}: {cause}") from cause


def write(folder: Path, manifest: Manifest) -> None:
    """export.json. Raises FileError if it cannot be written."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False, default=_plain) + "\n"
    try:
        with replacing(folder / NAME) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise FileError(f"cannot write {folder / NAME}: {cause.strerror or cause}") from cause


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"expected what JSON has, received {value!r}")


def _graph(found: dict[str, Any]) -> GraphFile:
    inputs, outputs = (tuple(_value(each) for each in found.pop(side)) for side in ("inputs", "outputs"))
    differences = tuple(Difference(**each) for each in found.pop("differences"))
    return GraphFile(inputs=inputs, outputs=outputs, differences=differences, **found)


def _value(found: dict[str, Any]) -> Value:
    dtype = getattr(torch, found["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no such dtype: {found['dtype']!r}")
    return Value(found["name"], dtype, tuple(found["axes"]))
