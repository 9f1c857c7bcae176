"""What the watch makes of a style, beside the truth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import headwise
from headwise.errors import HeadwiseError
from headwise.records import AttentionRecord
from tests.capture.styles.style import NOT_ATTENTION, Style, run

# From best to worst.
OUTCOMES = {
    "exact": "one record for each attention, with the weights that the code used",
    "bounded": "the same within what half precision rounds away",
    "not attention": "it is none, and there is no record of it and no refusal",
    "refused": "no record, and the reason why",
    "not understood": "no record, and a line that names the module",
    "SILENT": "no record, and nothing is said",
    "WRONG": "a record of other weights, a record that cannot be read, a changed output, or an error",
}
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class Outcome:
    """One of `OUTCOMES`, and what there is to say about it."""

    kind: str
    detail: str = ""

    @property
    def reason(self) -> str:
        """Of a refusal, the first words of its reason, without numbers."""
        return re.split(r"[,;:]", self.detail.removeprefix("matmul and softmax: "))[0] if self.kind == "refused" else ""


def outcome(style: Style) -> Outcome:
    """Run a style without and with the watch, and compare what was seen with the truth."""
    model, inputs = style.model(), style.inputs()
    torch.manual_seed(3)
    plain, *_ = run(model, *(x.clone() for x in inputs))
    torch.manual_seed(3)
    try:
        with headwise.watch(model) as seen:
            out, truth, after = run(model, *(x.clone() for x in inputs))
    except Exception as error:  # whatever it is, the code ran without the watch
        return Outcome("WRONG", f"it raised {type(error).__name__}: {error}")
    notes = [note for note in seen.coverage().notes if not note.startswith("no attention was seen")]
    if not torch.allclose(out, plain, rtol=0, atol=1e-5 if notes else 0, equal_nan=True):
        return Outcome("WRONG", f"its output changed by up to {(out - plain).abs().max():.2g}")
    records = [record for record in seen if record.site and record.site.name != "after"]
    lines = [site for site in seen.coverage() if site.name != "after"]
    said = {s: "; ".join(x.how for x in lines if x.status == s) for s in ("refused", "missed", "not attention")}
    said["missed"] = said["missed"] or said["not attention"] or "; ".join(note for note in notes if "not seen" in note)
    try:
        if not _is(seen["after"], after):
            return Outcome("WRONG", "the attention after it has a wrong record")
        alternatives = truth if isinstance(truth, list) else [truth]
        compared = min((_compare(records, each) for each in alternatives), key=lambda found: found.kind == "WRONG")
    except HeadwiseError as error:
        return Outcome("WRONG", str(error))
    if compared.kind != "WRONG" and said["refused"]:
        return Outcome("refused", said["refused"])
    if compared.kind == "none":
        return Outcome("not understood", said["missed"]) if said["missed"] else Outcome("SILENT")
    return compared


def _compare(records: list[AttentionRecord], truth: Any) -> Outcome:
    if isinstance(truth, str) and truth == NOT_ATTENTION:
        shapes = ", ".join(str(list(record.shape)) for record in records)
        return Outcome("WRONG", f"there is a record of it: {shapes}") if records else Outcome(NOT_ATTENTION)
    if not records:
        return Outcome("none")
    truths = [each() if callable(each) else each for each in (truth if isinstance(truth, tuple) else (truth,))]
    truths = [each.detach().nan_to_num(0.0) for each in truths]
    if len(records) == len(truths) and all(map(_is, records, truths)):
        for record, each in zip(records, truths, strict=True):
            causal = not bool(each.triu(1 + each.shape[3] - each.shape[2]).any())
            own = record.extras.used is None  # else a mask after the softmax: the sums of the rows know the other keys
            if own and record.site is not None and record.site.kind == "self" and record.site.causal != causal:
                return Outcome("WRONG", f"it is {'' if causal else 'not '}causal, and the record says the contrary")
        half = any(each.dtype.itemsize < 4 for each in truths)
        return Outcome("bounded" if half else "exact")
    if len(records) > len(truths) and all(any(_is(record, truth) for truth in truths) for record in records):
        return Outcome("WRONG", f"one softmax has {len(records)} records")
    return Outcome("WRONG", _difference(records, truths))


def _is(record: AttentionRecord, truth: Tensor) -> bool:
    weights = record.used_weights()
    return weights.shape == truth.shape and _close(weights, truth)


def _close(weights: Tensor, truth: Tensor) -> bool:
    return torch.allclose(weights.double(), truth.double(), rtol=0, atol=BOUNDS[truth.dtype])


def _difference(records: list[AttentionRecord], truths: list[Tensor]) -> str:
    shapes = [", ".join(str(list(x.shape)) for x in each) for each in (records, truths)]
    if len(records) == len(truths) and shapes[0] == shapes[1]:
        largest = max(float((r.used_weights() - t).abs().max()) for r, t in zip(records, truths, strict=True))
        return f"the weights differ by up to {largest:.2g}"
    return f"the records are {shapes[0]}, the weights {shapes[1]}"
