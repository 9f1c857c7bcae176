"""The options of `headwise train summarize`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.options.train import column, option


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(TextToTextOptions):
    """The options of the task `summarize`.

    The default model is small, because texts are long and data sets usually small.
    """

    about = "Reads a text and writes its summary."
    data_example = "dialogues.jsonl --source dialogue --target summary"

    source: str | None = column("text", "The column with the texts.")
    target: str | None = column(
        "summary",
        "The column with summaries. With several columns summary1, summary2, …, the best match counts in a score.",
    )
    vocab_size: int = option(2000, "Most subwords learned from the data.", least=259)
    copies: bool = option(True, "Allow copying tokens of the source; needs a shared vocabulary.")
    max_source_length: int = option(512, "Most tokens of the source; the rest is cut.", least=3)
    dim: int = option(128, "The dimension of the model.", least=8)
    layers: int = option(2, "Layers in the encoder, and in the decoder.", least=1)
    ffn_dim: int = option(256, "The hidden dimension of the feed-forward networks.", least=1)
    dropout: float = option(0.3, "Dropout in training.", least=0)
    lr: float = option(1e-3, "The highest learning rate.")
    epochs: int = option(25, "Number of epochs.", least=1)
    no_repeat: int = option(6, "No sequence of this many tokens is generated twice; 0 = no limit.", least=0)
