"""What can be chosen for `headwise train classify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.tasks.options.encoder import EncoderOptions
from headwise.tasks.options.train import option

LATENT = "latent"


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(EncoderOptions):
    """Text, or two texts, to a label."""

    text: str = option("text", "The column with the text.", metavar="COLUMN")
    text_pair: str | None = option(None, "The column with a second text, where a label is of two.", metavar="COLUMN")
    label: str = option("label", "The column with the label.", metavar="COLUMN")
    model: str | None = option(
        None,
        'A BERT to fine-tune: hub id or folder; "scratch": a small one; "latent": a few latents that read texts of '
        "any length, from scratch. Default: MiniLM, of the extra demo.",
    )
    latents: int = option(16, 'With "latent": how many.', least=1)
    pooling: Literal["mean", "cls"] = option("mean", "What a text is: the mean of its tokens, or what [CLS] is.")
    word_dropout: float = option(
        None, "Tokens that are hidden in training. Default: 0, from scratch 0.4 of them.", least=0
    )

    @property
    def is_pretrained(self) -> bool:
        """Whether the model begins with a checkpoint's weights."""
        return self.model != LATENT and super().is_pretrained

    def defaults(self) -> dict[str, float]:
        """What fills in the options that were not chosen."""
        return {**super().defaults(), "word_dropout": 0.0 if self.is_pretrained else 0.4}
