"""`headwise doctor` as a person uses it: what it says, the report, the files, the exit codes and the refusals."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
import transformers

from headwise.cli.output import standard_output_kept
from tests.doctor.specimens import CODE

from .conftest import Run
from .test_watch import byte_level, make_t5

BUG = 1
BAD_INPUT = 2


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "odd.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "words.py").write_text("def words():\n    return 'words'\n", encoding="utf-8")
    return tmp_path


def test_a_healthy_class(run: Run) -> None:
    result = run("doctor", "odd.py:Healthy", "--set", "width=32", "--set", "heads=4")
    assert result.code == 0
    assert result.err == ("headwise: importing odd.py (this executes its code; --isolate uses a separate process)\n")
    assert re.match(r"Healthy  odd\.py:10\n  forward\(x, mask\)", result.out)
    lines = [line for line in result.out.splitlines() if line]
    assert len(lines) <= 5
    assert re.fullmatch(r"Healthy: no bug, no risk\.  \d notes?: --notes", lines[-1])
    noted = run("doctor", "odd.py:Healthy", "--set", "width=32", "--set", "heads=4", "--notes").out
    assert "note  masked-nan-leaks" in noted
    assert noted.splitlines()[-1] == "Healthy: no bug, no risk."


def test_a_bug_is_exit_code_1_and_names_its_line(run: Run) -> None:
    result = run("doctor", "odd.py:WrongScale")
    assert result.code == BUG
    assert "bug  wrong-scale" in result.out
    assert re.search(r"where +odd\.py:20\n +scores = q @ k", result.out)
    assert re.search(r"\n1 bug\. Fix .*\n\d notes?: --notes\n$", result.out)


def test_it_says_that_it_imports_before_it_does(run: Run, folder: Path) -> None:
    (folder / "loud.py").write_text(
        "import sys\nprint('I run', file=sys.stderr)\nraise ValueError('no')", encoding="utf-8"
    )
    lines = run("doctor", "loud.py:A").err.splitlines()
    assert lines[0].startswith("headwise: importing loud.py")
    assert lines[1:] == [
        "I run",
        "headwise: importing loud.py raised ValueError: no (loud.py:3: `raise ValueError('no')`)",
    ]


def test_json_and_sarif(run: Run) -> None:
    printed = run("doctor", "odd.py:WrongScale", "--json", "-")
    assert printed.code == BUG
    written = json.loads(printed.out)
    assert written["healthy"] is False
    (diagnosis,) = written["diagnoses"]
    assert diagnosis["subject"] == "WrongScale"
    assert [x["name"] for x in diagnosis["findings"] if x["severity"] == "bug"] == ["wrong-scale"]

    beside = run("doctor", "odd.py:WrongScale", "--json", "found.json")
    assert "bug  wrong-scale" in beside.out
    assert beside.err.splitlines()[-1] == "headwise: wrote found.json"
    again = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert again["diagnoses"][0]["findings"][0]["name"] == "wrong-scale"

    result = run("doctor", "odd.py:WrongScale", "--sarif", "found.sarif")
    assert result.code == BUG
    log = json.loads(Path("found.sarif").read_text(encoding="utf-8"))
    first = log["runs"][0]["results"][0]
    assert (first["ruleId"], first["level"]) == ("wrong-scale", "error")
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("odd.py", 20)


def test_what_the_code_prints_is_not_in_the_way(run: Run, folder: Path) -> None:
    """On standard output there is JSON and nothing else."""
    chatty = CODE.replace("B, N, M = x.shape", "print('chatter'); B, N, M = x.shape")
    assert chatty != CODE
    (folder / "odd.py").write_text(f"print('hello')\n{chatty}", encoding="utf-8")
    result = run("doctor", "odd.py:Healthy", "--json", "-")
    assert json.loads(result.out)["healthy"] is True
    assert {"hello", "chatter"} <= set(result.err.splitlines())


def test_what_c_libraries_and_child_processes_print(capfd: pytest.CaptureFixture[str]) -> None:
    with standard_output_kept():
        os.write(1, b"raw\n")
        print("python")
    print("the report")
    printed = capfd.readouterr()
    assert (printed.out, set(printed.err.splitlines())) == ("the report\n", {"raw", "python"})


def test_isolated(run: Run) -> None:
    result = run("doctor", "odd.py:Falls", "--isolate", "--timeout", "50", "--memory", "4")
    assert result.code == BUG
    assert result.err == "headwise: importing odd.py (in a separate process)\n"
    assert "forward did not return: it ended the process with SIGSEGV" in " ".join(result.out.split())


def test_a_forward_that_returns_a_string(run: Run) -> None:
    result = run("doctor", "odd.py:Strings")
    assert result.code == BUG
    assert "bug  output-shape" in result.out


def test_what_is_stated_is_used(run: Run) -> None:
    result = run("doctor", "odd.py:Healthy", "--spec", "causal=true", "--json", "-")
    assert result.code == BUG
    assert "causal-leak" in {x["name"] for x in json.loads(result.out)["diagnoses"][0]["findings"]}


@pytest.mark.slow
def test_the_layers_of_a_model(run: Run, tiny_bert: Path, folder: Path) -> None:
    result = run(
        "doctor", "--model", tiny_bert, "--input", "the cat sat on the mat", "--input", "run cat", "--json", "-"
    )
    assert result.code == 0
    (diagnosis,) = json.loads(result.out)["diagnoses"]
    assert diagnosis["subject"] == "BertSelfAttention (encoder.layer.{0-2}.attention.self)"
    assert diagnosis["understood"]

    torch.manual_seed(0)
    make_t5().save_pretrained(folder / "t5")
    byte_level().save_pretrained(folder / "t5")
    result = run("doctor", "--model", "t5", "--json", "-")
    assert result.code == 0
    subjects = [each["subject"] for each in json.loads(result.out)["diagnoses"]]
    assert any("encoder.block" in subject for subject in subjects)
    assert any("EncDecAttention" in subject for subject in subjects)

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 268}
    transformers.FNetModel(transformers.FNetConfig(**sizes)).save_pretrained(folder / "fnet")
    byte_level().save_pretrained(folder / "fnet")
    result = run("doctor", "--model", "fnet")
    assert (result.code, result.out) == (BAD_INPUT, "")
    assert "no attention was seen in FNetModel while it ran" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Expected a class, such as my_model.py:MyAttention, or --model MODEL. Received: neither."),
        (["odd.py:Healthy", "--model", "x"], "Received: both."),
        (["odd.py"], "which class of odd.py? Write odd.py:"),
        (["nowhere.py:A"], "no such file: nowhere.py"),
        (["odd.py:Healty"], "odd.py has no such class. Received: Healty. Did you mean Healthy?"),
        (["odd.py:BEGIN"], "odd.py has no such class. Received: BEGIN"),
        (["odd.py:Healthy", "--set", "head=2"], "Healthy has no such argument. Received: 'head'. Did you mean heads?"),
        (["odd.py:Healthy", "--set", "head"], "--set: expected name=value"),
        (["odd.py:Healthy", "--set", "width=1000000"], "Healthy is too large to be examined"),
        (["odd.py:Healthy", "--spec", "head=2"], "spec: every name must be one of takes, roles"),
        (["odd.py:Healthy", "--spec", "head"], "--spec: expected name=value, as in --spec heads=8"),
        (["odd.py:Healthy", "--timeout", "0"], "Invalid value for '--timeout'"),
        (["odd.py:Healthy", "--memory", "2"], "--memory: only a separate process can be limited"),
        (["odd.py:Healthy", "--input", "text"], "--input: expected --model"),
        (["--model", "x", "--set", "a=1"], "--set: expected FILE.PY:CLASS"),
        (["--model", "x", "--isolate"], "--isolate: expected FILE.PY:CLASS"),
        (["--model", "./nowhere"], "no folder nowhere"),
        (["--model", "nowhere.keras"], "--model: expected a file that model.save wrote. Received: no such file"),
        (["--model", "nowhere.keras", "--input", "a"], "--input: expected a model of Hugging Face, which reads texts"),
        (["--model", "odd.py:Healthy"], "odd.py:Healthy must return a torch model together with its inputs"),
        (["--model", "words.py:words"], "words.py:words must return a model, or a model and its inputs. Received: a"),
        (["odd.py:Healthy", "--json", "missing/a.json"], "--json missing/a.json: the folder missing does not exist"),
        (["odd.py:Healthy", "--json", "-", "--sarif", "-"], "--json and --sarif must be different files"),
    ],
)
def test_every_bad_input_is_one_line(run: Run, arguments: list[str], said: str) -> None:
    result = run("doctor", *arguments)
    assert (result.code, result.out) == (BAD_INPUT, "")
    lines = [line for line in result.err.splitlines() if not line.startswith("headwise: importing")]
    assert len(lines) == 1
    assert said in lines[0]


def test_constructor_arguments_that_are_missing(run: Run) -> None:
    result = run("doctor", "torch.nn:MultiheadAttention")
    assert result.code == BAD_INPUT
    assert "needs embed_dim and num_heads: for example --set embed_dim=64 --set num_heads=4" in result.err


ODD_CALLS = """
from torch import nn


