"""A task made outside of the package is known wherever those of the package are: to commands, exports and servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise import plugins, tasks
from headwise.errors import ArgumentError
from headwise.export.load import load
from headwise.graphs.graph import Graph, Value
from headwise.nn import MultiHeadAttention
from headwise.records import Seen
from headwise.tasks import kinds
from headwise.tasks.columns import Column, Columns
from headwise.tasks.options.train import TrainOptions, option
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task
from tests.cli.conftest import Run
from tests.tasks.training.mini_task import MiniTask


@dataclass(frozen=True, kw_only=True)
class ToyOptions(TrainOptions):
    about = "Reads a word and counts how often the letter a is in it."
    data_example = "words.csv --word word"
    input_example = "banana"

    word: str = option("word", "The column with the words.", metavar="COLUMN")
    dim: int = option(8, "The dimension of the model.", least=2)


class Counter(nn.Module):
    """Letters [B, S], 0 = padding -> a number [B]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(128, dim), nn.Linear(dim, 1)
        self.attention = MultiHeadAttention(dim, 1)

    def forward(self, letters_BS: Tensor) -> Tensor:
        x_BSM = self.embedding(letters_BS)
        x_BSM = x_BSM + self.attention(x_BSM, real=letters_BS > 0)
        number_B: Tensor = (self.output(x_BSM)[..., 0] * (letters_BS > 0)).sum(1)
        return number_B


