"""What the doctor understood of a module, and the evidence it had: for the top of its report."""

from __future__ import annotations

from headwise.doctor.finding import ALL_EVIDENCE
from headwise.doctor.foreign import foreign_backend
from headwise.doctor.patient import Patient
from headwise.doctor.reading.scale import measure
from headwise.doctor.reading.site import Site


def understood(patient: Patient) -> tuple[str, ...]:
    """A line each: how it is called, its masks, its heads, and each attention found."""
    anatomy = patient.anatomy
    lines = patient.interface.describe(heads=anatomy is None or all(site.grid is None for site in anatomy.sites))
    if anatomy is not None:
        twins = anatomy.again or (None,) * len(anatomy.sites)
        told = [_site(site, twin) for site, twin in zip(anatomy.sites, twins, strict=True)]
        lines += [
            f"{line} (seen {told.count(line)} times)" if told.count(line) > 1 else line for line in dict.fromkeys(told)
        ]
    return tuple(lines)


def evidence(patient: Patient) -> str:
    """What the diagnosis rests on, in a sentence; "" if it ended before its operations were looked at."""
    backend = foreign_backend(patient.module)
    if backend:
        return f"examined on {backend} by behaviour and gradients; its operations are not visible to torch"
    if "anatomy" not in patient.__dict__:
        return ""
    if patient.anatomy is None:
        return f"examined by behaviour and gradients; its operations could not be traced: {patient.anatomy_problem}"
    return ALL_EVIDENCE


def _site(site: Site, twin: Site | None) -> str:
    if site.grid is None:
        return f"softmax at {site.softmax.where}: the layout of its scores is not that of attention"
    heads, width = len(site.grid.heads), site.q.shape[-1]
    shared = len(set(site.grid.key_heads.tolist()))
    parts = [f"{heads} head{'s' if heads > 1 else ''} of width {width}"]
    if 0 < shared < heads:
        parts.append(f"{shared} of keys and values")
    factor = (
        measure(site, twin)
        if twin is not None and twin.grid is not None and twin.scores.shape == site.scores.shape
        else None
    )
    if factor is not None:
        parts.append(
            f"scores times {factor:.4f}" + (f" = 1/sqrt({width})" if abs(factor * width**0.5 - 1) < 2e-3 else "")
        )
    if site.softmax.by_hand:
        parts.append("softmax computed from basic operations")
    return f"attention at {site.softmax.where}: {', '.join(parts)}"
