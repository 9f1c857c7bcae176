"""What can be chosen for `headwise train translate`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.options.train import option


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(TextToTextOptions):
    """A text in one language to the same in another."""

    epochs: int = option(8, "How often the data are read.", least=1)
    source: str | None = option(
        None, "The column to translate. Default: source, or the first of a TSV of two.", metavar="COLUMN"
    )
    target: str | None = option(
        None, "The column with translations. Default: target, or the second of a TSV of two.", metavar="COLUMN"
    )
