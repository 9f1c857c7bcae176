"""The call of the example, again: with the sizes of its batch and its lengths replaced, or as it was."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from headwise.doctor.calling import forward_arguments as arguments
from headwise.doctor.calling import sizes
from headwise.doctor.calling.example import is_sequence
from headwise.doctor.calling.trial import KEYS, QUERIES, Trial
from headwise.doctor.calling.way import Way, noise


def replay(trial: Trial) -> Way | None:
    """The call of the example, with the sizes of its batch and its lengths replaced; or as it was; or None."""
    given = trial.given
    x = given.input()
    if x is None:
        return _rows_as_given(trial)
    named = {p.name: p for p in trial.parameters}
    query = next(name for name, value in given.values.items() if value is x)
    inputs = {
        p.role: name
        for name, p in named.items()
        if name != query and p.role in ("key", "value", "memory") and is_sequence(given.of(name))
    }
    slots: tuple[tuple[str, str], ...]
    if "key" in inputs and "value" in inputs:
        takes, slots = "qkv", (("query", query), ("key", inputs["key"]), ("value", inputs["value"]))
    elif inputs:
        takes, slots = "memory", (("query", query), ("memory", next(iter(inputs.values()))))
    else:
        takes, slots = "self", (("query", query),)
    way = _as_given(trial, takes, slots, x)
    if way is not None and takes != "self" and not _attends_to(trial, way):
        way = _as_given(trial, "self", slots[:1], x)  # a residual, which is added token by token
    return way


def _as_given(trial: Trial, takes: str, slots: tuple[tuple[str, str], ...], x: Tensor) -> Way | None:
    """A way in which all that is no input is as in the example."""
    given = trial.given
    tensors = [given.values[name] for _, name in slots]
    (batch, queries, _), keys = x.shape, tensors[-1].shape[1]
    heads = sizes.heads(trial.module) or 1
    shapes = arguments.Shapes(batch, queries, keys, heads)
    named = {p.name for p in trial.parameters}
    rest = [name for name in given.values if name not in dict(slots).values() and name in named]
    extras = tuple((name, arguments.from_example(given.values[name], shapes)) for name in rest)
    first, second, third = (t.shape[-1] for t in (*tensors, *[tensors[-1]] * 2)[:3])
    by_position = trial.by_position({name for _, name in slots})
    way = Way(takes, slots, by_position, False, "BNM", heads, (first, second, third), extras)
    own = takes == "self" or keys == queries
    several = sizes.batch(trial.module)
    other = () if given.holds_distances() else ((several, (QUERIES, QUERIES if own else KEYS)),)
    for count, sizes_ in (*other, (several, (queries, keys)), (batch, (queries, keys))):
        got = trial.attempt(way, count, *sizes_)
        if not isinstance(got, str):
            return dataclasses.replace(got[0], layout="1NM") if count == 1 else got[0]
    return None


def _rows_as_given(trial: Trial) -> Way | None:
    """[length, width] with everything else as it was: the edges of a graph, for example, or where graphs begin."""
    given = trial.given
    rows = {
        p.name: x
        for p in trial.parameters
        if p.role in ("query", "unknown") and isinstance(x := given.of(p.name), Tensor)
        if x.ndim == 2 and x.is_floating_point()
    }
    for name, x in rows.items():
        extras = tuple((other, arguments.constant(y)) for other, y in given.values.items() if other != name)
        by_position = trial.by_position({name})
        width, heads = x.shape[-1], sizes.heads(trial.module) or 1
        way = Way("self", (("query", name),), by_position, False, "NM", heads, (width,) * 3, extras)
        got = trial.attempt(way, 1, len(x), len(x))
        if not isinstance(got, str):
            return got[0]
    return None


def _attends_to(trial: Trial, way: Way) -> bool:
    """Whether the first key reaches the outputs of other queries, or that cannot be asked."""
    inputs = trial.inputs(way, *trial.sizes(way))
    assert inputs.key is not None
    key = inputs.key.clone()
    key[:, 0] = noise(key.shape[-1], seed=5, dtype=key.dtype, device=key.device)
    try:
        before, after = (trial.run(way, x).output for x in (inputs, dataclasses.replace(inputs, key=key)))
    except Exception:  # it runs with the example's number of examples alone
        return True
    return bool((after - before)[:, 1:].any())
