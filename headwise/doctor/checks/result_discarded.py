"""Results that are thrown away: `scores.masked_fill(mask, -inf)` as a statement changes nothing.

torch's operations return a new tensor; only those whose name ends in `_` change the old one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import Patient
from headwise.doctor.reading.creation import functions

FINDINGS = ("result-discarded",)

# Names that no container or logger has too: `add`, `update` and `view` of something else may change it.
_METHODS = frozenset(
    (
        "masked_fill",
        "masked_scatter",
        "index_fill",
        "nan_to_num",
        "transpose",
        "permute",
        "swapaxes",
        "unsqueeze",
        "squeeze",
        "unflatten",
        "reshape",
        "softmax",
        "log_softmax",
        "tril",
        "triu",
        "cumsum",
        "clamp",
        "sigmoid",
        "scatter",
        "index_add",
        "scatter_add",
    )
)
_ONLY_FUNCTIONS = frozenset(
    ("dropout", "normalize", "layer_norm", "rms_norm", "relu", "gelu", "silu", "tanh", "pad", "add", "mul")
)
_LIBRARIES = frozenset(("torch", "F", "functional", "nn.functional", "torch.nn.functional"))


def check(patient: Patient) -> Iterator[Finding]:
    seen = set()
    for part in patient.module.modules():
        kind = type(part)
        if kind in seen or kind.__module__.startswith("torch."):
            continue
        seen.add(kind)
        for file, first, function in functions(part):
            for node in (x for x in ast.walk(function) if isinstance(x, ast.Expr)):
                found = _discarded(node)
                if found is None:
                    continue
                name, of = found
                yield Finding(
                    "result-discarded",
                    "bug",
                    f"{function.name} calls {name} and does not use what it returns: {name} leaves the old tensor as "
                    "it was",
                    f"assign the result: {of} = {ast.unparse(node)}",
                    Where.at(file, first + node.lineno - 1),
                )


def _discarded(node: ast.Expr) -> tuple[str, str] | None:
    """If a statement is a call of one of torch's operations that return a tensor: its name, and the tensor's."""
    if not isinstance(node.value, ast.Call):
        return None
    call, function = node.value, node.value.func
    in_place = any(x.arg in ("out", "inplace") for x in call.keywords)
    if in_place or not isinstance(function, ast.Attribute):
        return None
    holder = ast.unparse(function.value)
    if holder in _LIBRARIES and function.attr in _METHODS | _ONLY_FUNCTIONS and call.args:
        return function.attr, ast.unparse(call.args[0])
    return (function.attr, holder) if function.attr in _METHODS else None
