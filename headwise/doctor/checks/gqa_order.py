"""Grouped queries: which key head and which value head each query head uses.

H query heads share G key heads in contiguous groups: head h uses key head h // (H / G). `repeat` (or tile) gives h % G
instead, where `repeat_interleave` is meant. It trains, but no checkpoint or fused kernel agrees with it. If keys and
values are repeated in different orders, the weights of one key head mix the values of another.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading.site import Site

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
        values = _values_read(site, groups)
        if values is not None and values != got:
            yield _parted(site, got, values, expected)
            continue
        if got == expected:
            continue
        tiled = got == [h % groups for h in range(count)]
        yield Finding(
            "gqa-order",
            patient.severity("gqa-order: tiled", "bug" if tiled else "risk"),
            f"the {count} query heads use the key heads {', '.join(map(str, got))}"
            + (" (tiled)" if tiled else "")
            + f"; expected {', '.join(map(str, expected))}: each key head serves {count // groups} neighbouring query "
            "heads",
            "repeat key and value heads with repeat_interleave(H // G, dim=head), or with expand on a new dimension "
            "after the head",
            site.product.where,
        )


_FIX = "repeat keys and values the same way: repeat_interleave(H // G, dim=head) for both"


def _values_read(site: Site, groups: int) -> list[int] | None:
    """The value head that each query head uses; None if there are not as many as key heads."""
    if site.contraction is None:
        return None
    first = site.columns("v")[:, 0]
    heads, reads = first.unique(return_inverse=True)
    return reads.tolist() if bool((first >= 0).all()) and len(heads) == groups else None


def _parted(site: Site, keys: list[int], values: list[int], expected: list[int]) -> Finding:
    """Keys and values that are repeated in different orders."""
    met = site.contraction
    assert met is not None
    return Finding(
        "gqa-order",
        "bug",
        f"the {len(keys)} query heads use the key heads {', '.join(map(str, keys))}, but the value heads "
        f"{', '.join(map(str, values))}; expected {', '.join(map(str, expected))} for both: most weights are "
        "multiplied with the values of another head",
        _FIX,
        site.product.where if values == expected else met.product.where,
        numbers={"apart": float(sum(a != b for a, b in zip(keys, values, strict=True)))},
    )
