"""Extractive question answering: for each token the logits that the answer begins or ends there.

Devlin et al. 2018, arXiv:1810.04805, section 4.2. Dimension letters: B batch, S sequence, M model.
"""

from __future__ import annotations

from torch import Tensor, nn

from headwise.models.bert import Bert, known_types
from headwise.models.small_encoder import SmallEncoder


class SpanReader(nn.Module):
    """An encoder with a head that returns two logits per token: the answer begins here, the answer ends here.

    >>> reader = SpanReader(Bert.from_pretrained(default_model()))
    >>> starts_BS, ends_BS = reader(input_ids, real, token_type_ids)

    Args:
        encoder: an encoder, which reads "[CLS] question [SEP] context [SEP]", with token type 1 in the context if the
            encoder has token types.
    """

    def __init__(self, encoder: Bert | SmallEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.dim, 2)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute for each token the logits that it is the first, and that it is the last, token of the answer.

        Args:
            input_ids: [B, S].
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding, where the scores are
                unspecified. None = all tokens are real.
            token_type_ids: [B, S], 1 in the context, 0 elsewhere, for encoders that have token types. Default: all 0.

        Returns:
            Two tensors of logits, each [B, S].

        Raises:
            ShapeError, DtypeError, ArgumentError: as for the encoder.
        """
        hidden_BSM = self.encoder(input_ids, real, known_types(self.encoder, token_type_ids))
        starts_BS, ends_BS = self.head(hidden_BSM).unbind(-1)
        return starts_BS, ends_BS
