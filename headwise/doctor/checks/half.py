"""Other dtypes, and large scores: whether it runs in fp16, bf16 and float64, and whether its softmax stays finite."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import in_dtype
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.foreign import foreign_backend
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.listen import Softmaxes
from headwise.doctor.probing.masking import hide, hiding, left_padding
from headwise.doctor.probing.probe import Probe, gap, scaled, sentence

FINDINGS = ("fails-in-half", "fails-in-double", "mask-overflows-half", "softmax-half", "softmax-unstable")

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "float64"}
_LARGE = 1e3
_LARGE_HALF = 30.0


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    expected = probe.answers(inputs)
    if not expected.isfinite().all():
        raise NotChecked("some of its numbers are NaN or infinite in float32, too")
    if patient.has_softmax:
        yield from _large(patient, probe, inputs)
    if foreign_backend(patient.module):
        raise NotChecked("it computes in its own dtype, whatever the dtype of its inputs")
    failed = False
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        other = Probe(patient)
        in_dtype(other.module, dtype)
        out = other.attempt(inputs.each(functools.partial(Tensor.to, dtype=dtype)))
        if isinstance(out, Exception):
            if not _platform(out):
                if dtype is torch.float16 and "overflow" in str(out):
                    yield _overflows(patient, "its own mask", f"it raises {sentence(out)}")
                elif dtype is not torch.bfloat16 or not failed:
                    yield _fails(dtype, f"it raises {sentence(out)}")
                failed = True
        elif out.dtype != dtype:
            yield _fails(dtype, f"its output is {str(out.dtype).removeprefix('torch.')}", "note")
        elif not out.isfinite().all():
            if dtype is not torch.bfloat16 or not failed:
                yield _fails(dtype, f"{int((~out.isfinite()).sum())} of its {out.numel()} numbers are NaN or infinite")
            failed = True
        elif dtype is torch.float16:
            yield from _masks(patient, probe, other, inputs)
            yield from _softmax(patient, other, inputs, expected)
            if patient.has_softmax:
                yield from _large_half(probe, other, inputs)


def _fails(dtype: torch.dtype, what: str, severity: Severity = "risk") -> Finding:
    return Finding(
        "fails-in-double" if dtype is torch.float64 else "fails-in-half",
        severity,
        f"with parameters and inputs in {_NAMES[dtype]} {what}",
        "give new tensors the dtype of their inputs (x.new_zeros, dtype=x.dtype), and keep constants in buffers or "
        "as Python numbers",
    )


def _overflows(patient: Patient, what: str, said: str) -> Finding:
    return Finding(
        "mask-overflows-half",
        "risk" if patient.in_half else "note",
        f"in fp16 {what} fails: {said}",
        "fill with torch.finfo(scores.dtype).min or -inf, not with a number such as -1e9 that fp16 cannot hold",
    )


def _platform(problem: Exception) -> bool:
    """Whether the operation is missing on this machine, and the module is not at fault."""
    return "not implemented for" in str(problem) or isinstance(problem, NotImplementedError)


def _large(patient: Patient, probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """A softmax that overflows."""
    for factor in (30.0, _LARGE):
        out = probe.attempt(scaled(inputs, factor))
        if isinstance(out, Tensor) and not out.isfinite().all():
            fix = "subtract the row's maximum before exp, as torch.softmax does"
            severity = patient.severity("softmax-unstable: in float32", "bug")
            yield _unstable(severity, factor, out, "in float32", fix)
            return


def _large_half(probe: Probe, half: Probe, inputs: Inputs) -> Iterator[Finding]:
    """Scores that overflow fp16 although the output is small: the scale is applied after the product."""
    large = scaled(inputs, _LARGE_HALF)
    expected, out = probe.attempt(large), half.attempt(large.each(lambda x: x.half()))
    if isinstance(expected, Exception) or isinstance(out, Exception) or expected.abs().amax() > 6e4:
        return
    if expected.isfinite().all() and not out.isfinite().all():
        fix = "scale queries (and keys) before their product, so that the scores stay below 65,504"
        yield _unstable("risk", _LARGE_HALF, out, "in fp16, but none in float32", fix)


def _unstable(severity: Severity, factor: float, out: Tensor, where: str, fix: str) -> Finding:
    broken = int((~out.isfinite().all(-1)).sum())
    return Finding(
        "softmax-unstable",
        severity,
        f"inputs times {factor:g} make {broken} of {out.shape[0] * out.shape[1]} rows NaN or infinite {where}",
        fix,
        numbers={"factor": factor, "rows": broken},
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
        out = half.attempt(inputs.each(lambda x: x.half()), **options)
        said = ""
        if isinstance(out, Exception):
            if _platform(out):
                continue
            if "overflow" not in str(out):
                yield _fails(torch.float16, f"it runs, but with a mask it raises {sentence(out)}")
                return
            said = f"it raises {sentence(out)}"
        elif not out.isfinite().all():
            said = f"{int((~out.isfinite().all(-1)).sum())} rows are NaN or infinite; in float32 none is"
        if said:
            yield _overflows(patient, what, said)
            return


def _softmax(patient: Patient, half: Probe, inputs: Inputs, expected: Tensor) -> Iterator[Finding]:
    small = inputs.each(lambda x: x.half())
    try:
        with Softmaxes() as seen:
            out = half.output(small)
    except Exception:
        return
    low = [x for x in seen.heard if x.dtype in (torch.float16, torch.bfloat16)]
    if low:
        error = gap(expected, out.float())
        yield Finding(
            "softmax-half",
            "risk" if patient.in_half else "note",
            f"in fp16 the softmax is also computed in fp16; the output is off by up to {error:.2g} of its size",
            "softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype), or scaled_dot_product_attention",
            where=low[0].where,
            numbers={"error": error},
        )
