"""A small text encoder that begins with random weights and learns from few examples.

The embeddings of words reach the mean that a classifier takes only through sums: there is no norm on this path, neither
on the embeddings nor at the end. So a word without meaning for the task can be a small vector, and an important word a
large vector, before any layer has learned to attend. The norms are before the branches (Xiong et al. 2020). Positions
are rotary (Su et al. 2021), so there is no maximum length.
Dimension letters: B batch, S sequence, M model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.models.ids import check_ids
from headwise.nn import Encoder, MultiHeadAttention, positions
from headwise.nn.dropout import Dropout
from headwise.nn.options import divisible, probability, whole

_STD = 0.1  # the standard deviation of the initial embeddings
_QUIET = 0.1  # the factor on the initial output weights of layers, so that the word embeddings dominate at first


@dataclass(frozen=True)
class SmallEncoderConfig:
    """The sizes and options of a `SmallEncoder`.

    Raises:
        ArgumentError: a value that is impossible for such an encoder.
    """

    vocab_size: int
    dim: int = 64
    num_layers: int = 1
    num_heads: int = 2
    dropout: float = 0.5
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "num_layers", "num_heads"):
            whole(name, getattr(self, name))
        divisible("dim", self.dim, "2 * num_heads", 2 * self.num_heads)
        probability("dropout", self.dropout)
        probability("attention_dropout", self.attention_dropout)


class SmallEncoder(nn.Module):
    """A small encoder of texts of any length.

    >>> encoder = SmallEncoder(SmallEncoderConfig(vocab_size=8000))
    >>> hidden_BSM = encoder(input_ids, real)
    """

    def __init__(self, config: SmallEncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.dim // config.num_heads
        self.word = nn.Embedding(config.vocab_size, config.dim)
        self.token_type = nn.Embedding(2, config.dim)
        self.dropout = Dropout(config.dropout)
        self.encoder = Encoder(
            config.dim,
            num_layers=config.num_layers,
            attention=lambda: MultiHeadAttention(
                config.dim,
                config.num_heads,
                dropout=config.attention_dropout,
                positions=positions.Rope(width),
            ),
            ffn_dim=2 * config.dim,
            dropout=config.dropout,
            final_norm=False,
        )
        with torch.no_grad():
            for table in (self.word, self.token_type):
                nn.init.normal_(table.weight, std=_STD)
            for name, weight in self.encoder.named_parameters():
                if name.endswith(("attention.out.weight", "mlp.down.weight")):
                    weight.mul_(_QUIET)

    def forward(self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Compute the last hidden states.

        Args:
            input_ids: [B, S], whole numbers below `config.vocab_size`.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding, where the output is
                unspecified. None = all tokens are real.
            token_type_ids: [B, S], which text of a pair each token is from, 0 or 1. Default: all 0.

        Returns:
            The hidden states [B, S, M].

        Raises:
            ShapeError, DtypeError, ArgumentError: an invalid argument; the message names it.
        """
        check_ids("input_ids", input_ids, self.config.vocab_size)
        x_BSM = self.word(input_ids)
        if token_type_ids is not None:
            check_ids("token_type_ids", token_type_ids, 2)
            x_BSM = x_BSM + self.token_type(token_type_ids)
        out_BSM: Tensor = self.encoder(self.dropout(x_BSM), real=real)
        return out_BSM
