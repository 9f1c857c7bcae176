"""Loads what to export, by name: a run folder, a BERT from a folder or the hub, or a module from a Python file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError, FileError
from headwise.export.manifest import NAME, is_export
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG


@dataclass(frozen=True)
class Source:
    """A loaded task or module that is to be exported.

    Args:
        name: the name by which the user asked for it.
        subject: the loaded task or module.
        run: the run folder, if the subject is a task.
        checkpoint: the folder of the checkpoint, if the subject is a BERT; it may have a tokenizer.
    """

    name: str
    subject: Task[Any] | nn.Module
    run: Path | None = None
    checkpoint: Path | None = None


def load(name: str) -> Source:
    """Load the task in a run folder, the BERT of a checkpoint or of the hub, or the module in "my_model.py:MyModel".

    A Python file is imported, so its code is executed.

    Raises:
        CheckpointError: the folder or model does not exist or is damaged.
        ArgumentError: the folder is an export.
        DoctorError: the file cannot be imported, or the class cannot be instantiated.
    """
    folder = Path(name).expanduser()
    if is_export(folder):
        raise ArgumentError(f"{name} is already an export (it has {NAME}). Export the run folder it was made from")
    if (folder / CONFIG).is_file():
        from headwise import tasks

        return Source(name, tasks.load(folder), run=folder)
    if ":" in name or name.endswith(".py"):
        from headwise.doctor.targets.load import parse

        return Source(name, parse(name).build())
    if folder.is_file():
        raise CheckpointError(
            f"{name} is a file. Expected a run folder, a BERT's folder or hub id, or my_model.py:MyModel"
        )
    from headwise.models import Bert
    from headwise.models.checkpoint import resolve

    found = resolve(name)
    return Source(name, Bert.from_pretrained(found), checkpoint=found)


def read_examples(path: Path) -> list[tuple[Tensor, ...]]:
    """Read example inputs of a module from a file that `torch.save` wrote: a list with a tuple of tensors per call.

    Raises:
        FileError: the file is missing, or contains something else.
    """
    expected = "expected a list of tuples of tensors, one tuple per call, written by torch.save"
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as cause:
        raise FileError(f"{path}: {(cause.strerror or str(cause)).lower()}; {expected}") from cause
    except Exception as cause:  # pickle's errors have no common class
        raise FileError(f"{path} cannot be read: {expected}") from cause
    listed = found if isinstance(found, Sequence) and not isinstance(found, str) else []
    rows = [tuple(row) if isinstance(row, list | tuple) else row for row in listed]
    if not rows or not all(isinstance(row, tuple) and row and all(isinstance(x, Tensor) for x in row) for row in rows):
        raise FileError(f"{path}: {expected}")
    return rows
