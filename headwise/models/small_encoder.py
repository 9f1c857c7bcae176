"""A small encoder for text that begins with random weights and learns from few examples.

The embeddings of words go on, by sums alone, to the mean that a classifier takes: no norm stands on that way, neither
on the embeddings nor at the end. So a word that says nothing may be a small vector, and one that says much a large one,
before any layer has learned to look. Layers have their norms first (Xiong et al. 2020); positions are rotary (Su et al.
2021), so there is no last one.
Dimension letters: B batch, S sequence, M model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.errors import ShapeError
from headwise.models.bert import check_ids
from headwise.nn import Encoder, MultiHeadAttention, positions
from headwise.nn.options import divisible, probability, whole

_STD = 0.1  # of embeddings
_QUIET = 0.1  # what layers add at the beginning, against their usual weights: words come first


@dataclass(frozen=True)
class SmallEncoderConfig:
    """The shape of a `SmallEncoder`.

    Raises:
        ArgumentError: a value that no such encoder can have.
    """

    vocab_size: int
    hidden_size: int = 64
    num_layers: int = 1
    num_heads: int = 2
    dropout: float = 0.5
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads"):
            whole(name, getattr(self, name))
        divisible("hidden_size", self.hidden_size, "2 * num_heads", 2 * self.num_heads)
        probability("dropout", self.dropout)
        probability("attention_dropout", self.attention_dropout)


class SmallEncoder(nn.Module):
    """Reads tokens, any number of them.

    >>> encoder = SmallEncoder(SmallEncoderConfig(vocab_size=8000))
    >>> hidden_BSM = encoder(input_ids, attention_mask)
    """

    def __init__(self, config: SmallEncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size // config.num_heads
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_type = nn.Embedding(2, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(
            config.hidden_size,
            num_layers=config.num_layers,
            attention=lambda: MultiHeadAttention(
                config.hidden_size,
                config.num_heads,
                dropout=config.attention_dropout,
                positions=positions.Rope(width),
            ),
            ffn_dim=2 * config.hidden_size,
            dropout=config.dropout,
            final_norm=False,
        )
        with torch.no_grad():
            for table in (self.word, self.token_type):
                nn.init.normal_(table.weight, std=_STD)
            for name, weight in self.encoder.named_parameters():
                if name.endswith(("attention.out.weight", "mlp.down.weight")):
                    weight.mul_(_QUIET)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """What each token has become.

        Args:
            input_ids: [B, S], whole numbers below `config.vocab_size`.
            attention_mask: [B, S], True for tokens, False for padding, of which the output is unspecified. Default: all
                tokens.
            token_type_ids: [B, S], which text of a pair each token is from, 0 or 1. Default: all 0.

        Returns:
            [B, S, M]

        Raises:
            ShapeError, DtypeError, ArgumentError: an argument that does not fit, named.
        """
        if input_ids.dim() != 2:
            raise ShapeError(f"input_ids: expected [B, S], received {list(input_ids.shape)}")
        check_ids("input_ids", input_ids, self.config.vocab_size)
        x_BSM = self.word(input_ids)
        if token_type_ids is not None:
            check_ids("token_type_ids", token_type_ids, 2)
            x_BSM = x_BSM + self.token_type(token_type_ids)
        padding = None if attention_mask is None else attention_mask.bool()
        out_BSM: Tensor = self.encoder(self.dropout(x_BSM), padding=padding)
        return out_BSM
