"""Every view shows the numbers of the definition: read off the page, and computed again in float64 from q and k."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise import masks
from headwise.profiles import profile
from headwise.records import AttentionRecord, Seen
from headwise.text import Patches
from headwise.viewer.profiled import write_profile_page
from tests.profiles.tiny import tiny

from .browser import open_page
from .conftest import look, record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PLACES = 10
NEAR = {"abs": 2e-4, "rel": 5e-4}  # what a page in a file rounds, and the four digits that it shows
LENGTHS = [15, 400, pytest.param(4096, marks=pytest.mark.slow)]


class Truth:
    """The weights of a causal record in float64, a row at a time."""

    def __init__(self, of: AttentionRecord) -> None:
        self.q, self.k = of.q[0].double(), of.k[0].double()

    def row(self, head: int, row: int) -> Tensor:
        scores = self.k[head] @ self.q[head, row] / self.q.shape[-1] ** 0.5
        return scores.masked_fill(torch.arange(len(scores)) > row, -torch.inf).softmax(-1)

    def rows(self, head: int) -> Tensor:
        return torch.stack([self.row(head, row) for row in range(self.q.shape[1])])


def places(length: int) -> list[tuple[int, int]]:
    """Pairs of a query and a key that it sees: the first, the last, and some between them."""
    rows = np.linspace(0, length - 1, PLACES).astype(int)
    return [(int(row), int(row) * i // (PLACES - 1)) for i, row in enumerate(rows[::-1])]


def numbers(text: str) -> list[float]:
    """The numbers with decimals in a text of the page, and its percentages as shares."""
    return [
        float(number.replace("−", "-")) / (100 if share else 1)
        for number, share in re.findall(r"([+−-]?\d+(?:\.\d+)?(?:e[−-]?\d+)?)( %)?", text)
    ]


def go(tab: Page, **state: object) -> None:
    tab.evaluate("(state) => headwise.app.go(state)", state)


def text_of(tab: Page, selector: str) -> str:
    found = tab.locator(selector)
    found.wait_for()
    return found.inner_text()


def at_cell(tab: Page, selector: str, row: int, col: int) -> float:
    (weight,) = numbers(text_of(tab, f'{selector}[data-cell="{row},{col}"] b'))
    return weight


@pytest.fixture
def seen() -> Callable[[int], Seen]:
    return lambda length: look(*(record(length=length, mask=masks.causal()) for _ in range(2)))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_weight_of_a_pair(tab: Page, tmp_path: Path, seen: Callable[[int], Seen], length: int) -> None:
    """In the line below every view, in the 3-D view's label, and as the last step of the Neuron view."""
    made = seen(length)
    truth = Truth(made[1])
    open_page(tab, tmp_path, made, "view=head&layer=1&head=1")
    for row, col in places(length):
        expected = pytest.approx(float(truth.row(1, row)[col]), **NEAR)
        go(tab, view="head", row=row, col=col)
        assert at_cell(tab, "#cell", row, col) == expected, (row, col)
        go(tab, view="surface")
        assert at_cell(tab, ".view-surface .tip", row, col) == expected, (row, col)
        go(tab, view="neuron")
        tab.locator(f'.view-neuron .pair[data-cell="{row},{col}"]').wait_for()
        said = tab.locator(".view-neuron .steps tr", has_text="Weight").last.locator(".number").inner_text()
        assert numbers(said)[-1] == expected, (row, col)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("view", ["lines", "text"])
def test_the_largest_weights_of_a_token(
    tab: Page, tmp_path: Path, seen: Callable[[int], Seen], view: str, length: int
) -> None:
    made = seen(length)
    truth = Truth(made[0])
    open_page(tab, tmp_path, made, f"view={view}&layer=0&head=0")
    for row, _ in places(length):
        go(tab, pinRow=row, row=row)
        tab.locator(f'.attention-caption [data-asked="{row}"]').wait_for()
        items = tab.locator(".attention-caption li").all_inner_texts()
        weights = truth.row(0, row)
        assert len(items) == min(5, row + 1)
        for item, most in zip(items, weights.sort(descending=True).values.tolist(), strict=False):
            token, weight = re.fullmatch(r"w(\d+) \d+\s+(\S+)", item.replace("\n", " ")).groups()  # type: ignore[union-attr]
            assert float(weight) == pytest.approx(most, **NEAR) == pytest.approx(float(weights[int(token)]), **NEAR)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_statistics_of_the_heads(tab: Page, tmp_path: Path, seen: Callable[[int], Seen], length: int) -> None:
    made = seen(length)
    open_page(tab, tmp_path, made, "view=model")
    away = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    computed: dict[str, Callable[[Tensor], Tensor]] = {
        "entropy": lambda rows: -torch.xlogy(rows, rows).sum(-1).mean(),
        "distance": lambda rows: (rows * away).sum(-1).mean(),
        "first_visible": lambda rows: rows[:, 0].mean(),
        "previous": lambda rows: rows.diagonal(-1).mean(),
    }
    weights = [Truth(each).rows(head) for each in made for head in range(2)]
    for name in computed:
        go(tab, stat=name)
        shown = tab.locator(".view-model .tile .under b").all_inner_texts()
        expected = [float(computed[name](rows)) for rows in weights]
        for text, number in zip(shown, expected, strict=True):  # right to the last digit that is shown
            assert abs(float(text) - number) <= 0.55 * 10 ** -len(text.partition(".")[2]), (name, text, number)


