"""`headwise view` as a person uses it: what it reads, prints, writes and refuses."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headwise.experiments import Patching

from .conftest import Run, contents, facts, refused

OLD = '<meta name="generator" content="headwise 0.2.0">of yesterday'
SENTENCE = "the cat sat on the mat."


def test_writes_the_page(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    result = run("view", SENTENCE, "--model", tiny_bert)
    assert (result.code, result.err) == (0, "")
    assert re.match(r"Wrote attention\.html \(\d+ kB; 3 layers, up to 9 tokens\)", result.out)
    assert [path.name for path in tmp_path.iterdir()] == ["attention.html"]
    assert "<html" in (tmp_path / "attention.html").read_text(encoding="utf-8")


def test_reads_texts_then_files(run: Run, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    (tmp_path / "notes.txt").write_bytes("\ufeffthe cat ran".encode())  # with a byte-order mark
    arguments = ("--model", tiny_bert, "--out", "page.html", "--open")
    result = run("view", "the mat", SENTENCE, "--file", "notes.txt", *arguments)
    assert result.code == 0
    told = facts(tmp_path / "page.html")
    lengths = [len(told["axes"][each["stacks"][0]["rows"]]["labels"]) for each in told["inputs"]]
    assert [each["name"] for each in told["inputs"]] == ["the mat", SENTENCE, "notes.txt"]
    assert lengths == [4, 9, 5]
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert run("view", SENTENCE, "--model", tiny_bert).code == 0
    alone = facts(tmp_path / "attention.html")
    second, only = (each["stacks"][0]["layers"] for each in (told["inputs"][1], alone["inputs"][0]))
    assert [layer["stats"] for layer in second] == [layer["stats"] for layer in only]  # alone, too


@pytest.mark.parametrize("arguments", [(), ("--file", "-")])
def test_reads_standard_input(run: Run, tiny_bert: Path, arguments: tuple[str, ...]) -> None:
    result = run("view", *arguments, "--model", tiny_bert, stdin=SENTENCE.encode())
    assert result.code == 0
    assert "up to 9 tokens" in result.out


def test_layers_chooses_what_is_shown(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    for given, shown in {"1-2,0": [0, 1, 2], "2": [2], "0, 2": [0, 2], "1,1": [1]}.items():
        assert run("view", SENTENCE, "--model", tiny_bert, "--layers", given).code == 0
        (stack,) = facts(tmp_path / "attention.html")["inputs"][0]["stacks"]
        assert [layer["number"] for layer in stack["layers"]] == shown


def test_says_what_was_cut_of_a_text_longer_than_the_model(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the cat\n" * 15 + "sat on the mat", encoding="utf-8")
    result = run("view", "--file", "long.txt", "--model", tiny_bert)  # 34 tokens, [CLS] and [SEP]; 32 fit
    assert result.code == 0
    (line,) = result.err.splitlines()
    assert "long.txt" in line
    assert "32 tokens" in line
    assert "the last 4 tokens were cut, from 'sat on the mat' on (line 16)" in line
    assert "up to 32 tokens" in result.out


def test_looks_inside_the_pretrained_default(run: Run, tmp_path: Path) -> None:
    english = "The animal didn't cross the street because it was too tired"
    result = run("view", english, "这只动物没有过马路，因为它太累了。")
    assert result.code == 0
    assert "2 inputs, 6 layers" in result.out
    page = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert "动" in page or r"\u52a8" in page  # whole characters
    assert "\ufffd" not in result.out


# --- Bad input: one line, exit code 2, nothing left behind ------------------------------------------------------------

BAD = {  # arguments -> what the line must say
    "a file in place of a text": ("empty.txt", "empty.txt is a file: expected a text, or --file empty.txt"),
    "a misspelt file in place of a text": ("emptyy.txt", "there is no file emptyy.txt. Did you mean empty.txt?"),
    "a file that is missing": ("--file nowhere.txt", "--file nowhere.txt", "no such file"),
    "a file that is a folder": ("--file folder", "--file folder", "is a directory"),
    "a file that is not UTF-8": ("--file latin1.txt", "--file latin1.txt", "UTF-8", "0xe9", "offset 9", "line 2"),
    "a file that is empty": ("--file empty.txt", "empty.txt is empty"),
    "a text that is empty": ("''", "TEXT is empty"),
    "a text that is not UTF-8": ("caf\udce9", "TEXT", "UTF-8", "0xe9", "offset 3"),
    "nothing on standard input": ("", "standard input is empty"),
    "layers that are no numbers": ("the --layers 0,x", "--layers", "0,2-4", "'0,x'"),
    "layers that run backwards": ("the --layers 2-1", "--layers", "'2-1'"),
    "a layer the model does not have": ("the --layers 0,2-3", "--layers", "0 to 2", "Received: layer 3"),
    "a page in no folder": ("the --out nowhere/a.html", "--out nowhere/a.html", "the folder nowhere does not exist"),
    "a page that is a device": ("the --out /dev/null", "--out /dev/null", "Received: a device"),
    "an option that does not exist": ("the --layer 1", "--layer", "--layers"),
    "a checkpoint that is missing": ("the --model ./nowhere", "nowhere"),
    "a checkpoint of another architecture": ("the --model gpt2", "gpt2"),
    "a checkpoint that is cut short": ("the --model truncated", "truncated", "model.safetensors"),
}


@pytest.fixture
def folder(tmp_path: Path, tiny_bert: Path) -> Path:
    """A folder with everything that the bad inputs name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin1.txt").write_bytes("the cat\ncafé".encode("latin-1").replace(b"caf", b"c"))
    (tmp_path / "empty.txt").write_bytes(b"")
    for name in ("gpt2", "truncated"):
        (tmp_path / name).mkdir()
        for file in ("config.json", "vocab.txt", "model.safetensors"):
            (tmp_path / name / file).write_bytes((tiny_bert / file).read_bytes())
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    weights = tmp_path / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return tmp_path


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(run: Run, folder: Path, tiny_bert: Path, case: str) -> None:
    arguments, *expected = BAD[case]
    (folder / "attention.html").write_text(OLD, encoding="utf-8")
    before = contents(folder)
    refused(run("view", "--model", tiny_bert, *shlex.split(arguments)), *expected)  # a second --model wins
    assert contents(folder) == before


