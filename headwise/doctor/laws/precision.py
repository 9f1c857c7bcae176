"""In another precision the module gives the same, and large scores give finite numbers.

It is run in fp16, bf16 and float64; with inputs that make large scores; and, if it was given in half precision, in the
example's own call, since whether a lowest number as a mask becomes -inf depends on the size of the scores.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import in_dtype, tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.lines import last_line
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.listen import Scores, Softmaxes
from headwise.doctor.probing.masking import hide, hiding, left_padding
from headwise.doctor.probing.probe import Probe, gap, quiet, scaled, sentence
from headwise.doctor.subject import foreign_backend
from headwise.language import Sentence

FINDINGS = ("fails-in-half", "fails-in-double", "mask-overflows-half", "softmax-half", "softmax-unstable")

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "float64"}
_LOW = (torch.float16, torch.bfloat16)


def check(patient: Patient) -> Iterator[Finding]:
    yield from _example(patient)
    probe = Probe(patient)
    inputs = probe.inputs()
    expected = probe.answers(inputs)
    if not expected.isfinite().all():
        raise NotChecked("some of its numbers are NaN or infinite in float32, too")
    yield from _cast_down(probe, inputs)
    if patient.has_softmax:
        yield from _large(patient, probe, inputs)
    if foreign_backend(patient.module):
        raise NotChecked("it computes in its own dtype, whatever the dtype of its inputs")
    failed = False
    for dtype in _NAMES:
        other = Probe(patient)
        in_dtype(other.module, dtype)
        out = other.attempt(_to(inputs, dtype))
        said = _what_is_wrong(out, dtype)
        if isinstance(out, Exception) and dtype is torch.float16 and "overflow" in str(out):
            yield _overflows(patient, "its own mask", said)
        elif said and (dtype is not torch.bfloat16 or not failed):
            yield _fails(dtype, said, out)
        elif dtype is torch.float16 and isinstance(out, Tensor):
            yield from _masks(patient, probe, other, inputs)
            yield from _softmax(patient, other, inputs, expected)
        failed |= bool(said) and (isinstance(out, Exception) or out.dtype == dtype)


def _to(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return inputs.each(lambda x: x.to(dtype))


def _what_is_wrong(out: Tensor | Exception, dtype: torch.dtype) -> str:
    """What is wrong with an output in another dtype; "" also where this machine lacks an operation."""
    if isinstance(out, Exception):
        missing = "not implemented for" in str(out) or isinstance(out, NotImplementedError)
        return "" if missing else Sentence("it raises {sentence}").format(sentence=sentence(out))
    if out.dtype != dtype:
        return Sentence("its output is {dtype}").format(dtype=str(out.dtype).removeprefix("torch."))
    broken = int((~out.isfinite()).sum())
    return (
        Sentence("{broken} of its {of} numbers are NaN or infinite").format(broken=broken, of=out.numel())
        if broken
        else ""
    )


def _fails(dtype: torch.dtype, what: str, out: Tensor | Exception) -> Finding:
    raised = isinstance(out, Exception)
    return Finding(
        "fails-in-double" if dtype is torch.float64 else "fails-in-half",
        "risk" if raised or out.dtype == dtype else "note",
        Sentence("with parameters and inputs in {names} {what}").format(names=_NAMES[dtype], what=what),
        "give new tensors the dtype of their inputs (x.new_zeros, dtype=x.dtype), and keep constants in buffers or "
        "as Python numbers; what is computed in float32 on the way goes back by .to(x.dtype)",
        last_line(out) if raised else None,
    )


def _overflows(patient: Patient, what: str, said: str) -> Finding:
    return Finding(
        "mask-overflows-half",
        "risk" if patient.in_half else "note",
        Sentence("in fp16 {what} fails: {said}").format(what=what, said=said),
        "fill with torch.finfo(scores.dtype).min or -inf, not with a number such as -1e9 that fp16 cannot hold",
    )


def _masks(patient: Patient, probe: Probe, half: Probe, inputs: Inputs) -> Iterator[Finding]:
    ways = [("a mask that hides key 1", options) for options in hiding(inputs, 1)]
    if not probe.rectangular:
        padded, causal = left_padding(inputs), hide(inputs).tril()
        ways.append(("padding on the left", {"padding": padded}))
        ways.append(("padding on the left with a causal mask", {"padding": padded, "allowed": causal}))
    for what, options in ways:
        usual = probe.attempt(inputs, **options)
        if isinstance(usual, Exception) or not usual.isfinite().all():
            continue
        out = half.attempt(_to(inputs, torch.float16), **options)
        said = _what_is_wrong(out, torch.float16)
        if said and isinstance(out, Exception) and "overflow" not in str(out):
            yield _fails(torch.float16, Sentence("it runs, but with a mask {said}").format(said=said), out)
        elif said:
            yield _overflows(patient, what, said)
        if said:
            return


def _heard(probe: Probe, inputs: Inputs) -> tuple[Tensor | Exception, list[Scores]]:
    """The output, and its softmaxes in half precision."""
    with Softmaxes() as seen:
        out = probe.attempt(inputs)
    return out, [x for x in seen.heard if x.dtype in _LOW]


def _softmax(patient: Patient, half: Probe, inputs: Inputs, expected: Tensor) -> Iterator[Finding]:
    out, low = _heard(half, _to(inputs, torch.float16))
    if low and isinstance(out, Tensor):
        error = gap(expected, out.float())
        yield Finding(
            "softmax-half",
            "risk" if patient.in_half else "note",
            Sentence(
                "in fp16 the softmax is also computed in fp16; the output is off by up to {error:.2g} of its size"
            ).format(error=error),
            "softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype), or scaled_dot_product_attention",
            where=low[0].where,
        )


def _cast_down(probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """A softmax that a float32 module computes in half precision."""
    for x in _heard(probe, inputs)[1][:1]:
        kind = str(x.dtype).removeprefix("torch.")
        yield Finding(
            "softmax-half",
            "bug",
            Sentence("in a {dtype} module the scores are cast to {kind} before the softmax{more}").format(
                dtype=str(inputs.query.dtype).removeprefix("torch."),
                kind=kind,
                more=", where scores above 65504 become infinite" if kind == "float16" else ", with 8 bits each",
            ),
            "compute the softmax in float32, and cast its result if needed",
            x.where,
        )


def _large(patient: Patient, probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """A softmax that overflows."""
    for factor in (30.0, 1e3):
        out = probe.attempt(scaled(inputs, factor))
        if isinstance(out, Tensor) and not out.isfinite().all():
            yield Finding(
                "softmax-unstable",
                patient.severity("softmax-unstable: in float32", "bug"),
                Sentence("inputs times {factor:g} make {rows} of {of} rows NaN or infinite in float32").format(
                    factor=factor, rows=int((~out.isfinite().all(-1)).sum()), of=out[..., 0].numel()
                ),
                "subtract the row's maximum before exp, as torch.softmax does",
            )
            return


def _example(patient: Patient) -> Iterator[Finding]:
    """The example's own call of a module in half precision: NaN or infinity that float32 does not give."""
    kinds = {x.dtype for x in patient.original.parameters() if x.is_floating_point()}
    if patient.example is None or len(kinds) != 1 or not kinds <= set(_LOW):
        return
    kind, outs = kinds.pop(), []
    for dtype in (kind, torch.float32):
        args, named = tree_map_only(Tensor, functools.partial(_cast, dtype), patient.example)
        try:
            with torch.no_grad(), quiet():
                raw = at_rest(patient.original).cpu().to(dtype)(*args, **named)
            outs.append(next(x for _, x in tensors_in(raw)))
        except Exception:
            return
    low, high = (x.isfinite() for x in outs)
    if low.shape != high.shape or not bool(high.all()) or bool(low.all()):
        return
    rows, of = int((~low).flatten(0, -2).any(-1).sum()), low.flatten(0, -2).shape[0]
    masked = bool(patient.interface.masks)
    yield Finding(
        "mask-overflows-half" if masked else "softmax-unstable",
        "bug",
        Sentence(
            "the example's own call in {dtype} gives NaN or infinity in {rows} of {of} rows; in float32 all are finite"
        ).format(dtype=str(kind).removeprefix("torch."), rows=rows, of=of),
        "clamp the masked scores to the lowest number of their dtype, and take the softmax in float32"
        if masked
        else "take the softmax in float32, and scale queries before the product",
        patient.where,
    )


def _cast(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x.clone().cpu().to(dtype if x.is_floating_point() else x.dtype)
