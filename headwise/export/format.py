"""`Format`: the description of an export format. Each format has it in `format.py` of its folder."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.export.manifest import GraphFile, Manifest
    from headwise.export.writing import Order, Written


@dataclass(frozen=True)
class Option:
    """An option of one format: `export(..., name=value)`, and `headwise export --name`.

    Args:
        name: what `Format.function` takes it by. None is never passed: it means not given.
        says: one sentence for --help.
        choices: the strings that it can be; () = it is True or False.
    """

    name: str
    says: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A format. Its description imports nothing heavy, because `headwise export --help` reads it.

    Args:
        name: as in `--to` and in export.json.
        title: the name for people.
        function: "module:function" that writes an export: takes an `Order`, and by name the `options` that were given;
            returns a `Written`. See `headwise.export.writing`.
        precisions: the first is the default.
        options: its own options.
        weights, examples: whether it has the options of these names.
        imports: the lines of the card's example code that import the package which runs the export.
        array: the function there that makes an array of numbers: "np.array".
        call: the lines there that call a graph; they take its inputs from the dict `values`, and add its outputs to it
            as arrays with `argmax()`.
        more: further paragraphs about calling an export.
    """

    name: str
    title: str
    function: str
    precisions: tuple[str, ...]
    imports: tuple[str, ...]
    array: str
    call: Callable[[GraphFile], list[str]]
    options: tuple[Option, ...] = ()
    weights: bool = False
    examples: bool = False
    more: Callable[[Manifest], list[str]] = lambda manifest: []

    def has(self, option: str) -> bool:
        """Whether the format has an option."""
        return getattr(self, option) if option in ("weights", "examples") else option in {o.name for o in self.options}

    def write(self, order: Order, **options: Any) -> Written:
        """Call `function`."""
        written: Written = pkgutil.resolve_name(self.function)(order, **options)
        return written
