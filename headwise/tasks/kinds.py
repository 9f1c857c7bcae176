"""Finds the class and the options of a task by its name. Importing this file imports nothing heavy."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise import plugins
from headwise.errors import ArgumentError, CheckpointError
from headwise.tasks.registered import BUILT_IN, DEFINED, GROUP, names

if TYPE_CHECKING:
    from headwise.tasks.options.train import TrainOptions
    from headwise.tasks.task import Task


def find_class(name: str) -> type[Task[Any]]:
    """Return the class of a task, imported now if necessary.

    Raises:
        ArgumentError: no task has this name, or a package of the extra `train` is not installed.
    """
    kind: type[Task[Any]]
    if name in BUILT_IN:
        kind = getattr(sys.modules[GROUP], name.capitalize())  # imports it
    elif name in DEFINED:
        kind = DEFINED[name]
    elif (entry := plugins.found(GROUP).get(name)) is not None:
        kind = plugins.load(entry)
    else:
        raise ArgumentError(
            "no task has this name: expected one of {names}. Received: {name!r}", names=", ".join(names()), name=name
        )
    return kind


def find_options(name: str) -> type[TrainOptions]:
    """Return the class of a task's options. For a built-in task, nothing heavy is imported.

    Raises:
        ArgumentError: see `find_class`.
    """
    if name not in BUILT_IN:
        return find_class(name).options_type
    module = importlib.import_module(f"headwise.tasks.options.{name}")
    options: type[TrainOptions] = getattr(module, f"{name.capitalize()}Options")
    return options


def load(folder: str | Path) -> Task[Any]:
    """Load the trained task of a run folder, in eval mode, on the device in its options.

    Raises:
        CheckpointError: the folder is not a run folder, or its weights are missing (not trained yet) or damaged.
    """
    from headwise.tasks.training import run

    folder = Path(folder).expanduser()
    name = run.read_config(folder)["task"]
    if name not in names():
        raise CheckpointError(
            "{folder}: expected a run of one of {names}. Received: {name!r}",
            folder=folder,
            names=", ".join(names()),
            name=name,
        )
    return run.restore(folder, find_class(name))
