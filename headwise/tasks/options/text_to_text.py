"""The options of `headwise train translate`, `summarize` and `reply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.tasks.options.train import TrainOptions, check_heads, column, option


@dataclass(frozen=True, kw_only=True)
class TextToTextOptions(TrainOptions):
    """The options that translate, summarize and reply share. Each has its own names of columns and its own defaults."""

    source: str | None = column(None, "The column with the source texts.")
    target: str | None = column(None, "The column with the target texts.")
    model: str | None = option(
        None,
        'A BERT as encoder: hub id, folder, or run folder; "minilm" is the one in the extra demo. With '
        "a shared vocabulary, the target uses its subwords too, and dim is its dimension. Default: from scratch.",
        metavar="MODEL",
    )
    encoder_lr: float = option(5e-5, "The highest learning rate of a BERT encoder.", least=0)
    vocab_size: int = option(8000, "Most subwords learned from the data.", least=259)
    shared_vocabulary: bool = option(True, "Use one vocabulary for both sides.")
    copies: bool = option(False, "Allow copying tokens of the source; needs a shared vocabulary.")
    max_source_length: int = option(256, "Most tokens of the source; the rest is cut.", least=3)
    max_target_length: int = option(128, "Most tokens of the target.", least=3)
    dim: int = option(256, "The dimension of the model.", least=8)
    layers: int = option(3, "Layers in the encoder, and in the decoder.", least=1)
    heads: int = option(4, "Attention heads per layer.", least=1)
    ffn_dim: int = option(512, "The hidden dimension of the feed-forward networks.", least=1)
    positions: Literal["rope", "sinusoidal", "learned"] = option("rope", "The position scheme.")
    dropout: float = option(0.15, "Dropout in training.", least=0)
    lr: float = option(1.2e-3, "The highest learning rate.")
    warmup: float = option(0.08, "The share of steps in which the learning rate rises.", least=0)
    batch_tokens: int = option(3000, "Tokens of both sides per batch, including padding, over all devices.", least=1)
    label_smoothing: float = option(0.1, "Label smoothing: the probability spread over all tokens.", least=0, below=1)
    beams: int = option(4, "Hypotheses in beam search; 1 = greedy.", least=1)
    length_penalty: float = option(0.6, "How strongly beam search prefers longer texts; 0 = not at all.", least=0)
    no_repeat: int = option(0, "No sequence of this many tokens is generated twice; 0 = no limit.", least=0)
    sample: bool = option(False, "Sample tokens instead of beam search.")
    temperature: float = option(1.0, "With sample: above 1 flattens the distribution, below 1 sharpens it.", least=0)
    top_k: int = option(0, "With sample: use only this many most probable tokens; 0 = all.", least=0)
    top_p: float = option(
        1.0, "With sample: use only the most probable tokens with this total probability.", least=0, most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None or not self.shared_vocabulary:  # otherwise the BERT's dim is used
            check_heads(self, even=self.positions == "rope")
