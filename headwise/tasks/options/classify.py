"""The options of `headwise train classify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.tasks.options.encoder import EncoderOptions
from headwise.tasks.options.train import column, option

LATENT = "latent"


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(EncoderOptions):
    """The options of the task `classify`."""

    about = "Reads a text, or a pair of texts, and predicts its label."
    data_example = "reviews.csv --text sentence --label label"

    text: str = column("text", "The column with the text.")
    text_pair: str | None = column(None, "The column with the second text of a pair.")
    label: str = column("label", "The column with the label.")
    model: str | None = option(
        None,
        'A BERT to fine-tune: hub id or folder; "scratch": a new small one; "latent": a few latents for texts of '
        "any length, from scratch. Default: MiniLM from the extra demo.",
    )
    latents: int = option(16, 'With "latent": number of latents.', least=1)
    pooling: Literal["mean", "cls"] = option("mean", "The vector of a text: the mean of its tokens, or [CLS].")
    word_dropout: float = option(
        None, "Share of tokens masked in training. Default: 0, from scratch 0.4.", least=0, below=1
    )

    @property
    def input_example(self) -> str:
        return '"a text"' if self.text_pair is None else '"a text [SEP] a second text"'

    @property
    def is_pretrained(self) -> bool:
        """Whether the model starts from a checkpoint."""
        return self.model != LATENT and super().is_pretrained

    def defaults(self) -> dict[str, float]:
        """Return the default values of the options that were not given, by name."""
        return {**super().defaults(), "word_dropout": 0.0 if self.is_pretrained else 0.4}
