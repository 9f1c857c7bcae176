"""The arguments of forward with their roles, and the ways to assign inputs to them."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import itertools
import re
from typing import Any

from torch import nn

from headwise.doctor.calling import names
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.way import Way
from headwise.errors import DoctorError


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One argument of forward."""

    name: str
    role: str
    default: Any  # inspect.Parameter.empty if it has none
    annotation: str
    kind: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def signature(module: nn.Module) -> inspect.Signature:
    """The signature of forward, or of the function that it wraps if it is only `*args, **kwargs` (Keras: `call`)."""
    forward = getattr(module, "forward", None)
    if forward is None:
        raise DoctorError(f"{type(module).__name__} has no forward method; expected a module that can be called")
    try:
        found = inspect.signature(forward)
    except (TypeError, ValueError):
        schema = getattr(forward, "schema", None)
        return inspect.Signature(
            [inspect.Parameter(a.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in schema.arguments[1:]]
            if schema
            else []
        )
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found.parameters.values()):
        inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
        children = list(module.children()) if inner is None else [inner]
        if len(children) == 1 and isinstance(children[0], nn.Module) and not hasattr(module, "call"):  # a wrapper
            return signature(children[0])
        call = getattr(module, "call", None)
        if callable(call):
            return inspect.signature(call)
    return found


def parameters(module: nn.Module, spec: Spec) -> list[Parameter]:
    """The arguments of forward with their roles: by name, then as the spec states."""
    found = signature(module).parameters
    unknown = sorted(set(spec.roles) - set(found))
    if unknown:
        raise DoctorError(
            f"spec: roles and arguments must name arguments of forward ({', '.join(found) or 'none'}). Received: "
            f"{', '.join(unknown)}"
        )
    roles = {}
    for name, p in found.items():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        role = names.role(name, p.default, _text(p.annotation))
        if role == "memory" and p.default is None and re.search(r"tuple\W.*tensor", _text(p.annotation), re.IGNORECASE):
            role = "cache"  # a pair of tensors, keys and values of earlier tokens
        if name in names.LABELS and p.default is None and next(iter(found)) != name:
            role = "other"
        by_part = role in ("query", "key", "value") and p.default is not p.empty and not names.exact(name)
        roles[name] = "unknown" if by_part else role  # value_residual=None is not a value
    roles = names.untangle(roles)
    if not {"query", "unknown"} & set(roles.values()):
        required = {n: r for n, r in roles.items() if found[n].default is inspect.Parameter.empty}
        spare = [n for n, r in required.items() if r in ("other", "cache")]  # forward(h, mask): h is not a height here
        memories = [n for n, r in required.items() if r == "memory"]  # forward(encoded_passage, encoded_question)
        several = len(memories) > 1 and not {"key", "value"} & set(roles.values())
        roles |= dict.fromkeys((spare or (memories if several else []))[:1], "query")
    roles.update(spec.roles)
    return [Parameter(n, r, found[n].default, _text(found[n].annotation), found[n].kind) for n, r in roles.items()]


def _text(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def assignments(found: list[Parameter], variadic: bool, takes: str | None) -> list[Way]:
    """The ways to assign inputs to these arguments, the most likely first; layouts and sizes are found later."""
    by: dict[str, list[Parameter]] = collections.defaultdict(list)
    for p in found:
        by[p.role].append(p)
    free = [p for p in by["unknown"] if p.required]
    result: list[Way] = []

    def add(kind: str, *, turned: bool = False, **slots: Parameter | None) -> None:
        taken = {role: p.name for role, p in slots.items() if p is not None}
        made = Way(kind, tuple(taken.items()), turned=turned)
        if len({*taken.values()}) == len(slots) and made not in result:  # each input has an argument of its own
            result.append(made)

    query, key, value, memory = (by[role][0] if by[role] else None for role in ("query", "key", "value", "memory"))
    asks = query or (free[0] if free else None)
    rest = [p for p in free if p is not asks]
    other = rest[0] if rest else None
    first = memory or key or value
    if key and value:
        add("qkv", query=asks, key=key, value=value)
        add("memory", query=asks, memory=key)
        if asks is None:
            add("memory", query=key, memory=value)
    elif memory and not memory.required:
        add("self", query=asks)
        add("memory", query=asks, memory=memory)
    elif first:
        add("qkv", query=asks, key=memory, value=value)
        if first.required:
            add("qkv", query=asks, key=first, value=other)
        add("memory", query=asks, memory=first)
        if first.required and asks and asks.required:
            add("memory", turned=True, query=first, memory=asks)
    else:
        for a, b, c in itertools.permutations([asks, *rest][:3], 3):
            if query is None or a is query:
                add("qkv", query=a, key=b, value=c)
        if query is None:
            add("memory", query=asks, memory=other)
            add("memory", query=other, memory=asks)
        elif other:
            masked = any(names.about(p.name, other.name) for p in (*by["mask"], *by["padding"]))
            if "Tensor" not in other.annotation and not masked:
                add("self", query=asks)
            add("memory", query=asks, memory=other)
    add("self", query=asks)
    for p in found:
        if p.required and p.role not in ("mask", "padding", "flag"):
            add("self", query=p)
    if variadic and not any(p.required for p in found):
        for kind, roles in (("self", ("query",)), ("qkv", ("query", "key", "value")), ("memory", ("query", "memory"))):
            result.append(
                Way(kind, tuple((r, str(i)) for i, r in enumerate(roles)), tuple(map(str, range(len(roles)))))
            )
    required = [p for p in found if p.required]
    if len(required) == 1:
        name = required[0].name
        result.append(Way("qkv", (("query", name), ("key", f"{name}.1"), ("value", f"{name}.2")), packed=True))
        result.append(Way("memory", (("query", name), ("memory", f"{name}.1")), packed=True))
    return [a for a in result if takes is None or a.takes == takes]
