"""`headwise.view` as it is called: what it takes, where it writes, what it is called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import headwise
from headwise.records import Seen
from headwise.text import Patches

from .conftest import Page, look, record


def test_writes_what_was_seen_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = look(record())
    assert headwise.view(seen) == Path("attention.html")
    np.testing.assert_allclose(Page.read(tmp_path / "attention.html").weights(), seen[0].weights()[0], atol=1e-4)
    assert headwise.view(seen, "other.html") == Path("other.html")
    assert headwise.view(seen, tmp_path / "third.html") == tmp_path / "third.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attention.html", "other.html", "third.html"]


def test_what_was_saved_and_loaded(tmp_path: Path) -> None:
    seen = look(record(batch=2), record(batch=2))
    seen.save(tmp_path / "run.hw")
    page = Page.read(headwise.view(headwise.load(tmp_path / "run.hw"), tmp_path / "page.html"))
    for example in range(2):
        for layer in range(2):
            expected = seen[layer].weights()[example]
            np.testing.assert_allclose(page.weights(example, 0, layer), expected, atol=1e-4)


def test_the_title_is_how_the_texts_begin_or_what_is_said(tmp_path: Path) -> None:
    seen = {"before": look(record()), "after": look(record())}
    assert Page.read(headwise.view(seen, tmp_path / "page.html")).facts["title"] == "before · after"
    page = Page.read(headwise.view(seen, tmp_path / "page.html", title="<Mine> & yours"))
    assert page.facts["title"] == "<Mine> & yours"
    assert "<title>&lt;Mine&gt; &amp; yours</title>" in page.source
    many = {f"checkpoint {i}": record(length=2) for i in range(50)}
    title = Page.read(headwise.view(many, tmp_path / "page.html")).facts["title"]
    assert title.startswith("checkpoint 0 · checkpoint 1 · ")
    assert title.endswith(" · checkpoint 48 · checkpoint 49")  # cut in the middle
    assert len(title) < 130


def test_images_and_prompts_reach_the_page(tmp_path: Path) -> None:
    seen = Seen([record(length=5)])
    seen.tokens = Patches(2, 2)
    axis, _ = Page.read(headwise.view(seen, tmp_path / "page.html", images=torch.rand(4, 4, 3), generated=3)).axes()
    assert axis["patches"] == {"rows": 2, "cols": 2, "prefix": ["[CLS]"]}
    assert axis["image"].startswith("data:image/png;base64,")
    assert axis["generated"] == 3
    assert axis["text"] is False
