"""`Translate`: a text in one language -> its translation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.tasks.options.translate import TranslateOptions
from headwise.tasks.rows.aligned_lines import are_aligned, read_aligned
from headwise.tasks.rows.chunks import layout_of
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.scoring.text_scores import bleu, chrf
from headwise.tasks.text_to_text import Example, Pairs, TextToText, Values


class Translate(TextToText[TranslateOptions]):
    """An encoder-decoder from scratch, with a shared vocabulary for both languages or one for each.

    Pairs are rows with one column per language. They may also be two aligned text files, named together:
    "train.en,train.de", gzipped or not. A TSV with two columns needs no header, and no names if the first column is the
    source.

    >>> task = Translate.fit("pairs.tsv", source="en", target="de")
    >>> task.predict(["Two dogs play."])
    [{'translation': 'Zwei Hunde spielen.', 'score': -1.2}]
    """

    name = "translate"
    options_type = TranslateOptions
    compared_by = (("BLEU", "max"), ("chrF", "max"))
    reads, writes = "the text to translate", "translation"

    @classmethod
    def read(cls, source: Any, options: TranslateOptions, *, targets: bool = True) -> Data:
        if are_aligned(source):
            return read_aligned(source)
        names = columns_of(source, options)
        columns = {side: name for side, name in names.items() if targets or side == "source"}
        return read_table(source, columns, texts=tuple(columns))

    @classmethod
    def pairs(cls, data: Data, options: TranslateOptions, *, targets: bool = True) -> Pairs:
        references = [[text] for text in data.columns["target"]] if targets else []
        return Pairs(data.columns["source"], references)

    def file_columns(self, source: Any) -> tuple[str, ...]:
        return tuple(columns_of(source, self.options).values())

    def score(self, pairs: Pairs, written: list[str], examples: list[Example]) -> tuple[Values, dict[str, Values]]:
        """Corpus BLEU and chrF by sacreBLEU, beside those of the copied sources."""
        values, copied = (
            {"BLEU": bleu(texts, pairs.references), "chrF": chrf(texts, pairs.references)}
            for texts in (written, pairs.sources)
        )
        return values, {"the source, copied": copied}


def columns_of(source: Any, options: TranslateOptions) -> dict[str, str]:
    """The task's columns "source" and "target" -> their names in the data."""
    names = {"source": options.source, "target": options.target}
    if None in names.values():
        found = {"source": "1", "target": "2"} if _is_nameless(source) else {"source": "source", "target": "target"}
        names = {side: name or found[side] for side, name in names.items()}
    return {side: str(name) for side, name in names.items()}


def _is_nameless(source: Any) -> bool:
    """Whether this is a TSV of two columns that are not called source and target."""
    if isinstance(source, Table):
        return list(source.columns) == ["1", "2"] and not source.headed
    if not isinstance(source, str) or not source.lower().removesuffix(".gz").endswith(".tsv"):
        return False
    names = layout_of(Path(source), ()).names
    return len(names) == 2 and not {"source", "target"} & set(names)
