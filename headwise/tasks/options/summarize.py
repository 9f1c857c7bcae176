"""What can be chosen for `headwise train summarize`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.options.train import option


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(TextToTextOptions):
    """A text to a shorter one that says what matters in it. The model is small, as texts are long and seldom many."""

    source: str | None = option("text", "The column with what is summarised.", metavar="COLUMN")
    target: str | None = option(
        "summary",
        "The column with summaries; where there are several, summary1, summary2, …, the nearest counts in a score.",
        metavar="COLUMN",
    )
    vocab_size: int = option(2000, "Subwords that are learned from the data, at most.", least=259)
    copies: bool = option(True, "Whether tokens of the text may be copied; with a shared vocabulary.")
    max_source_length: int = option(512, "Tokens that are read at most; the rest is cut.", least=3)
    dim: int = option(128, "The width of the model.", least=8)
    layers: int = option(2, "Layers of the encoder, and of the decoder.", least=1)
    ffn_dim: int = option(256, "The width of the feed-forward networks.", least=1)
    dropout: float = option(0.3, "Dropout of the model, in training.", least=0)
    lr: float = option(1e-3, "The highest learning rate.", least=0)
    epochs: int = option(25, "How often the data are read.", least=1)
    no_repeat: int = option(6, "No run of so many tokens is written twice in a summary; 0 = it may be.", least=0)
