"""The shape of the output that a docstring states by a sum: `(b, d, n) -> (b, d, ceil(n / pool_size))`."""

from __future__ import annotations

import ast
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from torch import nn

_SIZES = r"(?:[^\n\[\]()]|\([^\n()]*\))*"
_STATED = re.compile(rf"[\[(]({_SIZES})[\])]`*\s*(?:->|→|=>)\s*`*[\[(]({_SIZES})[\])](?=[`\s.,;]|$)", re.MULTILINE)
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": math.ceil, "floor": math.floor, "min": min, "max": max}


def stated_output(module: nn.Module, given: Sequence[int]) -> tuple[str, list[int]] | None:
    """What its docstrings state of the output for an input of these sizes: the words, and the sizes.

    Only sizes that are computed of those of the input and of the module's attributes, so that nobody means them
    loosely. None if nothing is stated, or not all of it can be computed.
    """
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch."):
            break
        text = "\n".join(inspect.getdoc(x) or "" for x in (kind, vars(kind).get("forward")) if x is not None)
        for words in _STATED.finditer(text):
            names = [name.strip() for name in words[1].split(",")]
            if len(names) != len(given) or len(set(names)) < len(names) or not re.search(r"[-+*/]", words[2]):
                continue
            known = {name: x for name, x in vars(module).items() if type(x) in (int, float)}
            sizes = _computed(words[2], {**known, **dict(zip(names, given, strict=True))})
            if sizes is not None:
                return words[0], sizes
    return None


def _computed(text: str, known: Mapping[str, float]) -> list[int] | None:
    """The numbers that a list of sums gives; None if a name is not known, or one gives no whole number."""
    try:
        listed = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        return None
    assert isinstance(listed, ast.List)
    try:
        found = [_value(size, known) for size in listed.elts]
    except (KeyError, ZeroDivisionError, TypeError):
        return None
    return [int(x) for x in found] if all(x == int(x) for x in found) else None


def _value(node: ast.AST, known: Mapping[str, float]) -> float:
    """Of a sum. Raises KeyError for what is no number, no known name and no known function."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return known[name]
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return known[name]
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left, known), _value(right, known))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=[]):
            return _FUNCTIONS[name](*(_value(x, known) for x in args))
    raise KeyError(type(node).__name__)
