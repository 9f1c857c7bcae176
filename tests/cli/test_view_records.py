"""`headwise view` of files of records, and on a server."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headwise
from headwise.records import Seen
from headwise.viewer import Input
from headwise.viewer.changes import Asked, Change
from headwise.viewer.live import Live
from tests.records.parting import record_of, split, whole_call, write
from tests.viewer.conftest import look, record

from .conftest import Run, contents, facts, refused
from .test_view import OLD

Calls = list[dict[str, Any]]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """run.hw: three layers of two heads over a text of five tokens, two examples."""
    save(tmp_path / "run.hw")
    return tmp_path / "run.hw"


def save(path: Path, layers: int = 3) -> None:
    seen = look(*(record(batch=2, length=5) for _ in range(layers)))
    seen.tokens = [list("abcde"), ["this", "is", "one", "more", "."]]
    seen.save(path)


def layers(page: dict[str, Any]) -> list[str]:
    return [layer["expression"] for layer in page["inputs"][0]["stacks"][0]["layers"]]


def test_a_folder_of_parts_is_a_file_of_records(run: Run, tmp_path: Path) -> None:
    """`view`, `stats`, `plot` and `worksheet` show what several processes wrote as they show one file."""
    call = whole_call()
    Seen([record_of(call)]).save(tmp_path / "one.hw")
    write(tmp_path / "parts.hw", split(call))
    told = {}
    for name in ("one.hw", "parts.hw"):
        shown = [
            run("view", name),
            run("stats", name),
            run("plot", name, "--out", "found.svg"),
            run("worksheet", name, "--head", "1", "--row", "9", "--col", "4"),
        ]
        assert [each.code for each in shown] == [0] * 4, shown
        told[name] = shown[1].out, shown[3].out.replace(name, ""), layers(facts(tmp_path / "attention.html"))
    assert told["one.hw"] == told["parts.hw"]
    (tmp_path / "parts.hw").rename(tmp_path / "parts")  # a folder may have any name
    assert "attention" in run("view", "parts").out
    assert layers(facts(tmp_path / "attention.html")) == told["one.hw"][2]
    (tmp_path / "parts").rename(tmp_path / "parts.hw")
    (tmp_path / "parts.hw" / "1-of-3.hw").unlink()
    refused(run("view", "parts.hw"), "expected the 3 parts of its run", "Missing: 1-of-3.hw")


def test_writes_the_page_of_a_file_and_says_what_is_in_it(run: Run, records: Path, tmp_path: Path) -> None:
    result = run("view", "run.hw")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(
        r"Wrote attention\.html \(\d+ kB; 2 inputs, 3 layers, up to 5 tokens\): open it in a browser; .*\n", result.out
    )
    page = facts(tmp_path / "attention.html")
    assert (page["title"], page["made"]) == ("run.hw", 'headwise.load("run.hw")')
    assert [each["name"] for each in page["inputs"]] == ["a b c d e · 1 of 2", "this is one more. · 2 of 2"]
    seen = eval(page["made"], {"headwise": headwise})
    for i, expression in enumerate(layers(page)):
        assert eval(expression, {"seen": seen}) is seen.records[i]

    result = run("view", "run.hw", "./run.hw", records)
    assert result.code == 0
    assert "headwise: run.hw was given 3 times; it is shown once" in result.err
    assert len(facts(tmp_path / "attention.html")["inputs"]) == 2  # the two examples of the file's batch

    assert run("view", "run.hw", "--layers", "0,2").code == 0
    assert layers(facts(tmp_path / "attention.html")) == ["seen[0]", "seen[2]"]


def test_several_files_are_inputs_that_can_be_compared(run: Run, records: Path, tmp_path: Path) -> None:
    (tmp_path / 'b "2"').mkdir()
    save(tmp_path / 'b "2"' / "other.hw", layers=2)
    assert run("view", "run.hw", 'b "2"/other.hw', "--out", "both.html").code == 0
    page = facts(tmp_path / "both.html")
    assert page["title"] == "run.hw · other.hw"
    assert [each["name"] for each in page["inputs"]][2:] == ['b "2"/other.hw · 1 of 2', 'b "2"/other.hw · 2 of 2']
    seen = eval(page["made"], {"headwise": headwise})
    assert {name: len(each) for name, each in seen.items()} == {"run.hw": 3, 'b "2"/other.hw': 2}
    last = page["inputs"][3]["stacks"][0]["layers"][1]["expression"]
    assert eval(last, {"seen": seen}) is seen['b "2"/other.hw'].records[1]


def test_two_texts_are_inputs_with_their_own_names(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the cat ran", encoding="utf-8")
    result = run("view", "the cat sat", "the mat", "--file", "notes.txt", "--model", tiny_bert, "--layers", "2")
    assert result.code == 0
    page = facts(tmp_path / "attention.html")
    assert [each["name"] for each in page["inputs"]] == ["the cat sat", "the mat", "notes.txt"]
    assert (page["title"], page["made"]) == ("the cat sat · the mat · notes.txt", None)
    assert layers(page) == ["seen[0][2]"]
    assert page["axes"][0]["labels"] == ["[CLS]", "the", "cat", "sat", "[SEP]"]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was given to the server, which does not run."""
    calls: Calls = []

    def serve(inputs: Sequence[Input], *, title: str, made: str | None, port: int, open_page: bool) -> None:
        calls.append({"inputs": inputs, "title": title, "made": made, "port": port, "open_page": open_page})

    def serve_live(live: Live, prompt: str, *, port: int, open_page: bool) -> None:
        calls.append({"live": live, "prompt": prompt, "port": port, "open_page": open_page})

    monkeypatch.setattr("headwise.viewer.server.serve", serve)
    monkeypatch.setattr("headwise.viewer.server.serve_live", serve_live)
    monkeypatch.setattr("webbrowser.open", lambda address: pytest.fail(f"{address}: the server opens its page itself"))
    return calls


