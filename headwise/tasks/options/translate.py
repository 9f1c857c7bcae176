"""The options of `headwise train translate`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.options.train import column, option


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(TextToTextOptions):
    """The options of the task `translate`."""

    about = "Reads a text and writes its translation."
    data_example = "pairs.tsv --source en --target de"

    epochs: int = option(8, "Number of epochs.", least=1)
    source: str | None = column(
        None, "The column with source texts. Default: source or src, or the first of two columns of a TSV."
    )
    target: str | None = column(
        None, "The column with translations. Default: target or tgt, or the second of two columns of a TSV."
    )