@pytest.fixture(params=["folder", "file"])
def protected(request: pytest.FixtureRequest, run: Run, tmp_path: Path) -> Iterator[None]:
    """The current folder may not be written in, or only the page of yesterday may not be overwritten."""
    if not hasattr(os, "geteuid"):
        pytest.skip("needs POSIX permissions")
    if request.param == "file":
        (tmp_path / "attention.html").touch(mode=0o444)
    tmp_path.chmod(0o555 if request.param == "folder" else 0o777)
    user = os.geteuid()
    os.seteuid(user or 65534)  # permissions do not hold for root: it becomes somebody else
    yield
    os.seteuid(user)
    tmp_path.chmod(0o700)


@pytest.mark.usefixtures("protected")
def test_refuses_a_page_it_may_not_write_before_the_model_is_looked_for(run: Run) -> None:
    result = run("view", "the cat", "--model", "never/looked/for", "--out", "attention.html")
    refused(result, "headwise: --out attention.html: cannot be written: permission denied")


def test_a_page_replaces_pages_of_headwise_and_nothing_else(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert run("view", SENTENCE, "--model", tiny_bert).code == 0
    page = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert f'"about":{{"model":"{tiny_bert}"' in page.replace("\\u002f", "/")
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    result = run("view", SENTENCE, "--model", "no/such-model", "--out", "notes.txt")
    refused(result, "notes.txt exists, and headwise did not write it", "Choose another file")
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_effects_of_patching_are_a_page_of_their_own(run: Run, tmp_path: Path) -> None:
    Patching(("layer",), torch.tensor([[0.25, 0.5]]), None, 1.0, 0.0).save(tmp_path / "patching.hw")
    result = run("view", "patching.hw")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Wrote patching.html (")
    said = "expected only --out and --open beside it. Received: "
    refused(run("view", "patching.hw", "--serve"), f"{said}--serve")
    refused(run("view", "patching.hw", "a text"), f"{said}a text")


def test_a_terminal_and_no_text_is_a_usage_error(run: Run) -> None:
    said = "headwise: Nothing to read: expected a TEXT, --file PATH, or text on standard input."
    refused(run("view", stdin=None), said)


# --- A run folder: what a trained task did with the text --------------------------------------------------------------


def test_a_run_is_looked_at(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    result = run("view", reviews_run, "a good film", "a bad film", "--out", "page.html")
    assert (result.code, result.err) == (0, "")
    first, second, last = result.out.splitlines()
    assert re.match(r"a good film: predicted (good|bad), probability 0\.5", first)
    assert second.startswith("a bad film: predicted ")
    assert re.match(r"Wrote page\.html \(\d+ kB; 2 inputs, 1 layer, up to ", last)
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
