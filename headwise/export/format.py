"""`Format`: the description of an export format. Each format's folder has a file `format.py` with its description."""

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
        name: the option's name, and the name of the argument of `Format.function` that gets its value. The argument is
            passed only if the user gave the option, never as None.
        says: one sentence about the option, for --help.
        choices: the strings that the option's value can be; () = the value is True or False.
    """

    name: str
    says: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """An export format. Its description imports nothing heavy, because `headwise export --help` reads it.

    Args:
        name: the name in `--to` and in export.json.
        title: the name that cards and messages show.
        function: "module:function", the function that writes an export: it takes an `Order`, and as keyword arguments
            the `options` that the user gave; it returns a `Written`. See `headwise.export.writing`.
        precisions: the precisions that the format can write; the first is the default.
        options: options that only this format has.
        weights, examples: whether the format has the options `weights` and `examples` of `export`.
        imports: the lines of the model card's example code that import the package which runs the export.
        array: the name of the function that makes an array of numbers in the example code, such as "np.array".
        call: a function that returns the lines of the example code which call a graph. These lines take the graph's
            inputs from the dict `values` and add its outputs to this dict, as arrays with `argmax()`.
        extra: the extra of headwise that writing an export needs; "" = none.
        more: a function that returns further paragraphs of the card about calling an export.
    """

    name: str
    title: str
    function: str
    precisions: tuple[str, ...]
    imports: tuple[str, ...]
    array: str
    call: Callable[[GraphFile], list[str]]
    options: tuple[Option, ...] = ()
    extra: str = ""
    weights: bool = False
    examples: bool = False
    more: Callable[[Manifest], list[str]] = lambda manifest: []

    def has(self, option: str) -> bool:
        """Return whether the format has an option of this name."""
        return getattr(self, option) if option in ("weights", "examples") else option in {o.name for o in self.options}

    def write(self, order: Order, **options: Any) -> Written:
        """Import `function` and call it, to write an export."""
        written: Written = pkgutil.resolve_name(self.function)(order, **options)
        return written
