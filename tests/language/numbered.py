"""The sentences with a number that a reader sees, listed from the code, and a sentence compared with the numbers in it.

Which sentences belong, by the file in which they are:

- *page*: every sentence of the page with a place, `{n} tokens`: the keys of `zh.json`, which
  `tests/viewer/test_words.py` compares with the scripts;
- *figures*: every string with a place in `headwise/plot`, but what `fonts.py` warns of;
- *console*: what `said` and `Heading` are given with a place in `headwise/cli` and `headwise/records/summary.py`,
  and the sentences about the training: `TRAINING`.

Each of the three tests has a table `WITHOUT` of those in which no number is computed, with a word that says why. All
others are visited: a function whose name begins with `visit_` makes a small known situation, obtains the sentence as a
reader does, and gives it to `says` with the numbers as they are computed again.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from tests.language import sentences
from tests.language.sentences import LEAST

PLACE = r"\{(\w+)\}"
NUMBER = r"([+−-]?(?:\d[\d,]*)(?:\.\d+)?(?:e[+−-]?\d+)?(?: ?%)?)"


TRAINING = [f"tasks/training/{name}.py" for name in ("notes", "curve", "callbacks/progress")]
TRAINING.append("tasks/scoring/class_scores.py")


def of_the_page() -> set[str]:
    table = json.loads((sentences.ROOT / "viewer" / "static" / "zh.json").read_text("utf-8"))
    return {english for english in table if re.search(PLACE, english) and not _only_names(english)}


def of_figures() -> set[str]:
    return {text for text in sentences.of_files("plot/*.py", every=True) if has_a_place(text)} - set(
        sentences.of_files("plot/fonts.py", every=True)
    )


def of_the_console() -> set[str]:
    said = [*sentences.of_files("cli/*.py"), *sentences.of_files("records/summary.py")]
    training = [text for name in TRAINING for text in sentences.of_files(name, every=True)]
    return {text for text in (*said, *training) if has_a_place(text)}


def has_a_place(text: str) -> bool:
    """Whether a shape has a value, and so many letters that it is more than a name, as `head {0}` is."""
    own = re.sub(r"\{\d+\}", "", text)
    return own != text and sum(letter.isalpha() for letter in own) >= LEAST


# Places of the page's sentences that hold no number, but a name, or a sentence that is listed itself.
NAMES = {
    *("about", "direction", "edit", "from", "head", "heads", "kind", "layer", "level", "measure", "name", "names"),
    *("row", "scope", "text", "theme", "to", "token", "unit", "view", "what", "why"),
}


def _only_names(english: str) -> bool:
    return set(re.findall(PLACE, english)) <= NAMES


# --- A sentence and its numbers ---------------------------------------------------------------------------------------


def compare(template: str, text: str, expected: dict[str, Any], near: float) -> None:
    """Find a template in a text. Names are as expected; whole numbers are equal, others right to the last digit shown.

    `expected`: for each place of the template a number, a name, or `...`, which is anything. `near`: how far from the
    truth a number may be besides, because of what a page rounds.
    """
    found = search(template, text, expected)
    assert found, (template, expected, text)
    assert (place := wrong(found, expected, near)) is None, f"{template}: {place} is {expected[place]}, shown: {text!r}"


def wrong(found: re.Match[str], expected: dict[str, Any], near: float) -> str | None:
    """The first place of a template that was found whose number is not the expected one; None if all are right."""
    numbers = {place: value for place, value in expected.items() if isinstance(value, int | float)}
    return next((place for place, value in numbers.items() if not agrees(found[f"place_{place}"], value, near)), None)


def search(template: str, text: str, expected: dict[str, Any]) -> re.Match[str] | None:
    assert set(re.findall(PLACE, template)) == expected.keys(), template
    pattern = ""
    for i, piece in enumerate(re.split(PLACE, template.strip())):
        value = expected.get(piece)
        if i % 2 == 0:
            pattern += re.escape(piece)
        elif value is ...:
            pattern += ".+?"
        else:
            pattern += re.escape(value) if isinstance(value, str) else f"(?P<place_{piece}>{NUMBER[1:-1]})"
    return re.search(rf"(?<![\w.,]){pattern}(?![\w%])(?!\.\d)", re.sub(r"\s+", " ", text))


def agrees(shown: str, value: float, near: float) -> bool:
    """Whether a number is right to its last digit; a whole number exactly."""
    number = Decimal(re.sub("[ ,%]", "", shown).replace("−", "-"))
    by = Decimal(100 if "%" in shown else 1)
    if isinstance(value, int):
        return number / by == value
    last = Decimal(1).scaleb(int(number.as_tuple().exponent))
    return abs(float(number / by) - value) <= 0.5001 * float(last / by) + near


# --- The visits -------------------------------------------------------------------------------------------------------


def visited(visit: Callable[..., object]) -> set[str]:
    """The templates that a visit compares: what its code gives to `says` first."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(visit)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    said = [node.args[0] for node in calls if getattr(node.func, "id", getattr(node.func, "attr", "")) == "says"]
    return {str(ast.literal_eval(first)) for first in said}


def check_complete(listed: set[str], visits: Iterable[Callable[..., object]], without: dict[str, str]) -> None:
    """Check that each listed sentence is visited or stands in the table of those without a computed number."""
    seen = set().union(*map(visited, visits))
    assert sorted(listed - seen - without.keys()) == [], "sentences with a number that no visit compares"
    assert sorted((seen | without.keys()) - listed) == [], "no sentences of the code"
    assert sorted(seen & without.keys()) == []
