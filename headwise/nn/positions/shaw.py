"""Shaw's relative positions: a learned vector for each distance, added to the keys and, if requested, to the values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.call import suspend_autocast
from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.nn.options import check_known, whole
from headwise.nn.positions.scheme import Positions, distances


class ShawRelative(Positions):
    """Relative position representations. Shaw et al. 2018, equations 3 and 4, split as in equation 5 (§3.3).

        e_ij = scale · q_i · (k_j + a^K_(clip(j - i))),     z_i = Σ_j α_ij (v_j + a^V_(clip(j - i)))

    The attention module computes the terms of k_j and v_j. `bias` returns scale · q_i · a^K, `values` returns Σ_j α_ij
    a^V. Neither makes a tensor [Q, K, D]: queries are multiplied with the table, weights are summed for each distance.

    Args:
        head_dim: D, the dimensions of a head's keys. All heads share the tables (§3.3).
        max_distance: k: distances are clipped to -k … k; or (left, right): to -left … right, as in Wav2Vec2-BERT.
        values: whether there is a^V. It needs the weights, so no fused kernel computes it.
        value_dim: E, the dimensions of a head's values; None = D.

    The tables are `distance_embedding.weight` [left + right + 1, D], as in Hugging Face, and `value_embedding.weight`
    [.., E], in the order of distances -left … right.

    Raises:
        ArgumentError: a size that is not positive.
    """

    def __init__(
        self,
        head_dim: int,
        max_distance: int | tuple[int, int],
        values: bool = False,
        *,
        value_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim)
        self.left, self.right = _sides(max_distance)
        check_known("values", values, (False, True))
        self.uses_values = values
        if value_dim is not None and not values:
            raise ArgumentError(
                f"value_dim: expected values=True with it. Received: value_dim={value_dim}, values={values}"
            )
        self.value_dim = head_dim if value_dim is None else whole("value_dim", value_dim)
        count = self.left + self.right + 1
        self.distance_embedding = nn.Embedding(count, head_dim)
        self.value_embedding = nn.Embedding(count, self.value_dim) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the tables again, by Glorot's uniform distribution, as in the authors' code (tensor2tensor)."""
        nn.init.xavier_uniform_(self.distance_embedding.weight)
        if self.value_embedding is not None:
            nn.init.xavier_uniform_(self.value_embedding.weight)

    def bias(
        self,
        q_BHQD: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the bias scale · q_i · a^K_(clip(j - i)): [B, H, Q, K], float32 (float64 for float64 q)."""
        rows = self._rows(q_BHQD, query_ids, key_ids)
        dtype = torch.promote_types(q_BHQD.dtype, torch.float32)
        with suspend_autocast(q_BHQD.device):
            per_distance = q_BHQD.to(dtype) @ self.distance_embedding.weight.to(dtype).mT
        per_distance = per_distance * (self.head_dim**-0.5 if scale is None else scale)
        return per_distance.gather(-1, rows.expand(*q_BHQD.shape[:3], -1))

    def values(self, weights_BHQK: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor | None:
        """Compute Σ_j α_ij a^V_(clip(j - i)): [B, H, Q, E] in the weights' dtype; None if the scheme has no a^V."""
        if self.value_embedding is None:
            return None
        rows = self._rows(weights_BHQK, query_ids, key_ids)
        table = self.value_embedding.weight
        dtype = torch.promote_types(weights_BHQK.dtype, torch.float32)
        weights = weights_BHQK.to(dtype)
        with suspend_autocast(weights.device):
            per_distance = weights.new_zeros(*weights.shape[:3], table.shape[0])
            per_distance = per_distance.scatter_add(-1, rows.expand_as(weights), weights)
            return (per_distance @ table.to(dtype)).to(weights_BHQK.dtype)

    def extra_repr(self) -> str:
        distance = str(self.left) if self.left == self.right else f"({self.left}, {self.right})"
        return f"{self.head_dim}, max_distance={distance}, values={self.uses_values}"

    def _rows(self, x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """Return which row of the tables each pair of query and key uses, int64 [1|B, 1, Q, K]."""
        return distances(x, query_ids, key_ids).clamp(-self.left, self.right).long() + self.left


def _sides(max_distance: int | tuple[int, int]) -> tuple[int, int]:
    if not isinstance(max_distance, tuple):
        return (whole("max_distance", max_distance),) * 2
    if len(max_distance) != 2:
        raise ArgumentError(f"max_distance: expected an int or (left, right). Received: max_distance={max_distance}")
    left, right = (whole("max_distance", side, least=0) for side in max_distance)
    return left, right
