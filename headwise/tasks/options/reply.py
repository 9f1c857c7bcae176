"""What can be chosen for `headwise train reply`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.options.train import option


@dataclass(frozen=True, kw_only=True)
class ReplyOptions(TextToTextOptions):
    """What was said to what is said next."""

    source: str | None = option("message", "The column with what was said.", metavar="COLUMN")
    target: str | None = option("reply", "The column with what is said next.", metavar="COLUMN")
    dialogue: str | None = option(
        None,
        "Instead of both, a column with whole dialogues, a line a turn: each is a reply to those before it.",
        metavar="COLUMN",
    )
    vocab_size: int = option(2000, "Subwords that are learned from the data, at most.", least=259)
    max_source_length: int = option(96, "Tokens that are read at most; the beginning is cut.", least=3)
    max_target_length: int = option(64, "Tokens that are written, or learned from, at most.", least=3)
    dim: int = option(128, "The width of the model.", least=8)
    layers: int = option(2, "Layers of the encoder, and of the decoder.", least=1)
    ffn_dim: int = option(256, "The width of the feed-forward networks.", least=1)
    dropout: float = option(0.2, "Dropout of the model, in training.", least=0)
    lr: float = option(1e-3, "The highest learning rate.", least=0)
    beams: int = option(1, "Hypotheses side by side when a text is written; 1 = greedy.", least=1)
