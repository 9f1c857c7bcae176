"""The language of the command, the page and the reports: English, or one that has a catalogue of sentences in locale/.

    language.speak("zh")
    print(said("Wrote {path} ({rows:,} rows).", path="out.csv", rows=12))      # 已写入 out.csv（12 行）。

A sentence stands in the code in English: a template, whose values have names. The template is translated, and then the
values are filled in. A `Sentence` is a text that is made now and said later: it is English for
JSON, SARIF and exceptions, and remembers its template and values for `said`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import string
import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

LANGUAGES = {"en": "English", "zh": "中文"}
VARIABLE = "HEADWISE_LANG"
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set counts

_spoken: str | None = None  # None: the language of the environment
_asked = False


def printable(text: str) -> str:
    """Return a text in which what controls a terminal or the order of letters is as "\\u001b"; lines and tabs stay."""
    return re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", lambda at: f"\\u{ord(at[0]):04x}", text)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, `printable`, on standard output or standard error. Nothing else prints text of others."""
    print(printable(text), file=sys.stderr if err else sys.stdout, end="\n" if nl else "", flush=True)


def speak(language: str | None, *, asked: bool = True) -> None:
    """Use a language, such as "zh" or "zh-CN", from now on; None: the language of `HEADWISE_LANG`, or else English.

    A language without a catalogue becomes English. `asked`: the user named the language, so that pages are written in
    it; otherwise each reader's browser decides.
    """
    global _spoken, _asked
    _spoken = None if language is None else known(language) or "en"
    _asked = asked and language is not None


def language() -> str:
    """Return the language in use: a key of `LANGUAGES`."""
    return _spoken or known(os.environ.get(VARIABLE, "")) or "en"


def asked() -> str | None:
    """Return the language that the user named; None if the language comes from the system or is the default."""
    return _spoken if _asked else None


def of_the_system(environment: Mapping[str, str]) -> str:
    """Return the language of the user of this terminal: by `HEADWISE_LANG`, else by the locale."""
    first = next((environment[name] for name in (VARIABLE, *_LOCALE) if environment.get(name)), "")
    return known(first) or "en"


def known(tag: str) -> str | None:
    """Return the language code of a tag: "zh" for "zh_CN.UTF-8" and "zh-Hans"; None if it has no catalogue."""
    short = re.split(r"[-_.@]", tag.lower(), maxsplit=1)[0]
    return short if short in LANGUAGES else None


_FILLER = string.Formatter()


