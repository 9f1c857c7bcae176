"""Every sentence of the page that has a number: the number is computed again, in float64 from q and k.

Which sentences these are, and what a visit is: `tests/language/numbered.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.language import numbered

from . import visits, visits_of_views
from .reader import Reader

if TYPE_CHECKING:
    from playwright.sync_api import Page

# How far a computation is, of no model; where no number is computed; what a reader or a program chose.
WITHOUT = {
    "({n} of {count} layers so far.)": "progress",
    "comparing heads: {n} of {count}": "progress",
    "computing {layer} ({n} of {count}{part})": "progress",
    "sampled: {n} of {count} rows · refining {share} %": "progress",
    "A worksheet holds up to {keys} keys of {dims} dimensions.": "limit",
    "move the cell over the tokens of both; with Shift by {n}": "limit",
    "move the cell; with Shift by {n}": "limit",
    "weights below {n} are not drawn": "given",
    "windows of {n} tokens at most": "given",
    "Written on {date} by headwise {version}": "given",
    "{model} · written on {date} by headwise {version}": "given",
    "estimated from {n} rows of each layer until it is exact": "limit",
    "Every head of layer {n}": "name",
    "head {n}": "name",
    "key/value head {n}": "name",
    "layer {n}": "name",
    "position {n}": "name",
    "token {n}": "name",
}

VISITS = [
    visit for module in (visits, visits_of_views) for name, visit in vars(module).items() if name.startswith("visit_")
]


MARKS = {visits.visit_the_insights: pytest.mark.opening, visits_of_views.visit_a_live_model: pytest.mark.slow}


@pytest.mark.browser
@pytest.mark.parametrize("visit", [pytest.param(each, marks=MARKS.get(each, ()), id=each.__name__) for each in VISITS])
def test_a_page_says_what_is_true(
    visit: Callable[[Reader], None], tab: Page, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    reader = Reader(tab, tmp_path, request)
    visit(reader)
    assert reader.read == numbered.visited(visit)


def test_every_sentence_of_the_page_is_visited() -> None:
    numbered.check_complete(numbered.of_the_page(), VISITS, WITHOUT)
