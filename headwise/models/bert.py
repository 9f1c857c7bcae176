"""`Bert`: a BERT encoder that reads checkpoints. It also makes vectors of texts, by the settings in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from torch import Tensor, nn

from headwise.models.bert_encoder import BertEncoder, Embeddings
from headwise.models.families import BertConfig
from headwise.models.families.config import ACTIVATIONS
from headwise.models.sentence import SentenceEncoder

__all__ = ["ACTIVATIONS", "Bert", "BertConfig", "Embeddings", "known_types"]

Types = TypeVar("Types")


class Bert(BertEncoder):
    """A BERT encoder. `Bert(config)` has random weights, `Bert.from_pretrained` the weights of a checkpoint.

    >>> bert = Bert.from_pretrained(default_model())
    >>> hidden_BSM = bert(torch.tensor([[101, 7592, 102]]))
    """

    @cached_property
    def sentences(self) -> SentenceEncoder:
        """The object that makes vectors of texts, with the tokenizer and the settings of the checkpoint.

        Raises:
            CheckpointError: as for `encode`.
        """
        return SentenceEncoder.of(self)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_tokens: int | None = None,
        dtype: str | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Make one vector for each text, as sentence-transformers makes it with this checkpoint, on the CPU.

        The checkpoint's modules.json says how: which pooling, which further layers, whether vectors have length 1.
        Without that file a vector is the mean over all tokens, and a warning says so. A text longer than the
        checkpoint's limit is cut; a warning says how many texts were cut.

        >>> Bert.from_pretrained(default_model()).encode(["a film", "a movie"]).shape
        torch.Size([2, 384])

        Args:
            texts: N texts, which may be empty strings; or one text, for one vector.
            prompt_name: the name of the checkpoint's prompt to put before each text; default: its default prompt.
            prompt: a text to put before each text, such as "query: ".
            batch_tokens: the maximum number of tokens in one pass (a single longer text is a pass too). Default: 8192.
            dtype: the dtype of the encoder's computation: "float32", "bfloat16" or "int8". Default: the dtype of its
                weights.
            progress: whether to show a bar on a terminal, and at the end the speed, on standard error.

        Returns:
            float32 [N, M], in the order of the texts; [M] for one text. M is `sentences.dim`.

        Raises:
            DtypeError: something that is not a text, such as None or NaN; a Bert that is not on the CPU.
            ArgumentError: half a surrogate pair in a text, a prompt that does not exist, or an option with an invalid
                value.
            CheckpointError: this Bert does not come from a checkpoint; or it has no tokenizer, or settings that
                headwise does not know.
        """
        return self.sentences.encode(
            texts, prompt_name=prompt_name, prompt=prompt, batch_tokens=batch_tokens, dtype=dtype, progress=progress
        )


def known_types(encoder: nn.Module, types: Types) -> Types | None:
    """Return `types`, or None for an encoder without token types (DistilBERT's tokenizer gives types all the same)."""
    return None if isinstance(encoder, Bert) and not encoder.reads_types else types
