"""`Format`: the description of an export format. The folder of each format has it in `format.py`."""

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
        name: the name of the argument of `Format.function`. It is passed only if the option is given, never as None.
        says: one sentence about the option, for --help.
        choices: the strings that the option can be; () = it is True or False.
    """

    name: str
    says: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """An export format. Its description imports nothing heavy, because `headwise export --help` reads it.

    Args:
        name: the name in `--to` and in export.json.
        title: the name for people.
        function: "module:function", the function that writes an export: it takes an `Order`, and by name the `options`
            that were given; it returns a `Written`. See `headwise.export.writing`.
        precisions: the precisions that it can write; the first is the default.
        options: options that only this format has.
        weights, examples: whether the format has the options `weights` and `examples` of `export`.
        imports: lines of the card's example code that import the package which runs the export.
        array: the function in that code that makes an array of numbers, such as "np.array".
        call: makes the lines of that code that call a graph; they take its inputs from the dict `values`, and add its
            outputs to the dict, as arrays with `argmax()`.
        more: makes further paragraphs of the card about calling an export.
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
        """Whether the format has an option of this name."""
        return getattr(self, option) if option in ("weights", "examples") else option in {o.name for o in self.options}

    def write(self, order: Order, **options: Any) -> Written:
        """Write an export, by `function`."""
        written: Written = pkgutil.resolve_name(self.function)(order, **options)
        return written
