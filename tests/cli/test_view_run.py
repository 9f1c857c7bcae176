"""`headwise view RUN TEXT`: the page shows what a trained task did with the text."""

from __future__ import annotations

from pathlib import Path

from .conftest import Run, refused


def test_a_run_is_looked_at(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    result = run("view", reviews_run, "a good film", "a bad film", "--out", "page.html")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Wrote page.html (")
    assert "; 2 inputs, 1 layer, up to " in result.out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "a bad film" in page
    assert "headwise.tasks.load(" in page


def test_what_a_run_cannot_be_asked(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    for arguments, says in (
        (["a text", "--model", "bert"], "is a run folder, which contains its own model. Leave --model out"),
        ([reviews_run, "a text"], "expected its inputs after it. Received: another run folder"),
        (["a text", "--layers", "1"], "--layers: expected layers from 0 to 0"),
    ):
        refused(run("view", reviews_run, *arguments), says)
    assert [*tmp_path.iterdir()] == []
