"""One model, plain, watched and as it is: every softmax of its attention against the records."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import headwise
from headwise.records import AttentionRecord, CallSite
from tests.capture.families.making import fresh
from tests.capture.families.models import seed
from tests.capture.families.truth import Entry, Truth
from tests.capture.parity import tensors

Verdict = Literal["exact", "bounded", "refused", "not understood", "wrong", "silent"]
VERDICTS: tuple[Verdict, ...] = ("exact", "bounded", "refused", "not understood", "wrong", "silent")

# How far a record's weights may be from the model's own, by the dtype in which the model computes; more for scores
# above 8, whose rounding is larger. (The truth runs with other kernels: rounding adds up over the layers.)
BOUND = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclasses.dataclass(frozen=True)
class Finding:
    """What became of one softmax of the model, or of one record that belongs to none."""

    verdict: Verdict
    module: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """One model with one input."""

    findings: tuple[Finding, ...]
    gates: int  # softmaxes that are contracted, and not attention
    other: tuple[str, ...]  # of coverage: what names no softmax of the model
    changed: bool  # whether an output of the watched model differs in a bit
    fused: tuple[str, ...] = ()

    def count(self) -> Counter[str]:
        return Counter(finding.verdict for finding in self.findings)


def compare(model: Any, inputs: dict[str, Any]) -> Result:
    """The findings of one model and one input. The model's own errors are raised."""
    seed()
    with torch.no_grad():
        plain = [x.clone() for x in tensors(model(**fresh(inputs)))]
    seed()
    with torch.no_grad(), headwise.watch(model) as seen:
        out = model(**fresh(inputs))
    watched = tensors(out)
    changed = len(watched) != len(plain) or not all(map(_same, plain, watched))
    truth = Truth(model)
    seed()
    with truth.watching():
        model(**fresh(inputs))
    found = judged(truth, list(seen), list(seen.coverage()))
    if any(finding.verdict == "wrong" for finding in found[0]):
        # The truth ran with torch's plain kernels, whose rounding adds up over the layers. So the watch does now, too.
        seed()
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), headwise.watch(model) as seen:
            model(**fresh(inputs))
        found = judged(truth, list(seen), list(seen.coverage()))
    return Result(*found, changed, tuple(sorted(set(truth.fused))))


