"""The Chinese catalogue: it has every sentence that the code shows, no other, and the words of the glossary."""

from __future__ import annotations

import json
import re

import pytest

from headwise.cli import command
from headwise.doctor.catalogue import CATALOGUE
from headwise.doctor.laws import PROBED, READ, SOURCE
from headwise.doctor.reading.projection_names import PLURALS
from headwise.language import read_catalogue
from headwise.records.statistics import columns
from headwise.tasks import kinds
from tests.language import sentences

ENTRIES = read_catalogue("zh")

# What code puts together of several strings.
COUNTED = ("bug", "risk", "note", "check", "layer", "head", "text", "weight", "row")
COMPOSED = {
    *(f"{{n:,}} {word}{ending}" for word in COUNTED for ending in ("", "s")),
    *(f"{{first}}{joint}{{then}}" for joint in (", ", "; ", ": ", ". ", " and ", " or ", " on ")),
    *(f"validation {score}" for score in ("loss", "accuracy")),
    *(f"{vectors} from {{{letter}}}" for letter, vectors in PLURALS.items()),
    *(f"{form} = {means}" for form in ("True", "1") for means in ("may attend", "forbidden")),
    *(f"RoPE over {pairs}" for pairs in ("halves", "neighbours")),
    *(" in nats", " in tokens"),
    *("permission denied", "is a directory", "not a directory", "no such file or directory", "no space left on device"),
    *("Usage: ", "Options", "default", "required", "Show this message and exit."),  # of click
    *(f"Invalid value{of}: {{message}}" for of in ("", " for {param_hint}")),
    *("Missing argument", "Missing option", "Missing parameter", "Missing command.", "file", "directory", "path"),
    *("No such option {name!r}.", "No such command {name!r}.", "Option {name!r} requires an argument."),
    *(
        "Choose from:\n\t{choices}",
        "Option {name!r} does not take a value.",
        "{value!r} is not {choice}.",
    ),
    *("{value!r} is not a valid {number_type}.", "{value} is not in the range {range}."),
    *("{value!r} is not one of {choices}.", "{name} {filename!r} does not exist."),
    *("Got unexpected extra argument ({args})", "Got unexpected extra arguments ({args})"),
    *(f"{{name}} {{filename!r}} is {what}." for what in ("a file", "a directory", "not readable", "not writable")),
}


@pytest.fixture(autouse=True)
def no_tasks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that other tests defined in this process have no Chinese."""
    monkeypatch.setattr(kinds, "names", lambda: list(kinds.BUILT_IN))


def needed() -> set[str]:
    headings = {text for column in columns().values() for text in (column.heading, column.sentence) if text}
    titles = {entry.title for entry in CATALOGUE.values()}
    checks = {*SOURCE, *READ, *PROBED}  # a title stands beside the name of each
    shown = {*sentences.of_the_code(), *sentences.of_the_command(command), *_of_the_servers_page()}
    return shown | titles | headings | checks


def _of_the_servers_page() -> set[str]:
    page = (sentences.ROOT / "server" / "routes" / "docs.html").read_text("utf-8")
    return {*re.findall(r"\{\{(.+?)\}\}", page)} - {"lang"}


def test_every_sentence_of_the_code_is_translated() -> None:
    missing = sorted(needed() - ENTRIES.keys())
    assert not missing, "add to headwise/locale/zh.json:\n\n" + json.dumps(missing, indent=1, ensure_ascii=False)


def test_nothing_is_translated_that_no_code_says() -> None:
    assert sorted(ENTRIES.keys() - needed() - sentences.words_of_the_code() - COMPOSED) == []


def test_a_translation_has_the_values_of_its_sentence() -> None:
    assert [english for english, translated in ENTRIES.items() if not _fits(english, translated)] == []


def _fits(english: str, translated: str) -> bool:
    """Whether the same values are in both; what only marks a plural may be left out: "{n} row{s}" is "{n} 行"."""
    there, found = (set(re.findall(sentences.PLACE, text)) for text in (english, translated))
    return found <= there and there - found <= {"{s}", "{are}"}


def test_no_sentence_is_an_f_string() -> None:
    assert list(sentences.f_strings()) == [], (
        'write Sentence("… {name} …").format(name=…), or said("… {name} …", name=…)'
    )