class Toy(Task[ToyOptions]):
    name = "toy"
    options_type = ToyOptions

    @classmethod
    def read(cls, source: Any, options: ToyOptions, *, targets: bool = True) -> Data:
        if isinstance(source, Data):
            return source
        if isinstance(source, list) and isinstance(source[0], str):
            return Data("words", {"word": source}, list(range(len(source))))
        return read_table(source, {"word": options.word}, texts=("word",))

    @classmethod
    def learn(cls, data: Data, options: ToyOptions) -> Toy:
        return cls(options, Counter(options.dim))

    def encode(self, data: Data, *, targets: bool = True) -> list[str]:
        return data.columns["word"]

    def length(self, example: str) -> int:
        return len(example)

    def collate(self, examples: Sequence[str]) -> Batch:
        rows = [torch.tensor(list(each.encode())) for each in examples]
        counts = torch.tensor([float(each.count("a")) for each in examples])
        return {"letters": nn.utils.rnn.pad_sequence(rows, batch_first=True), "counts": counts}

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        error_B = self.model(batch["letters"]) - batch["counts"]
        return error_B.square().sum(), torch.tensor(len(error_B))

    @torch.no_grad()
    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        examples = self.encode(self.read(inputs, self.options))
        found = [0.0] * len(examples)
        for batch, places in self.batches(examples):
            for place, number in zip(places, self.model(batch["letters"]).tolist(), strict=True):
                found[place] = number
        return [{"count": number} for number in found]

    def evaluate(self, source: Any) -> Scores:
        data = self.read(source, self.options)
        return Scores({"squared_error": self.mean_loss(self.encode(data))}, len(data), {})

    def look(self, inputs: Any) -> list[Seen]:
        found = []
        for word in self.encode(self.read(inputs, self.options)):
            with headwise.watch(self.model) as seen, torch.no_grad():
                self.model(self.collate([word])["letters"])
            found.append(seen)
        return found

    def columns(self) -> Columns:
        inputs, outputs = Column("word", "BYTES", says="a word"), Column("count", "FP32", says="how many a it has")
        return Columns(inputs=(inputs,), outputs=(outputs,), example={"word": "banana"})

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        examples = [(torch.randint(97, 123, size),) for size in ((2, 5), (3, 9))]
        letters, count = Value("letters", torch.int64, ("batch", "length")), Value("count", torch.float32, ("batch",))
        return (Graph("model", self.model, (letters,), (count,), examples),)

    def state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def restore(cls, options: ToyOptions, state: dict[str, Any], folder: Path) -> Toy:
        return cls(options, Counter(options.dim))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the toy, that counts well enough to see it."""
    folder = tmp_path_factory.mktemp("toy") / "run"
    words = ["".join(each) for each in zip("abacadaeabac", "banabcanadba", "acabaacdeaab", strict=True)] * 4
    given = {"epochs": 40, "lr": 0.03, "dropout": 0.0, "monitor_every": 0, "batch_tokens": 64}
    Toy.fit({"word": words}, out=folder, **given)
    return folder


def test_the_command_trains_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("word\n" + "\n".join(["banana", "cab", "sea", "dog"] * 3), encoding="utf-8")
    shown = " ".join(run("train", "--help").out.split())
    assert "toy Reads a word and counts how often the letter a is in it." in shown
    shown = run("train", "toy", "--help").out
    assert "headwise train toy words.csv --word word" in shown
    assert "The dimension of the model.  [default: 8]" in shown
    made = run("train", "toy", "words.csv", "--dim", "4", "--epochs", "1", "--monitor-every", "0")
    assert (made.code, "headwise predict toy-run banana" in made.out) == (0, True)
    assert run("evaluate", "toy-run", "words.csv").code == 0
    told = run("predict", "toy-run", "banana")
    assert (told.code, "count" in told.out) == (0, True)


def test_its_run_folder_opens_by_its_name(trained: Path) -> None:
    task = tasks.load(trained)
    assert type(task) is Toy
    assert [round(row["count"]) for row in task.predict(["banana", "bed", "cab"])] == [3, 0, 1]
    (seen,) = task.look(["banana"])
    assert seen[0].weights().shape == (1, 1, 6, 6)


def test_its_export_predicts_the_same_and_has_its_card(run: Run, trained: Path, tmp_path: Path) -> None:
    assert run("export", trained, "--to", "onnx", "--out", "onnx", "--no-speed").code == 0
    words = ["banana", "bed", "cab"]
    found, expected = (task.predict(words) for task in (load(tmp_path / "onnx"), tasks.load(trained)))
    assert found == [{"count": pytest.approx(row["count"], abs=1e-4)} for row in expected]
    card = (tmp_path / "onnx" / "card.md").read_text(encoding="utf-8")
    assert card.startswith("# toy: run\n\nReads a word and counts how often the letter a is in it.\n")
    assert "random inputs only" in card


def test_a_task_without_graphs_says_so() -> None:
    task = MiniTask.learn(Data("none", {}, []), MiniTask.options_type())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the task mini cannot be exported: its class defines no graphs"):
        task.graphs()


def test_a_package_that_is_installed_names_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch, EntryPoint("toy", f"{__name__}:Toy", kinds.GROUP), EntryPoint("no", "no.where:No", kinds.GROUP)
    )
    monkeypatch.delitem(kinds._DEFINED, "toy")
    others = [name for name in kinds._DEFINED if name not in kinds.BUILT_IN]  # of other tests in this process
    assert kinds.names() == [*kinds.BUILT_IN, "toy", "no", *others]
    assert kinds.options_of("toy") is ToyOptions
    with pytest.raises(
        ArgumentError,
        match=r"the entry point 'no' of headwise\.tasks cannot be imported from no\.where:No: .*No module named 'no'",
    ):
        kinds.class_of("no")
    with pytest.raises(ArgumentError, match=r"expected one of classify, .*toy.* Received: 'toi'"):
        kinds.class_of("toi")


def test_no_two_tasks_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint("far", "another.package:Far", kinds.GROUP))
    for name, place in (
        ("classify", "headwise.tasks.classify:Classify"),
        ("toy", "Toy"),
        ("far", "another.package:Far"),
    ):
        with pytest.raises(ArgumentError, match=rf"Received: name={name!r} of .*Another, which .*{place} has"):
            type("Another", (Toy,), {"name": name})
    assert kinds.class_of("toy") is Toy
    clash = dataclasses.make_dataclass("Clash", [("out", int, 3)], bases=(ToyOptions,), frozen=True, kw_only=True)
    with pytest.raises(ArgumentError, match=r"^Clash\.out: headwise train has an argument of this name"):
        type("Clashing", (Toy,), {"name": "clashing", "options_type": clash})
    assert type("Heir", (Toy,), {}).name == "toy"  # a class without a name of its own is the same task


def installed(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints(entries).select(group=group))
