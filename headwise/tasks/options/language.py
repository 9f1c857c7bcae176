"""The options of `headwise train language`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions, check_heads, column, option


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(TrainOptions):
    """The options of the task `language`.

    Raises:
        ArgumentError, DtypeError: a value has a wrong type, is out of range, or does not fit another one.
    """

    about = "Predicts masked tokens, or continues a text."
    data_example = "corpus.txt"

    text: str = column("text", "The column with documents, if the corpus is a table.")
    objective: Literal["masked", "causal"] = option("masked", "Predict masked tokens (BERT) or the next token (GPT).")
    model: str | None = option(
        None,
        "masked: a BERT to start from: hub id, folder, or run folder. Default: a small one from scratch.",
        metavar="MODEL",
    )
    block: int = option(128, "Tokens per example: longer documents are cut into pieces of this size.", least=8)
    mask_share: float = option(0.15, "masked: the share of tokens to predict.", least=0, most=1)
    vocab_size: int = option(8000, "From scratch: most subwords learned from the corpus.", least=300)
    lowercase: bool = option(True, "masked, from scratch: ignore case.")
    dim: int = option(256, "From scratch: the dimension of the model.", least=8)
    layers: int = option(4, "From scratch: number of layers.", least=1)
    heads: int = option(4, "From scratch: attention heads per layer.", least=1)
    write: int = option(64, "causal: most tokens to generate.", least=1)
    sample: bool = option(False, "causal: sample tokens instead of taking the most probable one.")
    temperature: float = option(1.0, "With sample: above 1 flattens the distribution, below 1 sharpens it.", least=0)
    top_k: int = option(0, "With sample: use only this many most probable tokens; 0 = all.", least=0)
    top_p: float = option(
        1.0, "With sample: use only the most probable tokens with this total probability.", least=0, most=1
    )

    context_parallel: int = option(
        1, "causal: processes that share each sequence, for blocks too long for one device.", metavar="N", least=1
    )

    lr: float = option(1e-3, "The highest learning rate.")

    @property
    def input_example(self) -> str:
        return '"a [MASK] text"' if self.objective == "masked" else '"a text"'

    @property
    def sequence_processes(self) -> int:
        return self.context_parallel

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_share < 1:
            raise ArgumentError(
                f"mask_share: expected more than 0 and less than 1. Received: mask_share={self.mask_share}"
            )
        if self.objective == "causal" and self.model is not None:
            raise ArgumentError(
                f"model: expected None with objective=causal, which trains from scratch. Received: model={self.model!r}"
            )
        if self.context_parallel > 1 and self.objective != "causal":
            raise ArgumentError(
                f"context_parallel: expected objective=causal. Received: objective={self.objective}, "
                f"context_parallel={self.context_parallel}"
            )
        if self.context_parallel > 1 and self.compile:
            raise ArgumentError(
                "compile: expected False with context_parallel, whose attention torch.compile cannot trace. "
                f"Received: context_parallel={self.context_parallel}"
            )
        check_heads(self, even=True)
