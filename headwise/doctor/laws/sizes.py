"""Any number of tokens, examples and keys will do: the output has one row of finite numbers for each query, always as
wide, and each feature belongs to a head.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.probe import Probe, sentence
from headwise.language import Sentence, join

FINDINGS = ("output-shape", "sizes-fixed", "heads-not-dividing")

_LENGTHS = (1, 2, 4, 7, 12, 33, 64)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    yield from _output(probe)
    usual = probe.inputs()
    sure = probe.answers(usual).shape[:2] == usual.query.shape[:2] and probe.interface.way.layout in ("BNM", "NBM")
    of_one: Severity = "bug" if sure else "risk"  # else its inputs may have other axes than was found out
    if probe.interface.batched:
        yield from _batches(probe, of_one)
    if probe.interface.length is None:
        yield from _lengths(probe, of_one)
    else:
        yield _fixed(
            "note",
            Sentence("it runs with {length} tokens and with no other length that was tried").format(
                length=probe.interface.length
            ),
            "nothing, if every input has this length; else take the length from the input",
        )
    if probe.crosses and not probe.rectangular and not probe.interface.causal_claim:  # else it needs the same positions
        yield from _more_keys(patient, probe)
    if probe.interface.heads and probe.interface.width % probe.interface.heads:
        yield from _heads(probe, probe.interface.heads)


def _output(probe: Probe) -> Iterator[Finding]:
    rows: dict[int, int] = {}  # queries -> rows of the output
    widths: dict[int, int] = {}  # keys -> its width
    for batch, length in ((3, 5), (2, 7)):
        inputs = probe.inputs(batch, length)
        out = probe.attempt(inputs)
        if isinstance(out, Exception):
            if batch == 3:
                raise NotChecked(Sentence("it does not run: {sentence}").format(sentence=sentence(out)))
            continue
        if out.ndim != 3 or len(out) != batch:
            keys = "" if inputs.key is None else Sentence(" and {count} keys").format(count=inputs.key.shape[1])
            yield _shape(
                Sentence("for {batch} examples of {length} queries{keys} it returns the shape {shape}").format(
                    batch=batch, length=length, keys=keys, shape=list(out.shape)
                ),
                "return [batch, queries, width]: one row per query, in the order of the queries",
            )
            return
        rows[inputs.query.shape[1]] = out.shape[1]
        widths[inputs.key_length] = out.shape[-1]
        masked = out == -torch.inf  # the scores of a pointer, with a mask
        pointer = bool((out.isfinite() | masked).all()) and not bool(masked.all(-1).any())
        broken = int((~out.isfinite()).sum())
        if batch == 3 and broken and not pointer:
            yield _shape(
                Sentence("for ordinary inputs, N(0, 1), {broken} of its {of} numbers are NaN or infinite").format(
                    broken=broken, of=out.numel()
                ),
                "look for uninitialised parameters (torch.empty), an empty row in a mask it makes itself, or a "
                "division by 0",
            )
    if any(queries != n for queries, n in rows.items()):
        counted = (Sentence("{rows} for {queries} queries").format(rows=n, queries=q) for q, n in rows.items())
        yield _shape(
            Sentence("the number of output rows differs from the number of queries: {counted}").format(
                counted=join(counted, "; ")
            ),
            "nothing, if it is meant to pool its input, or to add tokens; else return one row per query",
            "bug" if loses_rows(rows) else "note",
        )
    shares = {width / keys for keys, width in widths.items()}
    if len(set(widths.values())) > 1 and len(shares) == 1 and max(shares).is_integer():
        yield _shape(
            Sentence(
                "it returns {shares:g} for each key, and no sum of values: weights, or the scores of a pointer"
            ).format(shares=max(shares)),
            "nothing, if that is meant",
            "note" if probe.crosses else "risk",
        )
    elif len(set(widths.values())) > 1:
        said = ", ".join(map(str, sorted(set(widths.values()))))
        yield _shape(
            Sentence("the width of its output depends on the input's lengths: {sizes}").format(sizes=said),
            "return [batch, queries, width]",
        )


def loses_rows(rows: Mapping[int, int]) -> bool:
    """Whether some queries have no row, and that is no pool (a number of rows, or a share of them) and no shift."""
    pooled = len(set(rows.values())) == 1 or all(2 * n <= queries + 1 for queries, n in rows.items())
    shifted = len({n - queries for queries, n in rows.items()}) == 1
    return not pooled and not shifted and any(n < queries for queries, n in rows.items())


def _batches(probe: Probe, of_one: Severity) -> Iterator[Finding]:
    usual = probe.interface.batch
    others = {n: probe.attempt(probe.inputs(batch=n)) for n in (1, 2, 4) if n != usual}
    failed = {n: out for n, out in others.items() if isinstance(out, Exception)}
    if failed:
        alone = list(failed) == [1]
        yield _fixed(
            of_one if alone else "risk",
            Sentence("it runs with a batch of {usual}, and raises with a batch of {failed}: {sentence}").format(
                usual=usual, failed=" or ".join(map(str, failed)), sentence=sentence(next(iter(failed.values())))
            ),
            "squeeze() needs a dimension, or it drops a batch of 1" if alone else "take the batch size from the input",
        )


def _lengths(probe: Probe, of_one: Severity) -> Iterator[Finding]:
    ran = {n: probe.attempt(probe.inputs(length=n)) for n in _LENGTHS}
    failed = {n: out for n, out in ran.items() if isinstance(out, Exception)}
    if all(isinstance(out := ran[n], Tensor) and out.shape[1] == n - 1 for n in (2, 4)):
        failed.pop(1, None)  # the first token is only a start: one alone has no row
    if not failed:
        return
    works = sorted({5, *(n for n in ran if n not in failed)})
    first = min(failed)
    problem = sentence(failed[first])
    if first > max(works):
        severity: Severity = "note"
        said = Sentence("it runs with up to {works} tokens, and raises with {first}: {problem}").format(
            works=max(works), first=first, problem=problem
        )
        fix = "nothing, if so many tokens are never needed; else make its table or mask larger"
    elif list(failed) == [1]:
        severity, said = of_one, Sentence("it raises with one token: {problem}").format(problem=problem)
        fix = "squeeze() needs a dimension, or it drops a length of 1"
    else:
        severity, every = "risk", ", ".join(map(str, failed))
        said = Sentence("it runs with {works} tokens, and raises with {every}: {problem}").format(
            works=", ".join(map(str, works)), every=every, problem=problem
        )
        fix = "take lengths from the input; pad to a multiple where blocks are needed"
    yield _fixed(severity, said, fix)


def _more_keys(patient: Patient, probe: Probe) -> Iterator[Finding]:
    queries = probe.inputs().query.shape[1]
    memory = probe.interface.takes == "memory" and names.role(dict(probe.interface.way.slots)["memory"]) == "memory"
    for more in (2, 16):
        problem = probe.attempt(probe.interface.inputs(None, None, queries + more))
        if isinstance(problem, Exception):
            yield _fixed(
                patient.severity("sizes-fixed: more keys than queries", "bug")
                if memory
                else patient.severity("sizes-fixed: queries, keys and values", "risk"),
                Sentence("with {more} more keys than queries it raises {sentence}").format(
                    more=more, sentence=sentence(problem)
                ),
                "take the length of keys and values from the keys, not from the queries",
            )
            return


def _heads(probe: Probe, heads: int) -> Iterator[Finding]:
    """Projections that `width // heads` makes narrower, where nobody chose the width of a head."""
    width, module = probe.interface.width, probe.module
    inner = width // heads * heads
    narrow = next((name for name, x in module.named_parameters() if x.ndim == 2 and inner in x.shape), "")
    stated = {names.simple(x) for x in inspect.signature(type(module).__init__).parameters}
    keeps = any(x.ndim == 2 and x.shape[-1] == width and x.shape[0] % width == 0 for x in module.parameters())
    if narrow and not keeps and not stated & {*names.HEAD_DIMS, "inner_dim", "attn_dim"}:
        yield Finding(
            "heads-not-dividing",
            "risk",
            Sentence(
                "the width {width} is not divisible by {heads} heads: each takes {width} // {heads} = {taken}, so "
                "that {narrow} has {inner} features instead of {width}, without an error or warning"
            ).format(width=width, heads=heads, taken=width // heads, narrow=narrow, inner=inner),
            "in the constructor: if embed_dim % num_heads: raise ValueError(...)",
        )


def _shape(evidence: str, fix: str, severity: Severity = "bug") -> Finding:
    return Finding("output-shape", severity, evidence, fix)


def _fixed(severity: Severity, evidence: str, fix: str) -> Finding:
    return Finding("sizes-fixed", severity, evidence, fix)
