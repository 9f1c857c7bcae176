"""Which of a module's weights its output depends on: a reading that lacks one of them cannot give the output.

So the search for deviations leaves such readings out: those of one layer of a model, or of a layer with a feed-forward
part or a learned bias.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.fitting.observed import Observed, relative_error, run
from headwise.doctor.fitting.projections import Projections

_ENTRIES = 8  # of a weight, by which it is recognised in a reading
_REACHED = 1e-3  # relative change of the output; a smaller one may be lost in the tolerance of a match


def weights_that_count(seen: Observed) -> dict[str, Tensor]:
    """A few entries of each matrix that changes the output when it is changed by a part.

    A matrix that is constant or the identity is left out: it may do nothing as it is, and only then a reading without
    it gives the output.
    """
    found = {}
    for name, weight in _matrices(seen):
        kept = weight.detach().clone()
        noise = torch.randn(kept.shape, generator=torch.Generator().manual_seed(17)).to(kept)
        with torch.no_grad():
            weight.add_(0.3 * kept.std() * noise)
            try:
                moved = run(seen.interface, seen.given)
            except Exception:  # as for the observation: the user's code may raise anything
                moved = None
            finally:
                weight.copy_(kept)
        if moved is not None and relative_error(moved, seen.output) > _REACHED:
            flat = kept.flatten()
            found[name] = flat[:: max(len(flat) // _ENTRIES, 1)].double()
    return found


def holds(reading: Projections, weights: dict[str, Tensor]) -> bool:
    """Whether a reading is made of all of these."""
    whole = torch.cat([x.flatten() for x in (reading.q, reading.k, reading.v, reading.o) if x is not None])
    return all(bool(torch.isin(entries, whole).all()) for entries in weights.values())


def _matrices(seen: Observed) -> Iterator[tuple[str, Tensor]]:
    module = seen.interface.module
    if any("parametrizations" in name or name.endswith(("_g", "_v", "_orig")) for name, _ in module.named_parameters()):
        return  # its matrices are made of others
    for name, weight in module.named_parameters():
        if weight.ndim >= 2 and weight.is_floating_point() and weight.numel() > 1:
            square = weight.ndim == 2 and weight.shape[0] == weight.shape[1]
            identity = square and torch.equal(weight, weight.flatten()[0] * torch.eye(len(weight)).to(weight))
            if not identity and bool((weight != weight.flatten()[0]).any()):
                yield name, weight
