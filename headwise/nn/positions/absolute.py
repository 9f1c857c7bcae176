"""Absolute positions: a vector for each position, added to the embedding of the token before the first layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.nn.options import check_known, positive, whole
from headwise.nn.positions.scheme import check_integers
from headwise.tracing import is_traced


class Sinusoidal(nn.Module):
    """Sine and cosine waves of M/2 frequencies, one vector for each position. Vaswani et al. 2017, §3.5.

        PE(p, 2i) = sin(p / base^(2i/M)),   PE(p, 2i + 1) = cos(p / base^(2i/M))

    It has no parameters and no maximum position.

    Args:
        dim: M, the dimensions of a vector; even.
        base: the base of the power in the formula; larger = longer waves.
        interleaved: sine and cosine take turns, as in the paper and in DistilBERT; if False, the sines come first and
            then the cosines, as in Marian.

    Raises:
        ArgumentError: dim is odd or not positive.
    """

    def __init__(self, dim: int, *, base: float = 10000.0, interleaved: bool = True) -> None:
        super().__init__()
        if whole("dim", dim, least=2) % 2:
            raise ArgumentError(
                f"dim: expected an even number, because sines and cosines come in pairs. Received: dim={dim}"
            )
        self.dim = dim
        self.base = float(positive("base", base))
        check_known("interleaved", interleaved, (False, True))
        self.interleaved = interleaved

    def forward(self, position_ids: Tensor) -> Tensor:
        """Compute the vectors of positions [S] or [B, S]: float32 [S, M] or [B, S, M]. Cast them before adding them."""
        check_integers("position_ids", position_ids)
        device = position_ids.device
        # In float64 if the device has it: float32 keeps few digits after the point in the phase of a far position.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        exponents = torch.arange(0, self.dim, 2, dtype=dtype, device=device) / self.dim
        phases = position_ids[..., None].to(dtype) / self.base**exponents
        waves = (phases.sin().float(), phases.cos().float())
        return torch.stack(waves, dim=-1).flatten(-2) if self.interleaved else torch.cat(waves, dim=-1)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, interleaved={self.interleaved}"


class Learned(nn.Module):
    """A learned vector for each position. Gehring et al. 2017; Devlin et al. 2019 (BERT), §3; GPT-2.

    Args:
        max_positions: the number of rows of the table: positions are 0 … max_positions - 1.
        dim: M, the dimensions of a vector.
        std: the standard deviation of the normal distribution for the table; 0.02 in BERT and GPT-2.

    The table is `weight`, [max_positions, M], like Hugging Face's `position_embeddings` and `wpe`.

    Raises:
        ArgumentError: a size that is not positive; at the call, a position outside of the table (not checked
            inside torch.compile and torch.export, where a tensor's values are not known).
    """

    def __init__(self, max_positions: int, dim: int, *, std: float = 0.02) -> None:
        super().__init__()
        self.max_positions = whole("max_positions", max_positions)
        self.dim = whole("dim", dim)
        self.std = positive("std", std)
        self.weight = nn.Parameter(torch.empty(max_positions, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table again, from N(0, std²)."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, position_ids: Tensor) -> Tensor:
        """Look up the vectors of positions [S] or [B, S]: [S, M] or [B, S, M] in the table's dtype."""
        check_integers("position_ids", position_ids)
        if not is_traced() and position_ids.numel():
            lowest, highest = (int(x) for x in position_ids.aminmax())
            if lowest < 0 or highest >= self.max_positions:
                raise ArgumentError(
                    f"position_ids: expected 0 to {self.max_positions - 1}, the rows of the table. "
                    f"Received: position_ids from {lowest} to {highest}. Cut the input, or use a longer table"
                )
        return nn.functional.embedding(position_ids, self.weight)

    def extra_repr(self) -> str:
        return f"{self.max_positions}, {self.dim}"