class Table(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(width, width)

    def forward(self, x, table: dict):
        return self.first(x) * table["scale"]


class Typo(Table):
    def forward(self, x):
        return softmaks(self.first(x))
"""


def test_what_cannot_be_called_is_not_examined(run: Run, folder: Path) -> None:
    (folder / "calls.py").write_text(ODD_CALLS, encoding="utf-8")
    result = run("doctor", "calls.py:Table", "--json", "found.json", "--sarif", "found.sarif")
    assert result.code == 3
    assert "not examined" in result.out
    assert "forward(x=[3, 5, 8])" in result.out
    assert "calls.py:11: TypeError: 'NoneType' object is not" in " ".join(result.out.split())
    assert result.out.splitlines()[-1] == "Not examined: say how it is called, and run the doctor again."
    written = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    assert not written["healthy"]
    (diagnosis,) = written["diagnoses"]
    assert diagnosis["findings"] == []
    assert "no way to call it was found" in diagnosis["not_examined"]
    (sarif,) = json.loads((folder / "found.sarif").read_text(encoding="utf-8"))["runs"]
    assert sarif["results"] == []
    assert not sarif["invocations"][0]["executionSuccessful"]
    assert "Table was not examined" in sarif["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_mistake_that_every_call_meets_is_a_bug_with_its_line(run: Run, folder: Path) -> None:
    (folder / "calls.py").write_text(ODD_CALLS, encoding="utf-8")
    result = run("doctor", "calls.py:Typo")
    assert result.code == BUG
    assert "bug  does-not-run" in result.out
    assert "raises NameError: name 'softmaks' is not defined" in " ".join(result.out.split())
    assert re.search(r"where +calls\.py:16\n +return softmaks", result.out)