@pytest.mark.parametrize("length", [15, 400])
def test_the_shares_of_a_rollout(tab: Page, tmp_path: Path, seen: Callable[[int], Seen], length: int) -> None:
    made = seen(length)
    mixed = [0.5 * (sum(Truth(each).rows(head) for head in range(2)) / 2 + torch.eye(length)) for each in made]
    expected = mixed[1] @ mixed[0]
    open_page(tab, tmp_path, made, "view=flow")
    for row, col in places(length):
        go(tab, pinRow=row, row=row)
        tab.wait_for_function(
            "(token) => headwise.app.view.flow?.token === token && headwise.app.view.flow.part === 1", arg=row
        )
        go(tab, col=col)
        share = pytest.approx(float(expected[row, col]), **NEAR)
        for _ in range(100):  # of the token before, until the line is written anew
            if at_cell(tab, ".view-flow .reading", 2, col) == share:
                break
            tab.wait_for_timeout(50)
        assert at_cell(tab, ".view-flow .reading", 2, col) == share


@pytest.mark.parametrize("length", LENGTHS)
def test_two_models_compared(tab: Page, tmp_path: Path, seen: Callable[[int], Seen], length: int) -> None:
    both = [seen(length), seen(length)]
    truths = [Truth(each[1]) for each in both]
    open_page(tab, tmp_path, both, "view=compare&layer=1&head=0")
    for row, col in places(length):
        go(tab, row=row, col=col)
        reading = text_of(tab, f'.view-compare .reading[data-cell="{row},{col}"]')
        one, other = (float(truth.row(0, row)[col]) for truth in truths)
        shown = [number for number in numbers(reading) if not number.is_integer() or number in (0, 1)]
        assert shown[-3:] == pytest.approx([one, other, other - one], **NEAR), reading


def test_the_patches_of_an_image(tab: Page, tmp_path: Path) -> None:
    made = look(record(length=16, mask=masks.causal()))
    made.tokens = Patches(3, 5, ("[CLS]",))
    truth = Truth(made[0])
    open_page(tab, tmp_path, made, "view=image&head=1")
    for row in range(1, 11):
        go(tab, pinRow=row, row=row)
        tab.locator(f'.attention-caption [data-asked="{row}"]').wait_for()
        shown = [numbers(item)[-1] for item in tab.locator(".attention-caption li").all_inner_texts()]
        assert shown == pytest.approx(truth.row(1, row).sort(descending=True).values[: len(shown)].tolist(), **NEAR)


def test_the_page_of_a_profile(tab: Page, tmp_path: Path) -> None:
    """Head 0 looks at the token before, head 1 at all tokens alike; what is not a word does not count as a query."""
    words = ["the", "cat", "saw", "the", "dog", ",", "and", "the", "cat", "ran"]
    length = len(words) + 2  # [CLS] and [SEP]
    scores = torch.stack([2.0 * torch.eye(length).roll(1, 0), torch.zeros(length, length)]).double()
    scores[0, 0] = 0.0  # no token before
    weights = scores.softmax(-1)[:, 1:-1]
    write_profile_page(tmp_path / "heads.html", profile(tiny(2.0), [" ".join(words)], length=16), title="heads")
    tab.goto((tmp_path / "heads.html").as_uri())
    tab.locator(".card").first.wait_for()
    expected = [-torch.xlogy(weights, weights).sum(-1), weights[..., 0], weights[..., 0] + weights[..., -1]]
    for head in range(2):
        shown = tab.locator(".card").nth(head).locator(".value").all_inner_texts()
        assert [float(each) for each in shown] == pytest.approx([float(x[head].mean()) for x in expected], abs=0.006)
    tab.locator(".card").first.click()
    figure = tab.locator(".example").first
    figure.wait_for()
    titles = [str(each.get_attribute("title")) for each in figure.locator(".token").all()]
    classes = [str(each.get_attribute("class")) for each in figure.locator(".token").all()]
    (query,) = (place for place, each in enumerate(classes) if "query" in each.split())
    told = [float(title.rpartition(": ")[2]) for title in titles]
    assert told == pytest.approx(weights[0, query - 1].tolist(), abs=2e-4)
