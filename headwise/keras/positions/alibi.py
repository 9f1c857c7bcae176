"""ALiBi: scores decrease in proportion to the distance, with a different slope for each head."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from headwise.keras.call import Tensor, precision
from headwise.keras.positions.scheme import Positions, distances, placed
from headwise.keras.saving import PACKAGE
from headwise.masks import Mask
from headwise.nn import positions as torch_positions
from headwise.nn.positions.alibi import looks_backwards


@keras.saving.register_keras_serializable(PACKAGE)
class Alibi(Positions, twin=torch_positions.Alibi):
    """Attention with linear biases. Press et al. 2022, §3. See `headwise.nn.positions.Alibi`.

        bias[h, i, j] = -m_h · |i - j|,   m_h = 2^(-max_bias · h / H),  h = 1 … H

    If the mask is causal and the lengths are known before the call, one bias [1|B, H, 1, K] serves all queries, m_h ·
    (j - last). For each query it differs from the formula by a constant, which does not change the softmax.

    Args: as of `headwise.nn.positions.Alibi`.

    Raises:
        ArgumentError: num_heads or max_bias is not positive.
    """

    has_bias = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        twin = torch_positions.Alibi(**vars(o))  # the twin checks the options and has the numbers
        self.num_heads, self.max_bias = twin.num_heads, twin.max_bias
        self._slopes = twin.slopes.cpu().numpy()

    def bias(
        self,
        q: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the bias (see `Positions.bias`): [1|B, H, 1, K] for a causal mask; float32, or float64 if q is."""
        apart = distances(q, query_ids, key_ids)
        q_len, k_len = q.shape[-2], key_ids.shape[-1]
        if None not in (q_len, k_len) and looks_backwards(mask, q_len, k_len):
            keys = ops.expand_dims(placed(q, key_ids), -2)
            distance = ops.max(keys, axis=-1, keepdims=True) - keys  # the distance from the last key
        else:
            distance = ops.abs(apart)
        # Up to here these are integers, so differences of large positions are exact.
        slopes = np.reshape(-self._slopes, (-1,) + (1,) * (len(q.shape) - 2))
        return ops.cast(distance, precision(q)) * ops.cast(slopes, precision(q))
