"""A task made outside of the package is known wherever those of the package are: to commands, exports and servers."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise import plugins, tasks
from headwise.errors import ArgumentError
from headwise.export.load import load
from headwise.graphs.graph import Graph, Value
from headwise.tasks import kinds, registered
from headwise.tasks.columns import Column, Columns
from headwise.tasks.options.train import option
from headwise.tasks.rows.tables import Data, read_table
from tests.cli.conftest import Run
from tests.tasks.training.mini_task import TOKENS, MiniOptions, MiniTask


@dataclass(frozen=True, kw_only=True)
class ToyOptions(MiniOptions):
    about = "Reads a word of the letters a to e and says which came first, as a number from 1."
    data_example = "words.csv --word word"
    input_example = "decade"

    word: str = option("word", "The column with the words.", metavar="COLUMN")


class Toy(MiniTask):
    """With all that a task of another package may have: words of a table, columns for a server, a graph to export."""

    name = "toy"
    options_type = ToyOptions

    @classmethod
    def read(cls, source: Any, options: Any, *, targets: bool = True) -> Data:
        if isinstance(source, Data):
            return source
        rows = {options.word: source} if isinstance(source, list) and isinstance(source[0], str) else source
        data = read_table(rows, {"word": options.word}, texts=("word",))
        tokens = [["abcde".index(letter) + 1 for letter in word] for word in data.columns["word"]]
        return replace(data, columns={"tokens": tokens})

    def columns(self) -> Columns:
        inputs, outputs = Column("word", "BYTES", says="a word"), Column("first", "INT64", says="its first letter")
        return Columns(inputs=(inputs,), outputs=(outputs,), example={"word": "decade"})

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        examples = [(torch.randint(1, TOKENS + 1, size),) for size in ((2, 5), (3, 9))]
        tokens = Value("tokens", torch.int64, ("batch", "length"))
        logits = Value("logits", torch.float32, ("batch", TOKENS + 1))
        return (Graph("model", self.model, (tokens,), (logits,), examples),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the toy, that has learned."""
    folder = tmp_path_factory.mktemp("toy") / "run"
    words = ["".join(letters) for letters in itertools.product("abcde", repeat=3)]
    Toy.fit({"word": words}, out=folder, epochs=12, lr=0.05, dropout=0.0, monitor_every=0)
    return folder


def test_the_command_trains_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("word\n" + "\n".join(["decade", "cab", "bed", "add"] * 3), encoding="utf-8")
    shown = " ".join(run("train", "--help").out.split())
    assert "toy Reads a word of the letters a to e and says which came first" in shown
    shown = run("train", "toy", "--help").out
    assert "headwise train toy words.csv --word word" in shown
    assert "The column with the words.  [default: word]" in shown
    made = run("train", "toy", "words.csv", "--dim", "4", "--epochs", "1", "--monitor-every", "0")
    assert (made.code, "headwise predict toy-run decade" in made.out) == (0, True)
    assert run("evaluate", "toy-run", "words.csv").code == 0
    told = run("predict", "toy-run", "decade")
    assert (told.code, "first" in told.out) == (0, True)


def test_its_run_folder_opens_by_its_name(trained: Path) -> None:
    task = tasks.load(trained)
    assert type(task) is Toy
    assert task.predict(["decade", "bed", "cab"]) == [{"first": 4}, {"first": 2}, {"first": 3}]
    (seen,) = task.look(["decade"])
    assert seen[0].weights().shape == (1, 2, 6, 6)


def test_its_export_predicts_the_same_and_has_its_card(run: Run, trained: Path, tmp_path: Path) -> None:
    assert run("export", trained, "--to", "onnx", "--out", "onnx", "--no-speed").code == 0
    exported = load(tmp_path / "onnx")
    assert exported.predict(["decade", "bed", "cab"]) == [{"first": 4}, {"first": 2}, {"first": 3}]
    card = (tmp_path / "onnx" / "card.md").read_text(encoding="utf-8")
    assert card.startswith(
        "# toy: run\n\nReads a word of the letters a to e and says which came first, as a number from 1.\n"
    )
    assert "random inputs only" in card


def test_a_task_without_graphs_says_so() -> None:
    task = MiniTask.learn(Data("none", {}, []), MiniTask.options_type())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the task mini cannot be exported: its class defines no graphs"):
        task.graphs()


def test_a_package_that_is_installed_names_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch, EntryPoint("toy", f"{__name__}:Toy", kinds.GROUP), EntryPoint("no", "no.where:No", kinds.GROUP)
    )
    monkeypatch.delitem(registered.DEFINED, "toy")
    others = [name for name in registered.DEFINED if name not in kinds.BUILT_IN]  # of other tests in this process
    assert kinds.names() == [*kinds.BUILT_IN, "toy", "no", *others]
    assert kinds.find_options("toy") is ToyOptions
    with pytest.raises(ArgumentError, match=r"the entry point 'no' of headwise\.tasks cannot be imported from"):
        kinds.find_class("no")
    with pytest.raises(ArgumentError, match=r"expected one of classify, .*toy.* Received: 'toi'"):
        kinds.find_class("toi")


def test_no_two_tasks_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint("far", "another.package:Far", kinds.GROUP))
    for name, place in (
        ("classify", "headwise.tasks.classify:Classify"),
        ("toy", "Toy"),
        ("far", "another.package:Far"),
    ):
        with pytest.raises(ArgumentError, match=rf"Received: name={name!r} of .*Another, which .*{place} has"):
            type("Another", (Toy,), {"name": name})
    assert kinds.find_class("toy") is Toy
    clash = dataclasses.make_dataclass("Clash", [("out", int, 3)], bases=(ToyOptions,), frozen=True, kw_only=True)
    with pytest.raises(ArgumentError, match=r"^Clash\.out: headwise train has an argument of this name"):
        type("Clashing", (Toy,), {"name": "clashing", "options_type": clash})
    assert type("Heir", (Toy,), {}).name == "toy"  # a class without a name of its own is the same task


def installed(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints(entries).select(group=group))
