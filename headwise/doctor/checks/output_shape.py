"""Whether the output is a tensor of finite numbers with one row per query."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.causality import is_taught
from headwise.doctor.calling.claims import text_of
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.probe import Probe, sentence

FINDINGS = ("output-shape",)

_POINTER = re.compile(r"point(s|ers?|ing)?\b|log_prob|affinit|adjacenc", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    widths: set[int] = set()
    of_keys: set[float] = set()  # output numbers for each key
    points = _POINTER.search(text_of(patient.module)) is not None
    rows_of: dict[int, int] = {}  # queries -> rows
    joined = True  # whether another input may stand behind the queries
    for batch, length in ((3, 5), (2, 7)):
        inputs = probe.inputs(batch, length)
        out = probe.attempt(inputs)
        if isinstance(out, Exception):
            if batch == 3:
                raise NotChecked(f"it does not run: {sentence(out)}")
            continue
        if out.ndim == 3 and out.shape[0] == batch:
            rows_of[inputs.query.shape[1]] = out.shape[1]
            joined &= out.shape[1] - inputs.query.shape[1] in _lengths_beside(probe, inputs)
        elif out.ndim != 3 or tuple(out.shape[:2]) != tuple(inputs.query.shape[:2]):
            keys = "" if inputs.key is None else f" and {inputs.key.shape[1]} keys"
            yield _finding(
                f"for {batch} examples of {length} queries{keys} it returns the shape {list(out.shape)}",
                "return [batch, queries, width]: one row per query, in the order of the queries",
                {"batch": batch, "queries": length},
            )
            return
        widths.add(out.shape[-1])
        of_keys.add((inputs.key is not None or points) and out.shape[-1] / inputs.key_length)
        if batch == 3 and not (out.isfinite().all() or (points and _masked_scores(out))):
            broken = int((~out.isfinite()).sum())
            yield _finding(
                f"for ordinary inputs, N(0, 1), {broken} of its {out.numel()} numbers are NaN or infinite",
                "look for uninitialised parameters (torch.empty), an empty row in a mask it makes itself, or a "
                "division by 0",
                {"not finite": broken},
            )
    if any(rows != queries for queries, rows in rows_of.items()):
        more = {rows - queries for queries, rows in rows_of.items()}
        # It pools, or learned latents read the input; or a class token, tokens that it generates, or another input (an
        # image behind a text) stand beside them.
        taught = more == {-1} and is_taught(patient.module)
        meant = joined or taught or len(set(rows_of.values())) == 1 or (len(more) == 1 < len(rows_of) and min(more) > 0)
        told = "; ".join(f"{rows} for {queries} queries" for queries, rows in rows_of.items())
        yield Finding(
            "output-shape",
            "note" if meant else "bug",
            f"the number of output rows differs from the number of queries: {told}",
            "nothing, if it is meant to pool its input, or to add tokens; else return one row per query",
            numbers={"queries": float(max(rows_of)), "rows": float(rows_of[max(rows_of)])},
        )
    if len(widths) > 1 and len(of_keys) == 1 and max(of_keys) >= 1 and max(of_keys).is_integer():
        yield Finding(
            "output-shape",
            "note",
            f"it returns {max(of_keys):g} for each key, and no sum of values: weights, or the scores of a pointer",
            "nothing, if that is meant",
        )
    elif len(widths) > 1:
        yield _finding(
            f"the width of its output depends on the input's lengths: {', '.join(map(str, sorted(widths)))}",
            "return [batch, queries, width]",
            {},
        )


def _masked_scores(out: Tensor) -> bool:
    """Whether some numbers of its rows are -inf, and others are finite: the scores of a pointer, with a mask."""
    masked = out == -torch.inf
    return bool((out.isfinite() | masked).all()) and not bool(masked.all(-1).any())


def _lengths_beside(probe: Probe, inputs: Inputs) -> set[int]:
    """How many tokens the other inputs of a call have, [B, N, M] of numbers or [B, N] of ids."""
    way = probe.interface.way
    made = [make(way.sizes(inputs)) for name, make in way.extras if "mask" not in name]
    tensors = [x for x in made if isinstance(x, Tensor) and x.shape[:1] == inputs.query.shape[:1]]
    return {x.shape[1] for x in tensors if x.ndim == (3 if x.is_floating_point() else 2)}


def _finding(evidence: str, fix: str, numbers: dict[str, float]) -> Finding:
    return Finding("output-shape", "bug", evidence, fix, numbers=numbers)