def test_serve_writes_no_page(run: Run, records: Path, tmp_path: Path, served: Calls) -> None:
    result = run("view", "run.hw", "--serve")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["run.hw"]
    (call,) = served
    assert [each.name for each in call.pop("inputs")] == ["a b c d e · 1 of 2", "this is one more. · 2 of 2"]
    assert call == {"title": "run.hw", "made": 'headwise.load("run.hw")', "port": 0, "open_page": False}


def test_serve_shows_texts_too_and_takes_a_port(run: Run, tiny_bert: Path, served: Calls, tmp_path: Path) -> None:
    result = run("view", "the cat", "--model", tiny_bert, "--serve", "--port", "8123", "--open")
    assert result.code == 0
    assert (served[0]["port"], served[0]["open_page"], served[0]["prompt"]) == (8123, True, "the cat")
    facts = served[0]["live"].facts(Asked("the mat"))  # a BERT, whose prompts are typed
    assert (facts["title"], facts["live"]["predictions"]) == ("tiny-bert", None)

    # Its config.json names no type of model.
    shutil.copytree(tiny_bert, tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text(encoding="utf-8"))
    del config["model_type"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert run("view", "the cat", "--model", "./old", "--serve").code == 0
    assert served[1]["live"].model.why.startswith("A BERT encodes a text")


@pytest.mark.parametrize("texts", [("the cat", "the mat"), ("the cat " * 20,)])
def test_serve_shows_several_texts_and_long_ones_as_they_are(
    run: Run, tiny_bert: Path, served: Calls, texts: tuple[str, ...]
) -> None:
    """Without a field for the prompt: it is for one text that the model reads as a whole."""
    assert run("view", *texts, "--model", tiny_bert, "--serve").code == 0
    assert len(served[0]["inputs"]) == len(texts)


def test_serve_takes_any_causal_language_model(run: Run, copying_model: Path, tmp_path: Path, served: Calls) -> None:
    result = run("view", "cat owl cat", "--model", copying_model, "--serve", "--layers", "1", "--port", "8123")
    assert (result.code, result.out, result.err) == (0, "", "")
    (call,) = served
    facts = call["live"].facts(Asked(call["prompt"]))
    assert (facts["title"], call["prompt"], call["port"]) == ("copying", "cat owl cat", 8123)
    assert [layer["number"] for layer in facts["inputs"][0]["stacks"][0]["layers"]] == [1]
    assert facts["live"]["predictions"]["tokens"][0]["text"] == "owl"
    changed = call["live"].facts(Asked(call["prompt"], (Change("ablate", 0, None),)))  # a layer that is not shown
    assert changed["live"]["predictions"]["distance"] > 0
    assert list(tmp_path.iterdir()) == []

    assert run("view", "--model", copying_model, "--serve", stdin=None).code == 0
    assert served[1]["prompt"].startswith("When Mary and John")


def test_what_serve_cannot_take_is_one_line(run: Run, copying_model: Path, tmp_path: Path, served: Calls) -> None:
    serve = ("--model", copying_model, "--serve")
    refused(run("view", "cat", "owl", *serve), "one text at a time", "Received: 2 texts")
    refused(run("view", "cat " * 65, *serve), "at most 64 tokens. Received: 65")
    refused(run("view", "cat", *serve, "--layers", "2"), "--layers", "Received: layer 2")
    for folder, kind in (("vit", "vit"), ("t5", "t5"), ("roberta", "roberta")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
        refused(run("view", "cat", "--model", f"./{folder}", "--serve"), folder)
    assert served == []


# --- Bad input: one line, exit code 2, nothing left behind ------------------------------------------------------------

BAD = {  # arguments -> what the line must say
    "a file that is missing": ("nowhere.hw", "there is no file nowhere.hw"),
    "a file that is cut short": ("short.hw", "short.hw"),
    "a file in which nothing was seen": ("empty.hw", "no attention was seen"),
    "a folder": ("folder.hw", "folder.hw"),
    "a text beside a file": (
        "run.hw 'the cat'",
        "run.hw is a file of records",
        "expected no texts in addition",
        "'the cat'",
    ),
    "a text file beside a file": ("run.hw --file notes.txt", "expected no texts in addition", "'notes.txt'"),
    "a model for a file": ("run.hw --model bert", "run.hw", "Leave --model out"),
    "a layer that it does not have": ("run.hw --layers 3", "--layers", "0 to 2", "Received: layer 3"),
    "a page over the records": ("run.hw --out run.hw", "--out run.hw", "Choose another file"),
    "a page beside a server": ("run.hw --serve --out a.html", "--out a.html", "Leave --out or --serve out"),
    "a port without a server": ("run.hw --port 80", "--port 80", "only --serve"),
    "a port that there is not": ("run.hw --serve --port 65536", "--port", "65535"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(
    run: Run, records: Path, tmp_path: Path, case: str, served: Calls
) -> None:
    (tmp_path / "short.hw").write_bytes(records.read_bytes()[:-100])
    (tmp_path / "notes.txt").write_text("the cat", encoding="utf-8")
    (tmp_path / "folder.hw").mkdir()
    (tmp_path / "attention.html").write_text(OLD, encoding="utf-8")
    Seen().save(tmp_path / "empty.hw")
    before = contents(tmp_path)
    arguments, *expected = BAD[case]
    refused(run("view", *shlex.split(arguments)), *expected)
    assert contents(tmp_path) == before
    assert served == []
