"""An encoder for long texts: a few learned vectors (latents) read a text of any length, with a cost linear in it.

Perceiver IO's encoder (Jaegle et al. 2022, arXiv:2107.14795) on the embeddings of tokens.
Dimension letters: B batch, S sequence, N latents, M model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.models.ids import check_ids
from headwise.nn import LatentAttention, positions
from headwise.nn.dropout import Dropout
from headwise.nn.options import probability, whole


@dataclass(frozen=True)
class LatentEncoderConfig:
    """The sizes and options of a `LatentEncoder`.

    Raises:
        ArgumentError: a value that is impossible for such an encoder.
    """

    vocab_size: int
    dim: int = 128
    num_latents: int = 16
    num_layers: int = 2
    num_heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "num_latents", "num_layers", "num_heads"):
            whole(name, getattr(self, name))
        probability("dropout", self.dropout)


class LatentEncoder(nn.Module):
    """Reads a text of any length into N vectors.

    >>> encoder = LatentEncoder(LatentEncoderConfig(vocab_size=8000))
    >>> latents_BNM = encoder(input_ids, real)
    """

    def __init__(self, config: LatentEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.dim)
        self.token_type = nn.Embedding(2, config.dim)
        self.position = positions.Sinusoidal(config.dim)  # no limit of positions
        self.dropout = Dropout(config.dropout)
        self.latents = LatentAttention(
            config.num_latents,
            config.dim,
            num_heads=config.num_heads,
            self_layers=config.num_layers,
            dropout=config.dropout,
        )
        for table in (self.word, self.token_type):
            nn.init.normal_(table.weight, std=1.0)  # as large as the positions, whose waves reach from -1 to 1

    def forward(self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Let the latents read the text, and return them.

        Args:
            input_ids: [B, S], whole numbers below `config.vocab_size`.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding. None = all tokens are real.
            token_type_ids: [B, S], which text of a pair each token is from, 0 or 1. Default: all 0.

        Returns:
            The latents [B, N, M].

        Raises:
            ShapeError, DtypeError, ArgumentError: an invalid argument; the message names it.
        """
        check_ids("input_ids", input_ids, self.config.vocab_size)
        x_BSM = self.word(input_ids)
        if token_type_ids is not None:
            check_ids("token_type_ids", token_type_ids, 2)
            x_BSM = x_BSM + self.token_type(token_type_ids)
        place_SM = self.position(torch.arange(input_ids.shape[1], device=input_ids.device))
        latents_BNM: Tensor = self.latents(self.dropout(x_BSM + place_SM.to(x_BSM.dtype)), real=real)
        return latents_BNM
