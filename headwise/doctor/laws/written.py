"""Code that cannot do what it is for, as it is written: results that are thrown away, and a list of layers that holds
one layer several times.

torch's operations return a new tensor; only those whose name ends in `_` change the old one. `[Block()] * 6` has the
weights of one block; models that share their layers on purpose have a word for it, or call one layer in a loop.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from torch import nn

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import Patient
from headwise.doctor.reading.creation import functions
from headwise.language import Sentence

FINDINGS = ("result-discarded", "layers-shared")

# Names that no container or logger has too: `add`, `update` and `view` of something else may change it.
_METHODS = {
    *("masked_fill", "masked_scatter", "index_fill", "nan_to_num", "transpose", "permute", "swapaxes", "unsqueeze"),
    *("squeeze", "unflatten", "reshape", "softmax", "log_softmax", "tril", "triu", "cumsum", "clamp", "sigmoid"),
    *("scatter", "index_add", "scatter_add"),
}
_FUNCTIONS = _METHODS | {
    *("dropout", "normalize", "layer_norm", "rms_norm", "relu", "gelu", "silu", "tanh", "pad", "add", "mul")
}
_LIBRARIES = frozenset(("torch", "F", "functional", "nn.functional", "torch.nn.functional"))
_SHARED = (
    *("share", "sharing", "tied", "tying", "universal", "albert"),
    *("recurs", "recurrent", "same layer", "same block"),
)


def check(patient: Patient) -> Iterator[Finding]:
    yield from _discarded(patient.module)
    yield from _shared(patient)


def _discarded(module: nn.Module) -> Iterator[Finding]:
    kinds = {type(part): part for part in module.modules() if not type(part).__module__.startswith("torch.")}
    for file, first, function in (x for part in kinds.values() for x in functions(part)):
        for node in (x for x in ast.walk(function) if isinstance(x, ast.Expr)):
            name, tensor = discards(node)
            if name:
                yield Finding(
                    "result-discarded",
                    "bug",
                    Sentence(
                        "{caller} calls {method} and does not use what it returns: {method} leaves the old tensor as "
                        "it was"
                    ).format(caller=function.name, method=name),
                    Sentence("assign the result: {tensor} = {unparse}").format(
                        tensor=tensor, unparse=ast.unparse(node)
                    ),
                    Where.at(file, first + node.lineno - 1),
                )


def discards(node: ast.Expr) -> tuple[str, str]:
    """If a statement is a call of one of torch's operations that return a tensor: its name, and the tensor's."""
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return "", ""
    if any(x.arg in ("out", "inplace") for x in call.keywords):
        return "", ""
    holder, name = ast.unparse(call.func.value), call.func.attr
    if holder in _LIBRARIES:
        return (name, ast.unparse(call.args[0])) if name in _FUNCTIONS and call.args else ("", "")
    return (name, holder) if name in _METHODS else ("", "")


def _shared(patient: Patient) -> Iterator[Finding]:
    for path, part in patient.module.named_modules():
        held = list(part._modules.values()) if isinstance(part, (nn.ModuleList, nn.Sequential)) else []
        attending = [x for x in held if x is not None and any("att" in type(y).__name__.lower() for y in x.modules())]
        layer, times = next(iter(Counter(attending).most_common(1)), (None, 0))
        if times > 1 and not any(word in text_of(patient.module).lower() for word in _SHARED):
            yield Finding(
                "layers-shared",
                "risk",
                Sentence(
                    "{path} holds one {name} {times} times among its {layers} layers: they have the same weights, and "
                    "nothing says that this is meant"
                ).format(path=path, name=type(layer).__name__, times=times, layers=len(held)),
                "make a new layer for each place: nn.ModuleList([Block() for _ in range(n)]), not [Block()] * n",
                patient.where,
            )
            return
