"""Text classification: an encoder, the mean of its hidden states, and a linear map.

Dimension letters: B batch, S sequence, M model, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.models import unpadded
from headwise.models.bert import Bert, known_types
from headwise.models.latent_encoder import LatentEncoder
from headwise.models.pooling import average_real
from headwise.models.small_encoder import SmallEncoder
from headwise.nn.dropout import Dropout
from headwise.nn.options import check_known, probability, whole


class TextClassifier(nn.Module):
    """An encoder with a linear head for C classes.

    >>> classifier = TextClassifier(Bert.from_pretrained(default_model()), num_classes=2)
    >>> logits_BC = classifier(input_ids, real)

    Args:
        encoder: a `Bert` or a `SmallEncoder`; a `LatentEncoder` for long texts.
        num_classes: C, the number of classes.
        pooling: the vector of a text: "mean" over its tokens, or "cls", the state at [CLS]. For latents always "mean".
        dropout: the probability of dropout on this vector, only in training.
        word_dropout: in training each token is replaced by [MASK] with this probability, so that the model cannot rely
            on single words that it saw once (Iyyer et al. 2015, who leave such words out of the mean).
        mask_id: the id of [MASK].
        kept_ids: the ids that are never replaced: [CLS], [SEP], padding.
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
        check_known("pooling", pooling, ("mean", "cls"))
        # The states of all latents count, because they are never padding.
        self.pooling = "all" if isinstance(encoder, LatentEncoder) else pooling
        self.word_dropout = probability("word_dropout", word_dropout)
        self.mask_id = mask_id
        self.register_buffer("kept_ids", torch.tensor(kept_ids, dtype=torch.long), persistent=False)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(encoder.config.dim, whole("num_classes", num_classes))
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Compute the logits of the classes.

        Args:
            input_ids: [B, S].
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding. None = all tokens are real.
            token_type_ids: [B, S], which text of a pair each token is from, 0 or 1, for encoders that have token types.
                Default: all 0.

        Returns:
            Logits [B, C].

        Raises:
            ShapeError, DtypeError, ArgumentError: as for the encoder.
        """
        if self.training and self.word_dropout:
            hidden = torch.rand(input_ids.shape, device=input_ids.device) < self.word_dropout
            input_ids = input_ids.masked_fill(hidden & ~torch.isin(input_ids, self.kept_ids), self.mask_id)
        hidden_BSM = self.encoder(input_ids, real, known_types(self.encoder, token_type_ids))
        logits_BC: Tensor = self.head(self.dropout(self._pooled(hidden_BSM, real)))
        return logits_BC

    def unpadded(self, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> Tensor:
        """Compute the logits [N, C] of N texts of any lengths, as `forward` does in eval mode, but without padding.

        The encoder must be a `Bert` on the CPU, where this is faster.

        Args:
            ids: a list of token ids for each text; at least one text.
            types: for each token, which text of a pair it is from, 0 or 1.
        """
        assert isinstance(self.encoder, Bert)
        hidden = unpadded.read(self.encoder, ids, known_types(self.encoder, types))
        pooled = [self._pooled(x_SM[None], None) for x_SM in hidden]
        logits_NC: Tensor = self.head(torch.cat(pooled))
        return logits_NC

    def _pooled(self, hidden_BSM: Tensor, real: Tensor | None) -> Tensor:
        """Compute the vector of each text, [B, M], from the hidden states: their mean, or the state at [CLS]."""
        if self.pooling == "all":
            return hidden_BSM.mean(1)
        return hidden_BSM[:, 0] if self.pooling == "cls" else average_real(hidden_BSM, real)
