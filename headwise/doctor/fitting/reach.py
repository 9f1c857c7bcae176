"""Which of a module's weights its output depends on: a reading that lacks one of them cannot give the output.

So the search for deviations leaves such readings out: those of one layer of a model, or of a layer with a feed-forward
part or a learned bias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.fitting.observed import Observed, relative_error, run
from headwise.doctor.fitting.projections import Projections

_ENTRIES = 8  # of a weight, by which it is recognised in a reading
_KNOWN = re.compile(r"norm|freq|theta|rope|rotar|slope|alibi", re.IGNORECASE)  # what variants have without a reading
_REACHED = 1e-3  # relative change of the output; a smaller one may be lost in the tolerance of a match


def weights_that_count(seen: Observed) -> dict[str, Tensor]:
    """A few entries of each matrix that changes the output when its entries change places.

    A matrix that is constant or the identity is left out: it may do nothing as it is, and only then a reading without
    it gives the output.
    """
    found = {}
    for name, weight in _matrices(seen):
        kept = weight.detach().clone()
        flat = kept.flatten()
        with torch.no_grad():
            weight.copy_(flat.roll(1).view_as(kept))
            try:
                moved = run(seen.interface, seen.given)
            except Exception:  # as for the observation: the user's code may raise anything
                moved = None
            finally:
                weight.copy_(kept)
        if moved is not None and relative_error(moved, seen.output) > _REACHED:
            found[name] = flat[:: max(len(flat) // _ENTRIES, 1)].double()
    return found


def holds(reading: Projections, weights: dict[str, Tensor]) -> bool:
    """Whether a reading is made of all of these; a bias with a row per head is a matrix, too."""
    r = reading
    parts = (r.q, r.k, r.v, r.o, r.q_bias, r.k_bias, r.v_bias, r.o_bias)
    whole = torch.cat([x.flatten() for x in parts if x is not None])
    return all(bool(torch.isin(entries, whole).all()) for entries in weights.values())


def _matrices(seen: Observed) -> Iterator[tuple[str, Tensor]]:
    module = seen.interface.module
    if any("parametrizations" in name or name.endswith(("_g", "_v", "_orig")) for name, _ in module.named_parameters()):
        return  # its matrices are made of others
    for name, weight in module.named_parameters():
        if _KNOWN.search(f"{type(module.get_submodule(name.rpartition('.')[0])).__name__}.{name}"):
            continue
        if weight.ndim >= 2 and weight.is_floating_point() and weight.numel() > 1:
            square = weight.ndim == 2 and weight.shape[0] == weight.shape[1]
            identity = square and torch.equal(weight, weight.flatten()[0] * torch.eye(len(weight)).to(weight))
            if not identity and bool((weight != weight.flatten()[0]).any()):
                yield name, weight
