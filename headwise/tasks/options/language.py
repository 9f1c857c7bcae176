"""What can be chosen for `headwise train language`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions, option


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(TrainOptions):
    """Text, to a model that fills gaps in it or goes on with it.

    Raises:
        ArgumentError, DtypeError: a value of another kind than its field, out of its range, or unlike another one.
    """

    text: str = option("text", "The column with documents, where the corpus is a table.", metavar="COLUMN")
    objective: Literal["masked", "causal"] = option("masked", "Find masked tokens again (BERT), or the next one (GPT).")
    model: str | None = option(
        None, "masked: a BERT to go on from: hub id or folder. Default: a small one from scratch.", metavar="MODEL"
    )
    block: int = option(128, "Tokens that are read at once: longer documents are cut into such pieces.", least=8)
    mask_share: float = option(0.15, "masked: the share of tokens that are to be found again.", least=0)
    vocab_size: int = option(8000, "From scratch: subwords that are learned from the corpus, at most.", least=300)
    lowercase: bool = option(True, "masked, from scratch: whether upper and lower case are one.")
    dim: int = option(256, "From scratch: the width of the model.", least=8)
    layers: int = option(4, "From scratch: layers.", least=1)
    heads: int = option(4, "From scratch: attention heads of each layer.", least=1)
    write: int = option(64, "causal: tokens to write at most.", least=1)
    sample: bool = option(False, "causal: draw tokens by their probability, instead of always the likeliest.")
    temperature: float = option(1.0, "With sample: above 1 is more even, below 1 more sure.", least=0)
    top_k: int = option(0, "With sample: only so many of the likeliest tokens; 0 = all.", least=0)
    top_p: float = option(1.0, "With sample: only the likeliest tokens with so much probability together.", least=0)

    lr: float = option(1e-3, "The highest learning rate.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_share < 1:
            raise ArgumentError(f"mask_share: expected more than 0 and less than 1, received {self.mask_share}")
        if self.objective == "causal" and self.model is not None:
            raise ArgumentError(
                f"model: expected none with objective=causal, which begins anew, received {self.model!r}"
            )
        if self.dim % self.heads or self.dim // self.heads % 2:
            raise ArgumentError(f"dim: expected an even multiple of heads={self.heads}, received {self.dim}")
