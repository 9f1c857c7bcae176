"""`Format`: what `headwise export` knows of a format. Each is described in `format.py` of its folder."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.export.manifest import GraphFile, Manifest
    from headwise.export.writing import Order, Written


@dataclass(frozen=True)
class Format:
    """A format. Its description imports nothing heavy, because `headwise export --help` reads it.

    Args:
        name: as in `--to` and in export.json.
        title: for people.
        function: "module:function" that writes an export: takes an `Order`, and by name the options attention and aoti
            if it has them; returns a `Written`. See `headwise.export.writing`.
        precisions: the first is the default.
        options: those of attention, weights, aoti and examples that it has.
        imports: the lines of the card's example code that import what runs the export.
        array: what makes an array of numbers there: "np.array".
        call: the lines there that call a graph: they take its inputs from the dict `values`, and add its outputs to it
            as arrays with `argmax()`.
        more: further paragraphs about calling an export.
    """

    name: str
    title: str
    function: str
    precisions: tuple[str, ...]
    options: frozenset[str]
    imports: tuple[str, ...]
    array: str
    call: Callable[[GraphFile], list[str]]
    more: Callable[[Manifest], list[str]] = lambda manifest: []

    def write(self, order: Order, **options: Any) -> Written:
        """Call `function`."""
        written: Written = pkgutil.resolve_name(self.function)(order, **options)
        return written
