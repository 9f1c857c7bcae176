"""What can be chosen where a text is written for a text: `headwise train translate`, `summarize`, `reply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.tasks.options.train import TrainOptions, option


@dataclass(frozen=True, kw_only=True)
class TextToTextOptions(TrainOptions):
    """The options that all three have. A task has its own names for the columns, and defaults that suit it."""

    source: str | None = option(None, "The column with what is read.", metavar="COLUMN")
    target: str | None = option(None, "The column with what is to be written.", metavar="COLUMN")
    model: str | None = option(
        None,
        'A BERT that reads the source: hub id, folder, or a run that has one; "minilm" is that of the extra demo. With '
        "a shared vocabulary its subwords are written, too, and dim is its width. Default: from scratch.",
        metavar="MODEL",
    )
    encoder_lr: float = option(5e-5, "The highest learning rate of a BERT that reads the source.", least=0)
    vocab_size: int = option(8000, "Subwords that are learned from the data, at most.", least=259)
    shared_vocabulary: bool = option(True, "One vocabulary for both sides, or one each.")
    copies: bool = option(False, "Whether tokens of the source may be copied; with a shared vocabulary.")
    max_source_length: int = option(256, "Tokens that are read at most; the rest is cut.", least=3)
    max_target_length: int = option(128, "Tokens that are written, or learned from, at most.", least=3)
    dim: int = option(256, "The width of the model.", least=8)
    layers: int = option(3, "Layers of the encoder, and of the decoder.", least=1)
    heads: int = option(4, "Heads of each attention.", least=1)
    ffn_dim: int = option(512, "The width of the feed-forward networks.", least=1)
    positions: Literal["rope", "sinusoidal", "learned"] = option("rope", "How the model knows where a token stands.")
    dropout: float = option(0.15, "Dropout of the model, in training.", least=0)
    lr: float = option(1.2e-3, "The highest learning rate.", least=0)
    warmup: float = option(0.08, "The share of all steps in which the learning rate rises.", least=0)
    batch_tokens: int = option(3000, "Tokens of both sides in a batch, padding counted, of all devices.", least=1)
    label_smoothing: float = option(0.1, "The share of each target that all tokens share.", least=0)
    beams: int = option(4, "Hypotheses side by side when a text is written; 1 = greedy.", least=1)
    length_penalty: float = option(0.6, "How much longer texts are preferred in a beam search; 0 = not.", least=0)
    no_repeat: int = option(0, "No run of so many tokens is written twice in a text; 0 = it may be.", least=0)
    sample: bool = option(False, "Draw tokens by their probability, instead of a search.")
    temperature: float = option(1.0, "With sample: above 1 is more even, below 1 more sure.", least=0)
    top_k: int = option(0, "With sample: only so many of the likeliest tokens; 0 = all.", least=0)
    top_p: float = option(1.0, "With sample: only the likeliest tokens with so much probability together.", least=0)
