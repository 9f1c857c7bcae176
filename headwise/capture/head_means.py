"""What a monitor says of a layer: one number a head, as means over the rows of all the records of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headwise.records import AttentionRecord

Means = dict[str, Tensor]  # name -> one mean a head, [H]

# Cells of a mask that are counted at once.
BLOCK_CELLS = 2**24


@dataclass
class Sums:
    """Sums over the rows of one layer, float64 [H] each."""

    rows: Tensor  # how many attend to anything
    choosing: Tensor  # how many of them may attend to more than one key
    entropy_normalised: Tensor  # over those
    others: dict[str, Tensor] = field(default_factory=dict)  # over the rows that attend to anything

    @classmethod
    def of(cls, record: AttentionRecord) -> Sums:
        """Of one record; one pass over its weights."""
        names = ["entropy", "first_visible", *(["learned_sink"] if record.sinks is not None else [])]
        found = record.statistics("lse", *names)
        values = {name: getattr(found, name).cpu().double() for name in names}  # [B, H, Q]
        attends = ~torch.isneginf(found.lse).cpu()
        choices = _choices(record).cpu().double().expand(attends.shape)
        choosing = attends & (choices > 1)
        normalised = values["entropy"] / choices.clamp(min=2).log()
        return cls(
            attends.double().sum((0, 2)),
            choosing.double().sum((0, 2)),
            normalised.masked_fill(~choosing, 0.0).sum((0, 2)),
            {name: x.sum((0, 2)) for name, x in values.items()},  # the other rows have 0
        )

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.rows + other.rows,
            self.choosing + other.choosing,
            self.entropy_normalised + other.entropy_normalised,
            {name: x + other.others[name] for name, x in self.others.items()},
        )

    def means(self) -> Means:
        """A head that nothing is known of has 0, in an empty batch for example."""
        means = {name: x / self.rows.clamp(min=1) for name, x in self.others.items()}
        normalised = self.entropy_normalised / self.choosing.clamp(min=1)
        return {"entropy": means.pop("entropy"), "entropy_normalised": normalised, **means}


def _choices(record: AttentionRecord) -> Tensor:
    """Between how many keys each query chooses, the learned sink among them: broadcasts to [B, H, Q]."""
    batch, heads, q_len, k_len = record.shape
    device, mask, bias = record.q.device, record.mask, record.bias
    sink = int(record.sinks is not None)
    if mask is None and bias is None:
        return torch.tensor(k_len + sink, device=device)
    cols = torch.arange(k_len, device=device)
    counts = []
    for rows in torch.arange(q_len, device=device).split(max(1, BLOCK_CELLS // max(1, batch * heads * k_len))):
        allowed = torch.ones((1, 1, 1, k_len), dtype=torch.bool, device=device)
        if mask is not None:
            allowed = allowed & mask.cells(rows, cols)
        if bias is not None:
            tile = bias[(None,) * (4 - bias.ndim)]
            allowed = allowed & ((tile[:, :, rows] if tile.shape[2] > 1 else tile) > -torch.inf)
        counts.append(allowed.sum(-1).expand(-1, -1, len(rows)))
    return torch.cat(counts, dim=2) + sink if counts else torch.zeros((1, 1, 0), device=device)


def gradient_norm(model: nn.Module) -> float | None:
    """The L2 norm of all gradients of a model as one vector, in float32 or better; None if there are none.

    What torch.nn.utils.get_total_norm computes, but that it sums half-precision gradients in half precision.
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
