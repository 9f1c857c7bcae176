"""What can be chosen for `headwise train answer`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.encoder import EncoderOptions
from headwise.tasks.options.train import option


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(EncoderOptions):
    """A question and a context to the answer in it. A SQuAD file needs none of the columns to be named."""

    question: str = option("question", "The column with the question.", metavar="COLUMN")
    context: str = option("context", "The column with the text that answers it.", metavar="COLUMN")
    answer: str = option("answer", "The column with the answer, as it stands in the context.", metavar="COLUMN")
    answer_start: str | None = option(
        None,
        "The column with the character at which the answer begins, from 0. Default: answer_start, if there is one; "
        "else the answer is where it is found first.",
        metavar="COLUMN",
    )
    epochs: int = option(None, "How often the data are read. Default: 4, from scratch 6.", least=1)
    lr: float = option(None, "The highest learning rate. Default: 2e-4, from scratch 2e-3.", least=0)
    batch_size: int | None = option(16, "Examples in a batch at most.", least=1)
    overlap: int = option(
        128, "Tokens that two windows over a long context share; at least the longest answer.", least=0
    )
    question_length: int = option(64, "Tokens of a question at most.", least=1)

    def defaults(self) -> dict[str, float]:
        """What fills in the options that were not chosen."""
        return {**super().defaults(), **({"epochs": 4, "lr": 2e-4} if self.is_pretrained else {})}
