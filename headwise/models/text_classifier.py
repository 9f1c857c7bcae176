"""Text classification: an encoder, the mean of its hidden states, and a linear map.

Dimension letters: B batch, S sequence, M model, C classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from headwise.models.bert import Bert
from headwise.models.latent_encoder import LatentEncoder
from headwise.models.pooling import mean_of_real
from headwise.models.small_encoder import SmallEncoder
from headwise.nn.options import one_of, probability, whole


class TextClassifier(nn.Module):
    """An encoder with a head of C classes on top.

    >>> classifier = TextClassifier(Bert.from_pretrained(default_model()), num_classes=2)
    >>> logits_BC = classifier(input_ids, real)

    Args:
        encoder: a `Bert` or a `SmallEncoder`; a `LatentEncoder` for long texts.
        num_classes: C.
        pooling: a text is the mean over its tokens, or what stands at [CLS]. Of latents always their mean.
        dropout: of that, in training.
        word_dropout: in training each token is replaced by [MASK] with this probability (Iyyer et al. 2015, who leave
            it out of the mean): the model cannot lean on single words that it saw once.
        mask_id: the id of [MASK].
        kept_ids: tokens that are never replaced: [CLS], [SEP], padding.
    """

    kept_ids: Tensor

    def __init__(
        self,
        encoder: Bert | SmallEncoder | LatentEncoder,
        num_classes: int,
        *,
        pooling: Literal["mean", "cls"] = "mean",
        dropout: float = 0.1,
        word_dropout: float = 0.0,
        mask_id: int = 0,
        kept_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        one_of("pooling", pooling, ("mean", "cls"))
        self.pooling = pooling
        self.word_dropout = probability("word_dropout", word_dropout)
        self.mask_id = mask_id
        self.register_buffer("kept_ids", torch.tensor(kept_ids, dtype=torch.long), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(encoder.config.dim, whole("num_classes", num_classes))
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """The logits of the classes.

        Args:
            input_ids: [B, S].
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding. None = all tokens are real.
            token_type_ids: [B, S], which text of a pair each token is from. Default: all 0.

        Returns:
            [B, C], logits.

        Raises:
            ShapeError, DtypeError, ArgumentError: as the encoder's.
        """
        if self.training and self.word_dropout:
            hidden = torch.rand(input_ids.shape, device=input_ids.device) < self.word_dropout
            input_ids = input_ids.masked_fill(hidden & ~torch.isin(input_ids, self.kept_ids), self.mask_id)
        hidden_BSM = self.encoder(input_ids, real, token_type_ids)
        if isinstance(self.encoder, LatentEncoder):
            pooled_BM = hidden_BSM.mean(1)
        elif self.pooling == "cls":
            pooled_BM = hidden_BSM[:, 0]
        else:
            pooled_BM = mean_of_real(hidden_BSM, real)
        logits_BC: Tensor = self.head(self.dropout(pooled_BM))
        return logits_BC
