"""Which input the queries, keys and values come from: the module may use its arguments in the wrong order.

Only modules with several inputs can make this mistake. The names in the signature say what each input is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading import marks

FINDINGS = ("argument-order",)

_INPUTS = ("query", "key", "value")
_ANY = re.compile(r"x\d?|inputs?|tokens|data|hidden(_states?)?")


def check(patient: Patient) -> Iterator[Finding]:
    interface = patient.interface
    if interface.takes == "self":
        raise NotApplicable("it takes one input")
    slots = dict(interface.way.slots)
    if names.role(slots.get("query", "")) == "memory" and names.role(slots.get("memory", "")) == "query":
        yield Finding(
            "argument-order",
            "bug",
            f"the output has one row per position of `{slots['query']}`, and the module attends to "
            f"`{slots['memory']}`; the names of the arguments say the opposite",
            f"compute the queries from `{slots['memory']}`, keys and values from `{slots['query']}`",
            patient.where,
        )
        return
    called = _INPUTS if interface.takes == "qkv" else ("query", "memory")
    found: list[dict[str, set[int]]] = []
    for site in patient.see().sites:
        met = site.contraction
        if met is None or not site.placement("k").right:
            continue
        parts = {"queries": site.query.token, "keys": site.key.token, "values": met.values.token}
        found.append({name: _inputs(tokens) for name, tokens in parts.items()})
    expected = {"queries": {0}, "keys": {1}, "values": {2 if interface.takes == "qkv" else 1}}
    if len(found) > 1 or interface.also:  # a layer may also attend to itself
        found = [x for x in found if x["keys"] | x["values"] | x["queries"] not in ({0}, {1})]
    if any(x["queries"] == {0} and x["keys"] == x["values"] == {1} for x in found) and len(found) > 1:
        return
    for inputs in found:
        if any(not x or -2 in x or len(x) > 1 for x in inputs.values()) or inputs == expected:
            continue
        if inputs == {"queries": {1}, "keys": {0}, "values": {0}} and _memory_first(patient):
            continue
        wrong = [
            f"{name} from {called[min(next(iter(inputs[name])), len(called) - 1)]}"
            for name in inputs
            if inputs[name] != expected[name]
        ]
        yield Finding(
            "argument-order",
            patient.severity("argument-order: of the inputs", "bug"),
            f"of its inputs ({', '.join(called)}) the module computes its {', its '.join(wrong)}",
            "pass query, key and value in the order of the signature, or by name",
            patient.where,
        )
        return


def _memory_first(patient: Patient) -> bool:
    """Whether what is named like a memory comes first, and the other name says nothing: forward(context, x)."""
    slots, order = dict(patient.interface.way.slots), list(inspect.signature(patient.module.forward).parameters)
    query, memory = slots["query"], slots.get("memory", "")
    return memory in order and order.index(memory) < order.index(query) and bool(_ANY.fullmatch(names.simple(query)))


def _inputs(tokens: Tensor) -> set[int]:
    which = marks.input_of(tokens)
    return set(which[tokens != marks.UNKNOWN].unique().tolist())
