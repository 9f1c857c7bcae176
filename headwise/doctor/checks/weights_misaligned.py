"""Weights that meet the values of other keys: a column dropped at the wrong end, a shift by one.

With sinks a softmax has one column more than there are values. `weights[..., 1:]` drops it if it was put first; if it
was put last, the first key is dropped instead, and every weight meets the value of the key before its own. The marks
say which key each weight is of, and which token each value.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import pair_tokens
from headwise.doctor.reading.site import Site

FINDINGS = ("weights-misaligned",)


def check(patient: Patient) -> Iterator[Finding]:
    for site in patient.see().sites:
        offset = _offset(site)
        if not offset:
            continue
        met = site.contraction
        assert met is not None
        other = f"{abs(offset)} position{'s' if abs(offset) > 1 else ''} {'later' if offset > 0 else 'earlier'}"
        yield Finding(
            "weights-misaligned",
            "bug",
            f"the weight of each key is multiplied with the value of the token {other}",
            "drop the column that was added, and no other: weights[..., :-1] if a sink was put last, weights[..., 1:] "
            "if it was put first",
            met.product.where,
            numbers={"offset": float(offset)},
        )


def _offset(site: Site) -> int:
    """By how many positions all weights miss their values; 0 if not all by the same."""
    met = site.contraction
    if met is None or met.side is not None or site.grid is None:
        return 0
    keys = pair_tokens(site.product, met.weights.source)[1 if site.queries_left else 0]
    values = marks.one(met.values.token, -1 if met.left else -2)
    values = (values[:, None, :] if met.left else values[:, :, None]).expand(keys.shape)
    known = (keys >= 0) & (values >= 0) & (marks.example_of(keys) == marks.example_of(values))
    apart = (marks.position_of(values) - marks.position_of(keys))[known]
    return int(apart[0]) if apart.numel() and torch.equal(apart, apart[:1].expand_as(apart)) else 0
