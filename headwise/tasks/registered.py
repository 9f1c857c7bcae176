"""The registry of tasks by name.

The built-in tasks are listed here and nowhere else. A task of another package is known as soon as its class is defined,
or by an entry point of the group "headwise.tasks", whose name is the name of the task: toy = "package.module:Toy".
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headwise import plugins
from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from headwise.tasks.options.train import TrainOptions

# The name of a command, of a module and of its options; the class is Classify, the options are ClassifyOptions.
BUILT_IN = ("classify", "answer", "translate", "summarize", "reply", "forecast", "match", "language")
# Options of `headwise train` and arguments of `fit`, which no option of a task can be called.
RESERVED = ("data", "out", "resume", "config", "print_config", "debug", "help")
GROUP = __package__  # of entry points: headwise.tasks

DEFINED: dict[str, type] = {}  # the classes that were defined here, by name


def names() -> list[str]:
    """Return the names of all tasks, the built-in tasks first."""
    return list(dict.fromkeys([*BUILT_IN, *plugins.found(GROUP), *DEFINED]))


def register(name: str, kind: type, options_type: type[TrainOptions]) -> None:
    """Make a task known by its name. `Task` calls this function for each subclass that defines a `name`.

    Raises:
        ArgumentError: another class has this name, or an option has a name of `RESERVED`.
    """
    clashing = [each.name for each in dataclasses.fields(options_type) if each.name in RESERVED]
    if clashing:
        raise ArgumentError(
            f"{options_type.__name__}.{clashing[0]}: headwise train has an argument of this name. Choose another"
        )
    place = _place(kind)
    taken = place
    if name in BUILT_IN:
        taken = f"{GROUP}.{name}:{name.capitalize()}"
    elif name in DEFINED:  # the same class may be defined again, in a notebook
        taken = _place(DEFINED[name])
    elif (entry := plugins.found(GROUP).get(name)) and _package(entry.module) != _package(kind.__module__):
        taken = entry.value
    if taken != place:
        raise ArgumentError(
            f"name: expected one that no other task has. Received: name={name!r} of {place}, which {taken} has"
        )
    DEFINED[name] = kind


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _package(module: str) -> str:
    return module.partition(".")[0]
