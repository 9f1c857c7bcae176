"""The options of `headwise train answer`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.encoder import EncoderOptions
from headwise.tasks.options.train import column, option


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(EncoderOptions):
    """The options of the task `answer`. A SQuAD file needs no names of columns."""

    about = "Reads a question and a context, and finds the words of the context that answer it."
    data_example = "squad.json"
    input_example = '"a question [SEP] a text"'

    question: str = column("question", "The column with the question.")
    context: str = column("context", "The column with the text that answers it.")
    answer: str = column("answer", "The column with the answer, copied from the context.")
    answer_start: str | None = column(
        None,
        "The column with the index of the answer's first character, from 0. Default: answer_start if it exists; "
        "otherwise the first occurrence of the answer is used.",
    )
    epochs: int = option(None, "Number of epochs. Default: 4, from scratch 6.", least=1)
    lr: float = option(None, "The highest learning rate. Default: 2e-4, from scratch 2e-3.")
    batch_size: int | None = option(16, "Most examples in a batch.", least=1)
    overlap: int = option(
        128, "Overlap in tokens of two windows over a long context; at least the longest answer.", least=0
    )
    question_length: int = option(64, "Most tokens in a question; longer ones are cut.", least=1)

    def defaults(self) -> dict[str, float]:
        """Return the default values of the options that were not given, by name."""
        return {**super().defaults(), **({"epochs": 4, "lr": 2e-4} if self.is_pretrained else {})}
