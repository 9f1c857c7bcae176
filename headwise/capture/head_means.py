"""The numbers that `monitor` logs for a layer: for each head, means over all queries of a training step's records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.call import Scores
from headwise.masks.bits import row_blocks
from headwise.records import AttentionRecord

Means = dict[str, Tensor]  # name -> one mean per head, [H]


@dataclass
class Sums:
    """Sums of statistics over the rows (queries) of one layer: name -> (sum, number of rows), float64 [2, H]."""

    by_name: dict[str, Tensor]

    @classmethod
    def of(cls, record: AttentionRecord) -> Sums:
        """Compute the sums of one record's statistics, in one pass over its weights."""
        names = ["entropy", "first_visible", *(["learned_sink"] if record.sinks is not None else [])]
        found = record.statistics("lse", *names)
        attends = ~torch.isneginf(found.lse).cpu()
        by_name = {name: _sum(getattr(found, name).cpu(), attends) for name in names}
        choices = _choices(record.call).cpu().double().expand(attends.shape)
        entropy = found.entropy.cpu().double() / choices.clamp(min=2).log()
        return cls({**by_name, "entropy_normalised": _sum(entropy, attends & (choices > 1))})

    def __add__(self, other: Sums) -> Sums:
        return Sums({name: x + other.by_name[name] for name, x in self.by_name.items()})

    def means(self) -> Means:
        """Return the means over the rows; 0 if there are no rows, as in an empty batch."""
        return {name: total / count.clamp(min=1) for name, (total, count) in self.by_name.items()}


def _sum(x: Tensor, where: Tensor) -> Tensor:
    """Sum x [B, H, Q] over the rows where `where` is True: (the sums, the numbers of these rows), [2, H]."""
    return torch.stack([x.double().masked_fill(~where, 0.0), where.double()]).sum((1, 3))


def _choices(call: Scores) -> Tensor:
    """Count the keys to which each query may attend, including a learned sink: broadcasts to [B, H, Q]."""
    counts = [call.allowed(rows).sum(-1) for rows in row_blocks(call.shape)]
    return torch.cat(counts, dim=2) + (call.sinks is not None)


def gradient_norm(model: nn.Module) -> float | None:
    """Compute the L2 norm of all gradients of a model as one vector, in float32 or better; None if there are none.

    torch.nn.utils.get_total_norm does the same, but sums half-precision gradients in half precision.
    """
    norms = []
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        norm = torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
        norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)  # of a sharded parameter
    if not norms:
        return None
    return float(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])))
