"""Heads of two parts, one rotated and one not, that are put together in different orders in queries and keys.

In multi-head latent attention a query is cat(plain, rotated). If a key is cat(rotated, plain), rotated features meet
plain ones, and the scores depend on the positions themselves, not on the distance. The same token at two positions
shows which features depend on the position.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import look

FINDINGS = ("rope-asymmetric",)

_LENGTH = 6
_HERE, _THERE = 1, 3  # where the same token is
_APART = 0.5  # the share of the rotated features that meet others; slow angles may be too small to see in some


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes != "self":
        raise NotApplicable("queries and keys are not of the same tokens")
    if all(len(site.projections[name]) == 1 for site in patient.see().sites for name in "qk"):
        raise NotApplicable("no head is put together of several projections")
    for site in look(patient, batch=2, length=patient.interface.length or _LENGTH, edit=_repeated).sites:
        if site.grid is None or min(site.q.shape[2], site.k.shape[2]) <= _THERE:
            continue
        q, k = _moving(site.q), _moving(site.k)
        if not bool(q.any()) or not bool(k.any()) or int((q ^ k).sum()) <= _APART * int((q | k).sum()):
            continue
        yield Finding(
            "rope-asymmetric",
            "bug",
            f"of the {len(q)} features of a head, {_listed(q)} of the queries depend on the position, but {_listed(k)} "
            "of the keys: rotated features are multiplied with features that are not rotated",
            "put the parts of queries and keys together in the same order: cat([plain, rotated]) for both",
            site.product.where,
            numbers={"apart": float((q ^ k).sum())},
        )
        return


def _repeated(inputs: Inputs) -> Inputs:
    def same(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, _THERE] = x[:, _HERE]
        return x

    return inputs.each(same)


def _moving(x: Tensor) -> Tensor:
    """[D]: which features of [B, H, L, D] differ where the token is the same."""
    here, there = x[:, :, _HERE], x[:, :, _THERE]
    factors = (1.0, (there / here).nanmedian(-1, keepdim=True).values)  # a temperature may grow with the position
    apart = [(here * factor - there).abs().amax((0, 1)) > 1e-5 * float(x.abs().max()) for factor in factors]
    return min(apart, key=lambda moved: int(moved.sum()))


def _listed(features: Tensor) -> str:
    at = features.nonzero().flatten()
    whole = torch.equal(at, torch.arange(int(at[0]), int(at[-1]) + 1))
    return f"{int(at[0])} to {int(at[-1])}" if whole else f"{len(at)} others"
