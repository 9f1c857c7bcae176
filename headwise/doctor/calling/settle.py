"""What shapes do not tell about a call that works: which dimension is the batch, which argument holds the values."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.doctor.calling import guesses, names, sizes
from headwise.doctor.calling.trial import KEYS, QUERIES, Trial
from headwise.doctor.calling.way import MAPS, STATES, Inputs, Way, noise, pick

_MANY = 3 * KEYS


def settle(trial: Trial, way: Way) -> Way:
    """The way to call, with the order of batch and length, and of keys and values, determined."""
    if way.takes == "qkv":
        way = _values(trial, way)
    elif way.takes == "memory" and not _reaches(trial, way, "key"):
        way = _alone(trial, way)
    way = _reading(trial, way)
    if way.layout not in ("BNM", "NBM"):
        return way
    other = dataclasses.replace(way, layout="NBM" if way.batch_first else "BNM", output_at=None, weights_at=None)
    if trial.spec.batch_first is not None:
        return way if trial.spec.batch_first == way.batch_first else other
    moved = trial.moved(way, (0, 0))
    if moved is None or moved.shape[1] != way.lengths[0]:
        return way
    # A change in one example stays in that example; a change at one token of a sequence affects other tokens.
    if bool(moved[1:, :1].any()) and not bool(moved[:, 1:].any()):
        for lengths in (way.lengths, *guesses.lengths(trial.module, trial.given, "fixed", way.takes == "self")):
            got = trial.attempt(other, sizes.batch(trial.module), *lengths)
            if not isinstance(got, str):
                return got[0]
    return way


def _reaches(trial: Trial, way: Way, name: str) -> bool:
    """Whether an input has an effect on the output, or that cannot be asked."""
    moved = trial.moved(way, ..., name)
    return moved is None or bool(moved.any())


def _alone(trial: Trial, way: Way) -> Way:
    """A way to call without the memory, which has no effect, as far as the example shows one."""
    given = [trial.given.of(name) for _, name in way.slots]
    if given[0] is not None and all(
        x is given[0] for x in given
    ):  # the queries themselves: it attends to its own input
        return dataclasses.replace(way, takes="self", slots=tuple(("query", name) for _, name in reversed(way.slots)))
    memory = dict(way.slots)["memory"]
    optional = any(p.name == memory and not p.required for p in trial.parameters)
    if trial.spec.takes is None and optional and trial.given.of(memory) is None:
        alone = dataclasses.replace(way, takes="self", slots=way.slots[:1], output_at=None, weights_at=None)
        got = trial.attempt(alone, trial.sizes(way)[0], way.lengths[0], way.lengths[0])
        return way if isinstance(got, str) else got[0]
    return way


def _reading(trial: Trial, way: Way) -> Way:
    """The way with the output that depends on other tokens, if several tensors look like the output."""
    inputs = trial.inputs(way, *trial.sizes(way))
    x = inputs.query if inputs.key is None else inputs.key
    changed = x.clone()
    changed[:, [0, -1]] *= -1
    moved = Inputs(changed) if inputs.key is None else dataclasses.replace(inputs, key=changed)
    try:
        before, after = (trial.run(way, each).raw for each in (inputs, moved))
    except Exception:  # another number of keys than of values, for example
        return way
    paths = way.find_outputs(before, way.sizes(inputs))
    for path in paths if len(paths) > 1 else ():
        one, other = (pick(raw, path) for raw in (before, after))
        rows = slice(None) if inputs.key is not None else slice(1, x.shape[1] - 1)
        if one is None or other is None:
            continue
        if one.shape != other.shape or not torch.allclose(one[:, rows], other[:, rows], atol=1e-6, equal_nan=True):
            return dataclasses.replace(way, output_at=path)
    return way


def _values(trial: Trial, way: Way) -> Way:
    """Tell keys and values apart if their names do not: the output is linear in the values, not in the keys.

    If values may be left out and make no difference, the module takes a memory and no values.
    """
    by_role = dict(way.slots)
    value = next((p for p in trial.parameters if p.name == by_role["value"]), None)
    if value is not None and not value.required and not _reaches(trial, way, "value"):
        slots = tuple(("memory" if role == "key" else role, name) for role, name in way.slots if role != "value")
        return dataclasses.replace(way, takes="memory", slots=slots)
    if all(names.role(by_role[role]) == role for role in ("key", "value")) and not way.packed:
        return way
    if way.widths[1] == way.widths[2] and not _linear(trial, way, "value") and _linear(trial, way, "key"):
        swap = {"key": "value", "value": "key"}
        return dataclasses.replace(way, slots=tuple((swap.get(role, role), name) for role, name in way.slots))
    return way


def _linear(trial: Trial, way: Way, name: str) -> bool:
    """Whether f(a) + f(b) = f(a + b) + f(0) in this input."""
    inputs = trial.inputs(way, *trial.sizes(way))
    a = inputs.tensors()[name]
    b = noise(*a.shape, seed=8, dtype=a.dtype, device=a.device)

    def of(x: Tensor) -> Tensor:
        return trial.run(way, dataclasses.replace(inputs, **{name: x})).output.double()

    left, right = of(a) + of(b), of(a + b) + of(torch.zeros_like(a))
    return bool((left - right).abs().max() <= 1e-4 * left.abs().max())


def lengths(trial: Trial, way: Way) -> tuple[int | None, bool]:
    """The only number of queries that works, if five tokens do not; whether keys must be as many as queries."""
    if way.layout == "BN":  # fewer samples make too few frames
        return way.lengths[0], True
    if way.layout in ("BM", *STATES):
        return 1, False
    if way.layout in MAPS and way.lengths[0] != QUERIES:
        return way.lengths[0], False  # a map with rows and columns shows more than one of a single row
    if trial.given.holds_distances():
        return way.lengths[0], True
    batch = trial.sizes(way)[0]

    def works(queries: int, keys: int) -> bool:
        try:
            output = trial.run(way, trial.inputs(way, batch, queries, keys)).output
        except Exception:
            return False
        return way.takes == "self" or trial.answers(output, queries)

    own = way.takes == "self"
    if works(QUERIES, QUERIES if own else KEYS):
        # Few tokens may be padded to one block each: many more keys than queries show whether they must be as many.
        return None, not own and works(_MANY, _MANY) and not works(QUERIES, _MANY)
    if works(QUERIES, QUERIES):
        return None, not own
    found = way.lengths[0]
    return found, not own and not works(found, found + 2)
