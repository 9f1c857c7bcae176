"""`Summarize`: generates a summary of a text."""

from __future__ import annotations

import re
from typing import Any

from headwise.language import Sentence
from headwise.tasks.options.summarize import SummarizeOptions
from headwise.tasks.rows.sources import open_table
from headwise.tasks.rows.tables import Data, find_column, read_table
from headwise.tasks.scoring.text_scores import first_words, rouge, words
from headwise.tasks.text_to_text import Example, Pairs, TextToText, Values


class Summarize(TextToText[SummarizeOptions]):
    """An encoder-decoder from scratch, with one vocabulary for texts and summaries.

    If there is no column with the target's name, the columns with this name and 1, 2, … appended are several summaries
    of one text. The first is used for training; in a score the summary that matches best counts.

    >>> task = Summarize.fit("dialogues.jsonl", source="dialogue", target="summary")
    >>> task.predict(["Anna: Hello! …"])
    [{'summary': 'Anna greets Ben.', 'score': -2.3}]
    """

    name = "summarize"
    options_type = SummarizeOptions
    compared_by = (("ROUGE-1", "max"), ("ROUGE-2", "max"), ("ROUGE-L", "max"))
    reads, writes = "the text to summarize", "summary"

    learned = ("summary_words",)
    summary_words = 0  #: mean number of words in a summary of the training data

    @classmethod
    def read(cls, source: Any, options: SummarizeOptions, *, targets: bool = True) -> Data:
        if isinstance(source, Data):
            return source
        columns = {"source": str(options.source)}
        if targets:
            columns |= _summary_columns(source, str(options.target))
        return read_table(source, columns, texts=tuple(columns))

    @classmethod
    def pairs(cls, data: Data, options: SummarizeOptions, *, targets: bool = True) -> Pairs:
        columns = [cells for name, cells in data.columns.items() if name != "source"] if targets else []
        return Pairs(data.columns["source"], [list(each) for each in zip(*columns, strict=True)])

    def look_over(self, pairs: Pairs) -> None:
        lengths = [len(words(each[0])) for each in pairs.references]
        self.summary_words = round(sum(lengths) / len(lengths))

    def score(self, pairs: Pairs, written: list[str], examples: list[Example]) -> tuple[Values, dict[str, Values]]:
        """Compute ROUGE, beside two baselines: the first words of the text, and the summary of another text."""
        count = self.summary_words
        baselines: dict[str, Values] = {
            Sentence("the first {count} words").format(count=count): rouge(
                [first_words(text, count) for text in pairs.sources], pairs.references
            )
        }
        if len(written) > 1:
            others = [pairs.references[i - 1][0] for i in range(len(written))]
            baselines["the summary of another text"] = rouge(others, pairs.references)
        return rouge(written, pairs.references), baselines


def _summary_columns(source: Any, target: str) -> dict[str, str]:
    """Find the columns with summaries. Returns a dict: the task's name of a column -> its name in the source."""
    table = open_table(source, (target,))
    if target not in table.columns:
        numbered = [name for name in table.columns if re.fullmatch(re.escape(target) + "[0-9]+", name)]
        if numbered:
            numbered.sort(key=lambda name: int(name.removeprefix(target)))
            return {f"summary {i}": name for i, name in enumerate(numbered, start=1)}
    return {"summary": find_column(table, target)}
