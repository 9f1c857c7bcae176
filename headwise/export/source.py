"""What a person names to be exported: a run, a BERT of a folder or the hub, or a module that a Python file makes."""

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
    """What was named, loaded.

    Args:
        name: as it was named.
        subject: what is exported.
        run: the run folder of a task.
        checkpoint: the folder of a BERT, which may have a tokenizer.
    """

    name: str
    subject: Task[Any] | nn.Module
    run: Path | None = None
    checkpoint: Path | None = None


def load(name: str) -> Source:
    """The task of a run folder, the BERT of a checkpoint or of the hub, or what my_model.py:MyModel makes.

    A Python file is imported, so its code runs.

    Raises:
        CheckpointError: no such folder or model, or a damaged one.
        ArgumentError: a folder that is an export already.
        DoctorError: a file or a class that cannot be imported or made.
    """
    folder = Path(name).expanduser()
    if is_export(folder):
        raise ArgumentError(f"{name} is an export already (there is {NAME} in it): export the run that it was made of")
    if (folder / CONFIG).is_file():
        from headwise import tasks

        return Source(name, tasks.load(folder), run=folder)
    if ":" in name or name.endswith(".py"):
        from headwise.doctor.targets.load import parse

        return Source(name, parse(name).build())
    if folder.is_file():
        raise CheckpointError(
            f"{name} is a file: expected a run folder, a BERT's folder or hub id, or my_model.py:MyModel"
        )
    from headwise.models import Bert
    from headwise.models.checkpoint import resolve

    found = resolve(name)
    return Source(name, Bert.from_pretrained(found), checkpoint=found)


def read_examples(path: Path) -> list[tuple[Tensor, ...]]:
    """Inputs of a module: what `torch.save` wrote of a list of tuples of tensors, a tuple a call.

    Raises:
        FileError: no such file, or one that holds something else.
    """
    expected = "expected what torch.save wrote of a list of tuples of tensors, the inputs of a call each"
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as cause:
        raise FileError(f"{path}: {(cause.strerror or str(cause)).lower()}; {expected}") from cause
    except Exception as cause:  # pickle's errors have no class in common
        raise FileError(f"{path} cannot be read: {expected}") from cause
    rows = [tuple(row) if isinstance(row, list | tuple) else row for row in found] if _is_list(found) else []
    if not rows or not all(isinstance(row, tuple) and row and all(isinstance(x, Tensor) for x in row) for row in rows):
        raise FileError(f"{path}: {expected}")
    return rows


def _is_list(found: Any) -> bool:
    return isinstance(found, Sequence) and not isinstance(found, str)
