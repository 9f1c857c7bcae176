"""`Translate`: translates a text from one language into another."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.language import Sentence
from headwise.tasks.options.translate import TranslateOptions
from headwise.tasks.rows.aligned_lines import are_aligned, read_aligned
from headwise.tasks.rows.chunks import find_layout
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.scoring.text_scores import bleu, chrf
from headwise.tasks.text_to_text import Example, Pairs, TextToText, Values

SIDES = ("source", "target")
_NAMES = {"source": ("source", "src"), "target": ("target", "tgt", "trg")}
_CODE = re.compile(r"[a-z]{2}")  # the code of a language
_WORD = re.compile(r"[\w-]+")


class Translate(TextToText[TranslateOptions]):
    """An encoder-decoder from scratch, with a shared vocabulary for both languages or one for each.

    Pairs are rows with one column per language. They may also be two aligned text files, named together:
    "train.en,train.de", gzipped or not. A TSV with two columns needs no header, and no names if the first column is the
    source; a first line of "source", "src", "target", "tgt" or two language codes ("en", "de") is a header.

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
        names = choose_columns(source, options)
        columns = {side: name for side, name in names.items() if targets or side == "source"}
        data = read_table(source, columns, texts=tuple(columns))
        if not targets or isinstance(source, Data) or options.source is not None or options.target is not None:
            return data
        note = _note(names, data)
        return data if note is None else replace(data, left_out=(note, *data.left_out))

    @classmethod
    def pairs(cls, data: Data, options: TranslateOptions, *, targets: bool = True) -> Pairs:
        references = [[text] for text in data.columns["target"]] if targets else []
        return Pairs(data.columns["source"], references)

    def file_columns(self, source: Any) -> tuple[str, ...]:
        return tuple(choose_columns(source, self.options).values())

    def score(self, pairs: Pairs, written: list[str], examples: list[Example]) -> tuple[Values, dict[str, Values]]:
        """Compute corpus BLEU and chrF by sacreBLEU, beside a baseline that copies the source."""
        values, copied = (
            {"BLEU": bleu(texts, pairs.references), "chrF": chrf(texts, pairs.references)}
            for texts in (written, pairs.sources)
        )
        return values, {"the source, copied": copied}


def choose_columns(source: Any, options: TranslateOptions) -> dict[str, str]:
    """Choose the columns. Returns a dict: "source" and "target" -> the names of these columns in the data."""
    asked = {"source": options.source, "target": options.target}
    given = [str(name) for name in asked.values() if name is not None]
    if len(given) == 2:
        return {side: str(name) for side, name in asked.items()}
    two = _two_columns(source)
    found = dict(zip(SIDES, SIDES, strict=True))
    if two is not None and not given:
        found = _named(two) or (found if _may_not_be_a_pair(source, two) else {"source": "1", "target": "2"})
    elif two is not None:  # the other of the two columns, so that an error names the requested column
        two = two if given[0] in two or not given[0].isdecimal() else ("1", "2")
        first, second = two
        found = {"source": second if first == given[0] else first, "target": first if second == given[0] else second}
    return {side: found[side] if name is None else str(name) for side, name in asked.items()}


def _two_columns(source: Any) -> tuple[str, ...] | None:
    """Return the names of the two columns of a TSV with a header, or of a table; None if there are not two."""
    if isinstance(source, Table):
        names = tuple(source.columns)
    elif isinstance(source, str) and source.lower().removesuffix(".gz").endswith(".tsv"):
        names = find_layout(Path(source), ()).names
    else:
        return None
    return names if len(names) == 2 else None


def _named(two: tuple[str, ...]) -> dict[str, str] | None:
    """Return a dict: "source", "target" -> their names in a header (src and tgt, or two language codes); else None."""
    sides = {side: name for name in two for side, names in _NAMES.items() if name.lower() in names}
    if sides.keys() == set(SIDES):
        return sides
    is_of_codes = two[0] != two[1] and all(_CODE.fullmatch(name) for name in two)
    return dict(zip(SIDES, two, strict=True)) if is_of_codes else None


def _may_not_be_a_pair(source: Any, two: tuple[str, ...]) -> bool:
    """Return whether a first line that `_named` does not recognise may still be a header, instead of the first pair."""
    return bool(set(SIDES) & set(two)) or (isinstance(source, Table) and two != ("1", "2"))


def _note(names: dict[str, str], data: Data) -> str | None:
    """Return a note on how the first line of a file was read, if this was guessed and may be wrong."""
    found = tuple(names.values())
    if found == ("1", "2"):
        first = [data.columns[side][0] for side in SIDES]
        if data.numbers[0] == 1 and all(_WORD.fullmatch(cell) for cell in first):
            told = Sentence(
                "the first line is read as a pair, {source!r} and {target!r}. If it is a header, give these names as "
                "source and target"
            )
            return told.format(source=first[0], target=first[1])
    elif found != SIDES:
        told = Sentence(
            "the first line is read as a header: {source!r} is the source, {target!r} the target. If it is a pair, "
            "give source=1 and target=2"
        )
        return told.format(**names)
    return None
