"""The options of `headwise train reply`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.options.train import column, option


@dataclass(frozen=True, kw_only=True)
class ReplyOptions(TextToTextOptions):
    """The options of the task `reply`."""

    about = "Reads a dialogue and writes the next turn."
    data_example = "dialogues.jsonl"

    source: str | None = column("message", "The column with messages.")
    target: str | None = column("reply", "The column with replies.")
    dialogue: str | None = column(
        None,
        "Instead of both: a column with dialogues, one turn per line. Each turn is a reply to the turns before it.",
    )
    vocab_size: int = option(2000, "Most subwords learned from the data.", least=259)
    max_source_length: int = option(96, "Most tokens of the source; the beginning of longer ones is cut.", least=3)
    max_target_length: int = option(64, "Most tokens of the target.", least=3)
    dim: int = option(128, "The dimension of the model.", least=8)
    layers: int = option(2, "Layers in the encoder, and in the decoder.", least=1)
    ffn_dim: int = option(256, "The hidden dimension of the feed-forward networks.", least=1)
    dropout: float = option(0.2, "Dropout in training.", least=0)
    lr: float = option(1e-3, "The highest learning rate.")
    beams: int = option(1, "Hypotheses in beam search; 1 = greedy.", least=1)
