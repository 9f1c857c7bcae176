"""Makes options that depend on installed packages only when a command is used, not already at `headwise --help`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

Options = Callable[[], Iterable[click.Option]]
_ATTRIBUTE = "__click_params__"  # where click's decorators put the options, the last first


def later(options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator like `click.option`, which adds any number of options to a command of class `Later`.

    `options`: the function that makes them, which is called only when the command is used.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        function.__dict__.setdefault(_ATTRIBUTE, []).append(options)
        return function

    return add


class Later(click.Command):
    """A command whose options may be given as functions that return them; each function is called once."""

    _given: list[Any]

    @property
    def params(self) -> list[click.Parameter]:
        self._given = [one for each in self._given for one in ([each] if isinstance(each, click.Parameter) else each())]
        return self._given

    @params.setter
    def params(self, given: list[Any]) -> None:
        self._given = given
