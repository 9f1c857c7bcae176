"""The language of the command, the page and the reports: English, or one that has a catalogue of sentences in locale/.

    language.speak("zh")
    print(said(f"Wrote {path} ({rows} rows)."))        # 已写入 out.csv（12 行）。

Sentences are in English in the code, and are translated where they are shown. The catalogue has their shapes (the
sentences with a number in place of each value): "Wrote {0} ({1} rows)." So a sentence with values is written as any
other f-string, and data that are stored or sent to programs (JSON, SARIF, exceptions) stay English.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

LANGUAGES = {"en": "English", "zh": "中文"}
VARIABLE = "HEADWISE_LANG"
LEAST = 7  # a sentence with values of any words is recognised only if it has at least so many letters of its own
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


def said(text: str) -> str:
    """Translate a text into the language in use; return the text itself if the catalogue does not have it.

    Values of a sentence are translated, too, if they are sentences of the catalogue, and so are sentences joined by a
    comma, a semicolon or a colon. A value of one word is not translated: it may be a name in the user's code. If it is
    one of our words, the translation says so: "{0:word}".
    """
    spoken = language()
    return text if spoken == "en" else _catalogue(spoken)[0].get(text) or _composed(text, spoken) or text


@functools.lru_cache(maxsize=4096)
def _composed(text: str, spoken: str) -> str | None:
    """Translate a text of several words by the catalogue's sentences and shapes; None if none of them fits."""
    if " " not in text.strip():
        return None
    phrases, shapes = _catalogue(spoken)
    if text in phrases:
        return phrases[text]
    if (found := _joined(text, ["; "], spoken)) is not None:
        return found
    for shape in shapes:
        if (values := shape.values(text)) is not None:
            return shape.filled(values, [_composed(value, spoken) or value for value in values], phrases)
    label, colon, rest = text.partition(": ")
    if colon and (label in phrases or re.fullmatch("`[^`]*`", label)):
        return f"{phrases.get(label, label)}{phrases.get(colon, colon)}{_composed(rest, spoken) or rest}"
    return _joined(text, _JOINTS, spoken)


def _joined(text: str, joints: Sequence[str], spoken: str) -> str | None:
    """Translate a text cut in two at a joint, such as ", ": at the last joint where this works; None if none does."""
    phrases = _catalogue(spoken)[0]
    for joint in reversed(list(re.finditer("|".join(map(re.escape, joints)), text))):
        head, whole, tail = text[: joint.start()], text[joint.start() :], text[joint.end() :]
        first = _composed(head, spoken)
        if first is None and len(re.findall(r"(?<![\w.])[a-z]{2,}(?![\w.(])", head)) >= 3:
            continue
        if head and (second := _composed(whole, spoken)) is not None:
            return f"{first or head}{second}"
        if (second := _composed(tail, spoken)) is not None:
            return f"{first or head}{phrases.get(joint[0], joint[0])}{second}"
    return None


_JOINTS = (", ", "; ", ". ", " and ")


class _Shape:
    """A sentence of the catalogue with numbers in place of values, "Wrote {0} ({1} rows).", and its translation."""

    def __init__(self, english: str, translated: str) -> None:
        self.pieces, self.translated = re.split(r"\{\d+\}", english), translated
        # "{0} heads" has too few letters to be recognised: its values must be numbers, or begin with a number.
        self.takes_words = sum(letter.isalpha() for piece in self.pieces for letter in piece) >= LEAST

    def values(self, text: str) -> list[str] | None:
        """Return the values in a text that is this sentence with values; None for another text.

        Each piece of the sentence between two values is matched where it first occurs.
        """
        first, *between, last = self.pieces
        end = len(text) - len(last)
        if not (text.startswith(first) and text.endswith(last) and end >= len(first)):
            return None
        found, at = [], len(first)
        for piece in between:
            next_at = text.find(piece, at, end)
            if next_at < 0:
                return None
            found.append(text[at:next_at])
            at = next_at + len(piece)
        found.append(text[at:end])
        return found if self.takes_words or all(re.fullmatch(r"[\d.,]+%?( \S+)?", value) for value in found) else None

    def filled(self, values: list[str], translated: list[str], phrases: Mapping[str, str]) -> str:
        def value(place: re.Match[str]) -> str:
            number = int(place[1])
            return phrases.get(values[number], translated[number]) if place[2] else translated[number]

        return re.sub(r"\{(\d+)(:word)?\}", value, self.translated)


@functools.cache
def _catalogue(spoken: str) -> tuple[dict[str, str], list[_Shape]]:
    """Return (whole sentence -> translation, shapes of sentences with values); shapes with the most letters first."""
    entries = dict(read_entries(spoken))
    shapes = [_Shape(english, translated) for english, translated in entries.items() if re.search(r"\{\d+\}", english)]
    return entries, sorted(shapes, key=lambda shape: -sum(map(len, shape.pieces)))


def read_entries(spoken: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs (English, translation) of a catalogue. The .po file of gettext is read directly."""
    file = resources.files(__name__.rpartition(".")[0]) / "locale" / spoken / "LC_MESSAGES" / "headwise.po"
    for entry in file.read_text("utf-8").split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in entry.splitlines():
            if match := re.fullmatch(r'(msgid|msgstr)? ?"(.*)"', line):
                name = match[1] or name
                fields[name] = fields.get(name, "") + re.sub(r"\\(.)", lambda c: _ESCAPED.get(c[1], c[1]), match[2])
        if fields.get("msgid") and fields.get("msgstr"):
            yield fields["msgid"], fields["msgstr"]


_ESCAPED = {"n": "\n", "t": "\t"}
