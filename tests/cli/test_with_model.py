"""`headwise view --with-model`: what is read, and what is refused before the work begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run, facts


def test_without_a_text_the_page_opens_on_an_example(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("view", "--with-model", "--out", page, stdin=None).code == 0
    told = facts(page)
    assert told["live"]["prompt"].startswith("The animal")
    assert told["live"]["prompt"] not in told["model"]["sentences"]
    assert len(told["model"]["sentences"]) == 12
    assert told["title"] == "MiniLM"


def test_a_piped_text_is_read(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("view", "--with-model", "--out", page, stdin=b"a warm film").code == 0
    assert facts(page)["live"]["prompt"] == "a warm film"


def test_other_models_are_refused(run: Run, reviews_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "Received: SmallEncoder" in run("view", reviews_run, "a film", "--with-model", "--out", page).err
    assert not page.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "--dtype", "int8"], "--dtype int8: only --with-model writes weights"),
        (["a", "--with-model", "--serve"], "--with-model and --serve exclude each other"),
        (["run.hw", "--with-model"], "--with-model and RECORDS.hw exclude each other"),
        (["nowhere", "a text", "--with-model"], "Received: 2 texts, 'nowhere' and others. Give one"),
    ],
)
def test_what_does_not_fit(run: Run, arguments: list[str], said: str) -> None:
    result = run("view", *arguments)
    assert result.code == 2
    assert said in result.err
