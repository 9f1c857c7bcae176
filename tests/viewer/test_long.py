"""The page of very many tokens: labels by their number, no texts, and pictures of sampled rows that say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from headwise import masks
from headwise.records import AttentionRecord
from headwise.viewer import facts_of, inputs, inputs_of, site
from headwise.viewer.server import serving
from headwise.viewer.statistics import compute_statistics

from .conftest import look, record

LENGTH = 1500


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Already these are very many."""
    monkeypatch.setattr(inputs, "LONG", 100)


@pytest.fixture(scope="module")
def seen() -> AttentionRecord:
    return record(length=LENGTH, dim=4, mask=masks.causal())


def axes(what: Any) -> list[dict[str, Any]]:
    return facts_of(inputs_of(what), title="", quick=True)["axes"]


def test_positions_are_numbers_and_tokens_keep_their_labels() -> None:
    (axis,) = axes(record(length=101))
    assert (axis["count"], axis["first"], "labels" in axis, "words" in axis) == (101, 0, False, False)
    rows, cols = axes(record(length=120, keys=150))
    assert (rows["count"], rows["first"], cols["count"], cols["first"]) == (120, 0, 150, 0)
    assert len(axes(record(length=100))[0]["labels"]) == 100

    (axis,) = axes(look(record(length=101)))
    assert (axis["count"], axis["labels"][:2], axis["text"]) == (101, ("w0", "w1"), True)
    assert "words" not in axis

    facts = facts_of(inputs_of(look(record(length=101))), title="", quick=True)
    assert facts["inputs"][0]["stacks"][0]["pairs"] == []


def test_how_many_weights_the_mask_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the block of 64 × 64: of 256 tokens 10 of 16 blocks."""
    monkeypatch.setattr("headwise.viewer.facts.QUICK_CELLS", 1)

    def weights(mask: masks.Mask | None) -> int | None:
        facts = facts_of(inputs_of(record(length=256, mask=mask)), title="", quick=True)
        return facts["inputs"][0]["stacks"][0]["layers"][0]["weights"]

    assert weights(masks.causal()) == 10 * 64**2
    assert weights(masks.documents([0] * 64 + [1] * 192)) == 10 * 64**2
    assert weights(None) is None
    assert weights(masks.from_predicate(lambda b, h, q, k: q >= k)) is None


def test_statistics_are_estimated_from_fewer_rows_of_longer_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ESTIMATED_CELLS", 2 * 300 * 40)
    short, long = record(length=30), record(length=300)
    assert (site.count_rows(short), site.count_rows(long)) == (256, 40)
    tokens = inputs_of(long)[0].stacks[0].cols.tokens
    found = compute_statistics(long, {0: tokens}, kind="self", rows=40)[0]
    assert found["induction"] == [None, None]
    assert all(isinstance(each, float) for each in found["entropy"])


@pytest.fixture
def tab(chromium: Browser, seen: AttentionRecord) -> Iterator[Page]:
    with serving(inputs_of(seen), title="Very long") as address:
        context = chromium.new_context(viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(f"{address}#lang=en&strip=false")
        page.wait_for_function("() => window.headwise?.app.view.map.settled")
        page.evaluate("() => headwise.app.view.map.settled()")
        yield page
        context.close()


SAMPLE = """async (most) => {
    const { map, note } = headwise.app.view;
    const said = [];
    map.plates.mostWeights = most;
    new MutationObserver(() => said.push(note.textContent)).observe(note, { childList: true });
    headwise.app.go({ head: 1 });
    await map.settled();
    const { height, width, weights } = map.plates.whole.coarse;
    return { said, height, width, weights: [...weights] };
}"""


@pytest.mark.browser
def test_of_too_many_tokens_a_sample_is_drawn_and_it_is_said(tab: Page, seen: AttentionRecord) -> None:
    found = tab.evaluate(SAMPLE, LENGTH**2 // 2)
    height, width = found["height"], found["width"]
    assert found["said"][-1] == f"sampled: {height} of 1,500 rows · zoom in for exact weights"
    cuts, edges = (np.arange(bins + 1) * LENGTH // bins for bins in (height, width))
    rows = (cuts[:-1] + cuts[1:]) // 2
    weights = seen.weights(rows=rows.tolist(), heads=1)[0, 0].numpy()
    expected = np.maximum.reduceat(weights, edges[:-1], axis=1)
    sampled = np.array(found["weights"], dtype=float).reshape(height, width)
    np.testing.assert_allclose(np.nan_to_num(sampled), expected, atol=1e-5)

    # Closer the weights are exact.
    note = tab.evaluate(
        """async () => {
            headwise.app.state.set({ sight: [1400, 1420, 1390, 1410] });
            await headwise.app.view.map.settled();
            return headwise.app.view.note.textContent;
        }"""
    )
    assert note == "exact"
    weight = tab.evaluate("() => headwise.app.view.map.plates.weight(1410, 1400)")
    assert weight == pytest.approx(seen.weights(rows=1410, cols=1400, heads=1).item(), abs=1e-6)

    # Views of each token say that there are too many.
    for view in ("text", "lines", "flow", "neuron"):
        tab.evaluate("(view) => headwise.app.state.set({ view })", view)
        said = tab.locator("text=This view shows each token, and 1,500 tokens are too many for it.")
        said.first.wait_for()
    labels = tab.evaluate("() => headwise.app.stack.rows.labels.slice(-2)")
    assert labels == ["1498", "1499"]
