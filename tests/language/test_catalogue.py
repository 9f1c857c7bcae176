"""The Chinese catalogue: it has every sentence that the code shows, no other, and the words of the glossary."""

from __future__ import annotations

import re

import pytest

from headwise.cli import command
from headwise.doctor.catalogue import CATALOGUE
from headwise.language import read_entries
from headwise.records.statistics import columns
from headwise.tasks import kinds
from tests.language import sentences

ENTRIES = dict(read_entries("zh"))

# What code puts together of several strings.
PLURALS = ("bug", "risk", "note", "check", "layer", "head", "text", "weight", "second")
COMPOSED = {
    *(f"{{0}} {word}{ending}" for word in PLURALS for ending in ("", "s")),
    *(f"{{0}} {what}: {{1}}." for what in ("kinds of attention layers", "changed classes with a bug")),
    *(f"{{0}} {what}" for what in ("for keys and values", "as returned", "(it does not block what it should)")),
    *(f"{of}{tensor} from {{0}}" for of in ("", "its ") for tensor in ("queries", "keys", "values")),
    *("queries and keys", "keys and values", "queries and values", "queries, keys and values"),
    "queries and keys and values",
    *(f"{form} = {means}" for form in ("True", "1") for means in ("may attend", "forbidden")),
    *(f"forward({{0}}): {given}, {{1}}" for given in ("query, key and value", "a query and a memory")),
    *(f"RoPE over {pairs}" for pairs in ("halves", "neighbours")),
    "{0}: it masks exactly the cells that it should allow",
    "{0} -> {1}: {2} heads of {3}",
    "two calls in eval mode with the same input differ by up to {0} of the output's size: {1} acts",
    *(" in nats", " in tokens"),
    *(", ", "; ", ": ", ". ", "Try"),  # joints, and a label
    *("Usage: ", "Options", "default", "required", "Show this message and exit."),  # of click
}


@pytest.fixture(autouse=True)
def no_tasks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that other tests defined in this process have no Chinese."""
    monkeypatch.setattr(kinds, "names", lambda: list(kinds.BUILT_IN))


def needed() -> set[str]:
    headings = {text for column in columns().values() for text in (column.heading, column.sentence) if text}
    titles = {entry.title for entry in CATALOGUE.values()}
    return {*sentences.of_the_code(), *sentences.of_the_command(command), *titles, *headings}


def test_every_sentence_of_the_code_is_translated() -> None:
    missing = sorted(needed() - ENTRIES.keys())
    assert not missing, "add to headwise/locale/zh/LC_MESSAGES/headwise.po:\n\n" + "\n".join(map(_entry, missing))


def _entry(english: str) -> str:
    return "msgid " + '"' + english.replace("\\", "\\\\").replace('"', '\\"') + '"\nmsgstr ""\n'


def test_nothing_is_translated_that_no_code_says() -> None:
    assert sorted(ENTRIES.keys() - needed() - sentences.words_of_the_code() - COMPOSED) == []


def test_a_translation_has_the_values_of_its_sentence() -> None:
    assert [english for english, translated in ENTRIES.items() if not _fits(english, translated)] == []


def _fits(english: str, translated: str) -> bool:
    """Whether the same values are in both; what only marks a plural may be left out: "{0} row{1}" is "{0} 行"."""
    there, found = (set(re.findall(r"\{(\d+)", text)) for text in (english, translated))
    endings = set(re.findall(r"(?:[a-z]|tokens )\{(\d+)\}", english))
    return found <= there and there - found <= endings
