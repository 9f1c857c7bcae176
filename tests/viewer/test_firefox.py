"""The page in Firefox: each view opens, shows the exact weights, and logs no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwise import masks
from tests.conftest import missing
from tests.viewer.browser import WITHIN
from tests.viewer.conftest import look, record, write
from tests.viewer.firefox import Firefox, firefox

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def fox() -> Iterator[Firefox]:
    with firefox() as found:
        if found is None:
            missing("no Firefox here: scripts/install says how to get one")
        yield found


@pytest.mark.slow
def test_the_page_works_in_firefox(fox: Firefox, tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = look(record(mask=masks.causal()), record(kv_heads=1, mask=masks.causal()))
    path = tmp_path / "page.html"
    write(path, seen)
    fox.open(path.as_uri())

    views = fox.evaluate("headwise.app.tabs.tabs.filter((tab) => !tab.hidden).map((tab) => tab.dataset.view)")
    assert {"model", "head", "text", "compare"} <= set(views)
    for view in views:
        fox.evaluate(f'headwise.state.set({{ view: "{view}", layer: 1, head: 1, row: 4, col: 2 }})')
        assert fox.evaluate("headwise.app.shown.View.id") == view
        fox.evaluate("new Promise((done) => setTimeout(done, 100))")  # what it draws may fail later
        assert fox.evaluate("headwise.app.panel.childElementCount") > 0

    numbers = fox.evaluate('headwise.app.stack.tile(1, 1, [0, 9], [0, 9], 9, 9, "max").then((tile) => [...tile])')
    weights = torch.tensor([0.0 if number is None else number for number in numbers])  # JSON has no NaN
    torch.testing.assert_close(weights.view(9, 9), seen[1].weights()[0, 1], atol=WITHIN, rtol=0)
    fox.press("1")
    assert fox.evaluate("headwise.state.view") == views[0]
    assert fox.console == []
