"""Whether the call leaves its arguments unchanged: inputs and masks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import Probe, quiet

FINDINGS = ("input-modified",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    kept_inputs = inputs.each(lambda x: x.clone())
    with quiet():
        probe.interface.run(inputs)
    for name, before in kept_inputs.tensors().items():
        now = getattr(inputs, name)
        if not _same(before, now):
            yield _finding(f"the {name} that was passed" if probe.crosses else "the input", before, now)
    modified: set[str] = set()
    for mask in probe.interface.masks:
        if mask.parameter in modified:
            continue
        inputs = probe.inputs()
        try:
            options = given(probe.interface, mask, inputs, inputs.key_length - 1)
            kept = options[mask.parameter].clone()
            with quiet():
                probe.interface.run(inputs, given=options)
        except Exception:  # other checks report whether it runs with this mask
            continue
        if not _same(kept, options[mask.parameter]):
            modified.add(mask.parameter)
            yield _finding(f"the mask {mask.parameter!r}", kept, options[mask.parameter])


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _finding(what: str, before: Tensor, after: Tensor) -> Finding:
    if before.shape != after.shape:
        evidence = f"after the call {what} has shape {list(after.shape)}; before, it was {list(before.shape)}"
        changed, of = before.numel(), before.numel()
    else:
        changed, of = int((before != after).sum()), before.numel()
        evidence = f"the call changed {what} in place: {changed} of its {of} numbers"
    return Finding(
        "input-modified",
        "bug",
        evidence,
        "use operations that make a new tensor (x = x + y, masked_fill) on the caller's tensors, or clone() them first",
        numbers={"changed": changed, "of": of},
    )
