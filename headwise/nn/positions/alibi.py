"""ALiBi: scores are lowered in proportion to the distance, with a different slope for each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.masks import Mask
from headwise.nn.options import positive, whole
from headwise.nn.positions.scheme import Positions, check_ids, distances


class Alibi(Positions):
    """Attention with linear biases. Press et al. 2022, §3.

        bias[h, i, j] = -m_h · |i - j|,   m_h = 2^(-max_bias · h / H),  h = 1 … H

    if H is a power of two. Otherwise the slopes of the next lower power of two come first, and then every second slope
    of the next higher power of two (as in the authors' code, BLOOM and MPT).

    If the tokens of each row are consecutive, with padding only before or after them, an attention module passes the
    slopes m_h to `headwise.attention`, which needs no tensor of biases. Otherwise (with `position_ids`, a second
    sequence, padding between tokens, or padding that cannot be checked, on a GPU or in torch.compile) the module calls
    `bias`:

    If the mask is causal (no query sees later keys), the bias is [1|B, H, 1, K] (1 or B rows), m_h · (j - last): each
    row differs from the formula by a constant, which does not change the softmax, and memory stays linear. Positions
    must then not decrease from one key that a query sees to a later key. With any other mask, or None, the bias is
    [1|B, H, Q, K].

    Args:
        num_heads: H, the number of query heads; any number.
        max_bias: see the formula; 8 in the paper. MPT calls it alibi_bias_max.

    Raises:
        ArgumentError: num_heads or max_bias is not positive.
    """

    slopes: Tensor  # [H] float32

    def __init__(self, num_heads: int, max_bias: float = 8.0) -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        self.max_bias = float(positive("max_bias", max_bias))
        self._register_constants()

    def bias(
        self,
        q_BHQD: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the bias [1|B, H, Q, K], or [1|B, H, 1, K] for a causal mask; float32, or float64 for float64 q."""
        check_ids("query_ids", query_ids, q_BHQD.shape[0], q_BHQD.shape[2])
        check_ids("key_ids", key_ids, q_BHQD.shape[0], key_ids.shape[-1])
        dtype = torch.promote_types(q_BHQD.dtype, torch.float32)
        if looks_backwards(mask, q_BHQD.shape[2], key_ids.shape[-1]):
            distance = (key_ids.amax(-1, keepdim=True) - key_ids)[..., None, :]  # the distance from the last key
            distance = distance[None, None] if distance.ndim == 2 else distance[:, None]
        else:
            distance = distances(q_BHQD, query_ids, key_ids).abs()
        # Up to here these are integers, so differences of large positions are exact.
        return distance.to(dtype) * -self.slopes.to(dtype)[:, None, None]

    def slopes_of_heads(self) -> Tensor | None:
        """Return the slopes [H] for `headwise.attention`; None if a subclass overrides `bias`."""
        return self.slopes if type(self).bias is Alibi.bias else None

    def extra_repr(self) -> str:
        return f"{self.num_heads}" + ("" if self.max_bias == 8.0 else f", max_bias={self.max_bias}")

    def _constants(self) -> dict[str, Tensor]:
        return {"slopes": torch.tensor(slopes(self.num_heads, self.max_bias), dtype=torch.float32, device="cpu")}


def looks_backwards(mask: Mask | Tensor | None, q_len: int, k_len: int) -> bool:
    """Return whether the mask certainly hides later keys from every query, if the last query is at the last key."""
    if not isinstance(mask, Mask):
        return False
    for part in mask.conjuncts:
        if part.band() is not None:
            band = part.align(q_len, k_len).band()
            if band is not None and band[1] <= k_len - q_len:
                return True
    return False


def slopes(num_heads: int, max_bias: float = 8.0) -> list[float]:
    """Compute the slopes m_h of `Alibi`: a list of `num_heads` numbers."""
    below = 2 ** math.floor(math.log2(num_heads))
    first = [2.0 ** (-max_bias * h / below) for h in range(1, below + 1)]
    between = [2.0 ** (-max_bias * h / (2 * below)) for h in range(1, 2 * below + 1, 2)]
    return first + between[: num_heads - below]