class Sentence(str):
    """A sentence in English that remembers its template and its values, so that `said` can translate it.

    >>> told = Sentence("the scores are divided by {factor:.3f}").format(factor=8)
    >>> told, told.template
    ('the scores are divided by 8.000', 'the scores are divided by {factor:.3f}')
    """

    template: str
    values: Mapping[str, object]

    def __new__(cls, text: str, template: str | None = None, values: Mapping[str, object] | None = None) -> Sentence:
        made = super().__new__(cls, text)
        made.template, made.values = text if template is None else template, values or {}
        return made

    def format(self, **values: object) -> Sentence:  # type: ignore[override]  # places have names
        """Return the sentence with its values in place of "{name}"."""
        kept = {}
        for _, place, spec, conversion in _FILLER.parse(self):
            if place is not None:
                value = _FILLER.convert_field(_FILLER.get_field(place, (), values)[0], conversion)
                kept[place] = value if isinstance(value, (str, int, float)) else format(value, spec or "")
        return Sentence(super().format(**values), str(self), kept)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers among its values and in sentences among them, by name: its own first, then the earlier one."""
        found: dict[str, float] = {}
        for name, value in self.values.items():
            if isinstance(value, Sentence):
                found = value.numbers | found
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                found[name] = value
        return found

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copies and pickles
        return str(self), self.template, self.values


def named(name: str) -> str:
    """Return a name that stays, and its meaning in the language in use: "accuracy 准确率"; in English the name."""
    meaning = said(name)
    return name if meaning == name else f"{name} {meaning}"


def join(sentences: Iterable[str], joint: str = ", ") -> Sentence:
    """Join sentences to one; the joint ("; ", ". ", " and ") is translated as the template "{first}; {then}"."""
    first, *rest = [*sentences] or [""]
    for then in rest:
        first = Sentence(f"{{first}}{joint}{{then}}").format(first=first, then=then)
    return first if isinstance(first, Sentence) else Sentence(first)


def counted(count: int, word: str) -> Sentence:
    """Return a count with its noun: "1 layer", "2 layers"."""
    return Sentence(f"{{n:,}} {word}{'s' * (count != 1)}").format(n=count)


_PACKED = "\0sentence"  # no name of a check or a number begins so


def packed(value: Any) -> Any:
    """Return JSON-compatible values as others in which a `Sentence` keeps its template and values, for `unpacked`."""
    if isinstance(value, Sentence):
        return {_PACKED: [str(value), value.template, packed(value.values)]}
    if isinstance(value, Mapping):
        return {name: packed(each) for name, each in value.items()}
    return [packed(each) for each in value] if isinstance(value, (list, tuple)) else value


def unpacked(value: Any) -> Any:
    """Return what `packed` was given. Raises TypeError for what it has not made."""
    if isinstance(value, dict):
        inside = {name: unpacked(each) for name, each in value.items()}
        return Sentence(*inside[_PACKED]) if _PACKED in inside else inside
    return [unpacked(each) for each in value] if isinstance(value, list) else value


def sentence_of(error: BaseException) -> str:
    """Return the message of an exception; one that was made with a `Sentence` keeps it."""
    return error.args[0] if error.args and isinstance(error.args[0], Sentence) else str(error)


def said(text: str, /, **values: object) -> str:
    """Say a sentence in the language in use. A template with values is filled; a `Sentence` has its own values.

    A value that is a `Sentence`, or several words that the catalogue has, is said in that language, too. One word may
    be a name in the user's code and stays, unless it is a `Sentence`.
    """
    sentence = Sentence(text).format(**values) if values else text
    spoken = language()
    if spoken == "en":
        return str(sentence)
    catalogue = read_catalogue(spoken)
    if not isinstance(sentence, Sentence):
        return catalogue.get(sentence, sentence)
    template = catalogue.get(sentence.template, sentence.template)
    return _fill(template, sentence.values) if sentence.values else template


def _fill(template: str, values: Mapping[str, object]) -> str:
    """Fill a translated template with the values that a `Sentence` has kept, said in the language in use.

    Chinese and Latin that meet at the edge of a value get a space between them. The space of a template goes after a
    Chinese stop, and between its Chinese and that of a translated value.
    """
    filled, translated = "", False  # whether the text ends with a translated value
    for literal, place, spec, _ in _FILLER.parse(template):
        filled = _beside(filled, literal, translated)
        if place is None:
            break
        value = values[place]
        shown = value if isinstance(value, str) else format(value, spec or "")
        if isinstance(value, Sentence) or " " in shown:
            shown = said(shown)
        translated = isinstance(value, Sentence) or shown != value
        filled = _beside(filled, shown, translated)
    return filled


_HAN = "[\u3400-\u9fff]"


def _beside(left: str, right: str, translated: bool) -> str:
    """Join two pieces of a Chinese text: with one space between Chinese and Latin, and none after "。"."""
    seam = f"{left[-2:]}\0{right[:2]}"
    if re.search(rf"{_HAN}\0[A-Za-z0-9(\[]|[A-Za-z0-9)\]%]\0{_HAN}", seam):
        return f"{left} {right}"
    if re.search(r"[，。；：？！]\0 ", seam) or (translated and re.search(rf"{_HAN}\0 {_HAN}", seam)):
        return left + right[1:]
    return left[:-1] + right if translated and re.search(rf"{_HAN} \0{_HAN}", seam) else left + right


@functools.cache
def read_catalogue(spoken: str) -> dict[str, str]:
    """Return the table English -> translation of a language."""
    file = resources.files(__name__.rpartition(".")[0]) / "locale" / f"{spoken}.json"
    return json.loads(file.read_text("utf-8"))
