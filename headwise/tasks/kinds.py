"""The names of the tasks, and the class and the options of each.

The built-in tasks are listed here and nowhere else. A task of another package is known as soon as its class is defined,
or by an entry point of the group "headwise.tasks", whose name is the name of the task: toy = "package.module:Toy".
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import TYPE_CHECKING, Any

from headwise import plugins
from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from headwise.tasks.options.train import TrainOptions
    from headwise.tasks.task import Task

# The name of a command, of a module and of its options; the class is Classify, the options are ClassifyOptions.
BUILT_IN = ("classify", "answer", "translate", "summarize", "reply", "forecast", "match", "language")
# Options of `headwise train` and arguments of `fit`, which no option of a task can be called.
RESERVED = ("data", "out", "resume", "config", "print_config", "debug", "help")
GROUP = __package__  # of entry points: headwise.tasks

_DEFINED: dict[str, type[Task[Any]]] = {}


def names() -> list[str]:
    """The names of all tasks: the built-in ones first."""
    return list(dict.fromkeys([*BUILT_IN, *plugins.found(GROUP), *_DEFINED]))


def class_of(name: str) -> type[Task[Any]]:
    """The class of a task, imported now if necessary.

    Raises:
        ArgumentError: no task has this name, or a package of the extra `train` is not installed.
    """
    kind: type[Task[Any]]
    if name in BUILT_IN:
        kind = getattr(sys.modules[GROUP], name.capitalize())  # imports it
        return kind
    if name in _DEFINED:
        return _DEFINED[name]
    if (entry := plugins.found(GROUP).get(name)) is None:
        raise ArgumentError(f"no task has this name: expected one of {', '.join(names())}. Received: {name!r}")
    kind = plugins.load(entry)
    return kind


def options_of(name: str) -> type[TrainOptions]:
    """The options of a task. The options of a built-in task import nothing heavy.

    Raises:
        ArgumentError: see `class_of`.
    """
    if name not in BUILT_IN:
        return class_of(name).options_type
    module = importlib.import_module(f"headwise.tasks.options.{name}")
    options: type[TrainOptions] = getattr(module, f"{name.capitalize()}Options")
    return options


def register(kind: type[Task[Any]]) -> None:
    """Make a task known by its name; `Task` calls this for each class with a name of its own.

    Raises:
        ArgumentError: another class has this name, or an option has a name of `RESERVED`.
    """
    clashing = [each.name for each in dataclasses.fields(kind.options_type) if each.name in RESERVED]
    if clashing:
        raise ArgumentError(
            f"{kind.options_type.__name__}.{clashing[0]}: headwise train has an argument of this name. Choose another"
        )
    name, place = kind.name, _place(kind)
    taken = place
    if name in BUILT_IN:
        taken = f"{GROUP}.{name}:{name.capitalize()}"
    elif name in _DEFINED:  # the same class may be defined again, in a notebook
        taken = _place(_DEFINED[name])
    elif (entry := plugins.found(GROUP).get(name)) and _package(entry.module) != _package(kind.__module__):
        taken = entry.value
    if taken != place:
        raise ArgumentError(
            f"name: expected one that no other task has. Received: name={name!r} of {place}, which {taken} has"
        )
    _DEFINED[name] = kind


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _package(module: str) -> str:
    return module.partition(".")[0]