def _same(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and bool(((x == y) | (x != x) & (y != y)).all())


def judged(
    truth: Truth, records: Sequence[AttentionRecord], sites: Sequence[CallSite]
) -> tuple[tuple[Finding, ...], int, tuple[str, ...]]:
    """(a finding of each softmax, the number of gates, sites that name none)."""
    left, whole = list(records), list[AttentionRecord]()
    weights: Known = {}
    findings: list[Finding] = []
    open_: list[Entry] = []
    places: list[int] = []  # of the records, in the order in which the model computed their first softmax
    for entry in truth.attention:
        name, found, size = "", None, max(1.0, entry.largest / 8)
        for record in sorted(left, key=lambda record: _name(record) != entry.module):
            error = _error_of(record, entry, weights)
            if error is not None and error <= BOUND[torch.float32] * size:
                found, name = record, "exact"
                break
        if found is None and truth.dtype in (torch.bfloat16, torch.float16):
            for record in [record for record in left if f"{entry.module}.".startswith(f"{_name(record)}.")]:
                error = _error_of(record, entry, weights)
                if error is not None and error <= BOUND[truth.dtype] * size:
                    found, name = record, "bounded"
                    break
        if found is None:
            found = next((x for x in [*left, *whole] if _name(x) == entry.module and _holds(x, entry, weights)), None)
            name = "exact"
            if found is not None and found in left:
                left.remove(found)
                whole.append(found)  # of several softmaxes
        elif found in left:
            left.remove(found)
        if found is None:
            open_.append(entry)
            continue
        findings.append(Finding(name, entry.module))  # type: ignore[arg-type]
        place = next(i for i, record in enumerate(records) if record is found)
        if places and place < places[-1] and place not in places:
            findings.append(
                Finding("wrong", entry.module, f"its record stands before that of {_name(records[places[-1]])}")
            )
        places.append(place)
    listed = [site for site in sites if site.status in ("refused", "missed")]
    left_of = {id(site): site.calls for site in listed}  # a line explains as many softmaxes as it stands for
    denied = [site for site in sites if site.status not in ("seen", "refused", "missed")]
    rest = list(left)
    for entry in open_:
        free = [site for site in listed if left_of[id(site)]]
        site = next((site for site in free if _names(site, entry.module)), None)
        # Its weights may meet the values in another part of the same module, where the line is.
        site = site or next((site for site in free if _is_beside(site, entry.module)), None)
        record = next((record for record in rest if _name(record) == entry.module), None)
        shape = f"{entry.operator} {tuple(entry.weights.shape)} dim {entry.dim}"
        if record is not None:
            rest.remove(record)
            own = _weights(record, weights)
            if isinstance(own, str):
                note = own
            else:
                error = _error(own, entry)
                note = f"record {tuple(own.shape)}, " + ("no axes fit" if error is None else f"off by {error:.1e}")
            findings.append(Finding("wrong", entry.module, f"{shape}: {note}"))
        elif site is not None:
            left_of[id(site)] -= 1
            findings.append(
                Finding(
                    "refused" if site.status == "refused" else "not understood", entry.module, f"{shape}: {site.how}"
                )
            )
        else:
            said = next(
                (f", said to be {site.status}: {site.how}" for site in denied if _names(site, entry.module)), ""
            )
            findings.append(Finding("silent", entry.module, shape + said))
    for record in rest:
        others = [entry for entry in truth.entries if not (entry.contracted and entry.of_product)]
        gate = next((entry for entry in others if _fits(record, entry, weights)), None)
        changed = gate is not None and (record.extras.used is not None or (gate.of_product and gate.used is not None))
        pools = gate is not None and gate.contracted and truth.is_parameter(record.q)
        if gate is not None and (changed or pools):
            # Changed in a way that the counter does not follow to the values; or learned queries that pool tokens.
            findings.append(Finding("exact", gate.module))
            continue
        what = "a softmax that is not attention" if gate is not None else "no softmax of the model"
        findings.append(Finding("wrong", _name(record), f"record {record.shape} of {what}"))
    other = tuple(f"{site.status} {site.name}: {site.how}" for site in listed if left_of[id(site)] == site.calls)
    return tuple(findings), len(truth.gates), other


def _fits(record: AttentionRecord, entry: Entry, weights: Known) -> bool:
    error = _error_of(record, entry, weights)
    return error is not None and error <= 1e-4


def _error_of(record: AttentionRecord, entry: Entry, weights: Known) -> float | None:
    """That of the weights used, and of the softmax where these are others."""
    used = _error(_weights(record, weights), entry)
    if record.extras.used is None or entry.operator == "sigmoid":
        return used
    own = _weights(record, weights, used=False)
    softmax = None if isinstance(own, str) else _difference(own, entry.rows.float(), entry.empty)
    errors = [error for error in (used, softmax) if error is not None]
    return max(errors) if errors and entry.used is not None else softmax


def _holds(record: AttentionRecord, entry: Entry, weights: Known) -> bool:
    """Whether a record has each row of a softmax of blocks or windows, whose columns are not all keys of the record.

    A row is told by its weights in descending order; where the softmax has a key several times, they are one weight of
    the record. Rows of padding, which the record does not have, may be left over. (Which key a weight belongs to is
    compared in tests/capture/test_pieces.py, with models written without blocks.)
    """
    own = _weights(record, weights)
    if isinstance(own, str):
        return False
    rows = entry.rows if entry.used is None or entry.used.shape != entry.rows.shape else entry.used
    theirs = rows.float().flatten(0, -2)
    theirs = theirs[~entry.empty.flatten()] if entry.empty.numel() == len(theirs) else theirs
    theirs = theirs[theirs.any(-1)]
    mine = own.flatten(0, -2)
    mine = mine[mine.any(-1)]
    tolerance = BOUND[torch.float32] * max(1.0, entry.largest / 16)
    near = torch.stack(
        [_near(theirs, mine, rounding) <= tolerance for rounding in (-1.0, 1e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4)]
    ).any(0)
    free, missing = [True] * len(mine), 0
    for row, alike in zip(theirs, near, strict=True):
        at = next((i for i in alike.nonzero().flatten().tolist() if free[i]), None)
        if at is None and missing < 20:  # one by one, which takes long
            at = next((i for i, one in enumerate(mine) if free[i] and _adds_up(one, row, tolerance)), None)
        if at is None:
            missing += 1
        else:
            free[at] = False
    return len(theirs) > missing and missing <= max(0, len(theirs) - len(mine))


def _adds_up(record: Tensor, row: Tensor, tolerance: float) -> bool:
    """Whether weights are those of a row, of which equal ones may be added up."""
    left: list[float] = row[row > tolerance].tolist()
    for weight in record[record > tolerance].tolist():
        alike: list[list[float]] = [
            [x for x in left if abs(x * times - weight) <= times * tolerance][:times] for times in range(1, 6)
        ]
        of_it = next((each for times, each in enumerate(alike, 1) if len(each) == times), None)
        if of_it is None:
            return False
        for x in of_it:
            left.remove(x)
    return not left


def _near(theirs: Tensor, mine: Tensor, rounding: float) -> Tensor:
    """How far each row is from each other one, as sets; weights that differ by `rounding` or less are added up."""
    width = max(mine.shape[-1], theirs.shape[-1])
    found = []
    for rows in (theirs, mine):
        x = torch.nn.functional.pad(rows.sort(-1, descending=True).values, (0, width - rows.shape[-1]))
        begins = torch.nn.functional.pad(x[:, :-1] - x[:, 1:] > rounding * x[:, :-1], (1, 0), value=True)
        x = torch.zeros_like(x).scatter_add(-1, begins.cumsum(-1) - 1, x)
        found.append(x.sort(-1, descending=True).values)
    return torch.cdist(*found, p=torch.inf)


def _name(record: AttentionRecord) -> str:
    return "" if record.site is None else record.site.name.partition("#")[0]


def _is_beside(site: CallSite, module: str) -> bool:
    """Whether a line is of a module that is in the same module as this one."""
    around = site.name.partition("#")[0].rpartition(".")[0]
    return bool(around) and module.startswith(f"{around}.")


def _names(site: CallSite, module: str) -> bool:
    name = site.name.partition("#")[0]
    return f"{module}.".startswith(f"{name}.") or f"{name}.".startswith(f"{module}.")


Known = dict[tuple[int, bool], "Tensor | str"]


def _weights(record: AttentionRecord, known: Known, *, used: bool = True) -> Tensor | str:
    """The weights that met the values, or those of the softmax before they were changed; or the error."""
    key = id(record), used
    if key not in known:
        try:
            known[key] = (record.used_weights() if used else record.weights()).float()
        except headwise.errors.HeadwiseError as error:
            known[key] = f"{type(error).__name__}: {error}"
    return known[key]


def _error(weights: Tensor | str, entry: Entry) -> float | None:
    """The largest difference of a record [B, H, Q, K] and a softmax whose axes are in some order; None if none fits.

    What counts is what the model used: without a column of sinks, with what it did to the weights after the softmax.
    A row whose scores were all masked is 0 in a record, and whatever the model made of it.
    """
    if isinstance(weights, str):
        return None
    used = (
        None if entry.used is None or _only_arranged(entry) else _difference(weights, entry.used.float(), entry.empty)
    )
    return used if used is not None else _difference(weights, entry.rows.float(), entry.empty)


def _only_arranged(entry: Entry) -> bool:
    """Whether the model used the softmax as it is, in another arrangement."""
    rows, used = entry.rows.flatten(), entry.used.flatten()
    return rows.shape == used.shape and (torch.equal(rows, used) or torch.equal(rows.sort().values, used.sort().values))


def _difference(weights: Tensor, rows: Tensor, empty: Tensor) -> float | None:
    if rows.numel() != weights.numel() or rows.shape[-1] != weights.shape[-1]:
        return None
    empty = (
        empty.reshape(rows.shape[:-1]) if empty.numel() == rows[..., 0].numel() else torch.zeros(rows.shape[:-1]).bool()
    )
    best: float | None = None
    for order in itertools.permutations(range(rows.ndim - 1)):
        theirs = rows.permute(*order, -1).reshape(weights.shape)
        free = empty.permute(*order).reshape(weights.shape[:-1]) & ~weights.any(-1)
        difference = (theirs - weights).abs().masked_fill(free[..., None], 0.0).nan_to_num(nan=9.0)
        error = float(difference.max()) if difference.numel() else 0.0
        best = error if best is None else min(best, error)
        if best <= 1e-6:
            break
    return best
