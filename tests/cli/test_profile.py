"""`headwise profile` and `headwise view profile.hw` as a person uses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwise.profiles import collect, load
from headwise.profiles.resuming import partial

from .conftest import Run, refused

TEXT = "The cat sat on the mat.\nThe dog saw the cat.\n\nA man reads a long book about the sea, and sleeps.\n" * 3


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


def test_profile_writes_a_file_and_view_a_page(run: Run, corpus: Path, tmp_path: Path) -> None:
    result = run("profile", "--file", corpus, "--length", "16", "--layers", "0-1", "--examples", "2")
    assert result.code == 0, result.err
    *_, table, last = result.out.splitlines()
    assert re.match(r"\d+ of 24 heads: those of each kind", table)
    assert "previous token" in result.out
    assert "24 heads over 4 texts" in last
    assert last.endswith("Next: headwise view profile.hw")
    assert not partial(tmp_path / "profile.hw").exists()
    found = load(tmp_path / "profile.hw")
    assert (found.model, found.corpus, found.complete) == ("MiniLM", "corpus.txt", True)
    assert found[0, 2].kind[0] == "previous token"  # of MiniLM, as its positions say
    assert all(len(head.examples) <= 2 for head in found.heads())

    shown = run("view", "profile.hw")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("Wrote heads.html")
    page = (tmp_path / "heads.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in page  # nothing of this machine
    assert "headwise watch --out text.hw -- " in page


def test_each_line_or_each_row_is_a_text(run: Run, corpus: Path, tmp_path: Path) -> None:
    assert run("profile", "--file", corpus, "--lines", "--layers", "0").code == 0
    assert load(tmp_path / "profile.hw").texts == 9
    (tmp_path / "rows.csv").write_text("sentence,label\nA cat.,1\nA dog.,0\n")
    assert run("profile", "--file", "rows.csv", "--column", "sentence", "--layers", "0", "--out", "rows.hw").code == 0
    assert load(tmp_path / "rows.hw").texts == 2


def test_an_interrupted_command_goes_on(
    run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/profiles has what comes out of it."""
    corpus.write_text(TEXT * 2)
    command = ("profile", "--file", corpus, "--lines", "--layers", "0", "--batch", "16")
    save = collect.Profile.save

    def stop(profile: collect.Profile, path: Path) -> None:
        save(profile, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(collect.Profile, "save", stop)
    monkeypatch.setattr(collect.time, "monotonic", iter(range(0, 10**6, 100)).__next__)
    assert run(*command).code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run("view", "profile.partial.hw").code == 0  # what was read so far can be seen
    refused(run(*command, "--length", "32"), "is the checkpoint of another run: its length=128", "delete that file")
    again = run(*command)
    assert again.code == 0, again.err
    assert "going on from profile.partial.hw" in again.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ("--file PATH or --dataset NAME", "Received: neither")),
        (("--file", "corpus.txt", "--dataset", "x"), ("Received: both",)),
        (("--file", "none.txt"), ("none.txt", "no such file")),
        (("--file", "rows.csv"), ("there is no column 'text'", "'sentence'")),
        (("--file", "empty.txt"), ("empty.txt: there is no text in it",)),
        (("--file", "corpus.txt", "--out", "corpus.txt"), ("this is the input file",)),
        (("--file", "corpus.txt", "--out", "none/profile.hw"), ("does not exist",)),
        (("--file", "corpus.txt", "--length", "1000"), ("--length: MiniLM reads 512 tokens at most", "--length 1000")),
        (("--file", "corpus.txt", "--layers", "9"), ("only=9", "none was recorded")),
        (("--dataset", "corpus.txt", "--lines"), ("--lines",)),
        (("--file", "corpus.txt", "--workers", "2"), ("--workers: only Ray uses it", "Add --engine ray")),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], said: tuple[str, ...], run: Run, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("sentence\nA cat.\n")
    (tmp_path / "empty.txt").write_text("\n")
    refused(run("profile", *arguments), *said)
    assert not list(tmp_path.glob("*.hw"))


def test_view_says_what_does_not_fit_a_profile(run: Run, corpus: Path, tmp_path: Path) -> None:
    assert run("profile", "--file", corpus, "--layers", "0").code == 0
    for arguments, said in (
        (("--layers", "0"), "Leave --layers out"),
        (("--model", "x"), "Add --serve"),
        (("--port", "1"), "Add --serve"),
        (("--serve", "--out", "x.html"), "Leave --out or --serve out"),
        (("--out", "profile.hw"), "this is the profile"),
        (("a text",), "expected nothing beside it"),
    ):
        refused(run("view", "profile.hw", *arguments), said)
    refused(run("stats", "profile.hw"), "is a profile, which holds no records")
    data = (tmp_path / "profile.hw").read_bytes()
    (tmp_path / "profile.hw").write_bytes(data[:-9])
    refused(run("view", "profile.hw"), "cut short")
