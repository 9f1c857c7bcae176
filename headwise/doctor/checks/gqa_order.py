"""Grouped queries: which key head each query head uses.

H query heads share G key heads in contiguous groups: head h uses key head h // (H / G). `repeat` (or tile) gives h % G
instead, where `repeat_interleave` is meant. It trains, but no checkpoint or fused kernel agrees with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient

FINDINGS = ("gqa-order",)


def check(patient: Patient) -> Iterator[Finding]:
    for site in patient.see().sites:
        grid = site.grid
        if grid is None or bool((grid.key_heads < 0).any()):
            continue
        heads, reads = grid.key_heads.unique(return_inverse=True)
        count, groups = len(reads), len(heads)
        if groups in (1, count) or count % groups:
            continue
        expected = [h // (count // groups) for h in range(count)]
        got = reads.tolist()
        if got == expected:
            continue
        tiled = got == [h % groups for h in range(count)]
        yield Finding(
            "gqa-order",
            "note" if patient.is_library else "bug" if tiled else "risk",
            f"the {count} query heads use the key heads {', '.join(map(str, got))}"
            + (" (tiled)" if tiled else "")
            + f"; expected {', '.join(map(str, expected))}: each key head serves {count // groups} neighbouring query "
            "heads",
            "repeat key and value heads with repeat_interleave(H // G, dim=head), or with expand on a new dimension "
            "after the head",
            site.product.where,
        )
