"""A task that another package defines is served: it says what its columns are, and nothing else is edited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise import watch
from headwise.errors import ArgumentError, HeadwiseError
from headwise.nn import MultiHeadAttention
from headwise.records import Seen
from headwise.server.engine import Served
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.pool.answering import answers_of
from headwise.tasks.columns import Column, Columns, Row
from headwise.tasks.options.train import TrainOptions, option
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task
from headwise.text import as_tokens
from tests.server.plain_engine import client
from tests.server.protocols.engines import InProcess


@dataclass(frozen=True)
class DigitOptions(TrainOptions):
    digits: str = option("digits", "The column with digits.", metavar="COLUMN")


class LargestDigit(Task[DigitOptions]):
    """Digits -> the largest of them."""

    name = "largest-digit"
    options_type = DigitOptions

    @classmethod
    def read(cls, source: Any, options: DigitOptions, *, targets: bool = True) -> Data:
        return source if isinstance(source, Data) else read_table(source, {"digits": options.digits}, texts=("digits",))

    @classmethod
    def learn(cls, data: Data, options: DigitOptions) -> LargestDigit:
        torch.manual_seed(0)
        return cls(options, nn.Sequential(nn.Embedding(10, 8), MultiHeadAttention(8, 2), nn.Linear(8, 10)))

    def encode(self, data: Data, *, targets: bool = True) -> list[list[int]]:
        return [[int(digit) for digit in text] for text in data.columns["digits"]]

    def length(self, example: list[int]) -> int:
        return len(example)

    def collate(self, examples: Sequence[list[int]]) -> Batch:
        return {"digits": torch.tensor(examples), "largest": torch.tensor([max(each) for each in examples])}

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.model(batch["digits"]).mean(1)
        return functional.cross_entropy(logits, batch["largest"], reduction="sum"), torch.tensor(len(logits))

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        examples = self.encode(self.read(inputs, self.options, targets=False))
        return [{"largest": int(self.model(torch.tensor([each])).mean(1).argmax())} for each in examples]

    def evaluate(self, source: Any) -> Scores:
        raise NotImplementedError

    def look(self, inputs: Any) -> list[Seen]:
        found = []
        for each in self.encode(self.read(inputs, self.options, targets=False)):
            with watch(self.model, tokens=as_tokens([[str(digit) for digit in each]])) as seen:
                self.model(torch.tensor([each]))
            found.append(seen)
        return found

    def state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def restore(cls, options: DigitOptions, state: dict[str, Any], folder: Path) -> LargestDigit:
        return cls.learn(Data("none", {}, []), options)


class ServedDigit(LargestDigit):
    """The same, with columns."""

    name = "largest-served-digit"

    def columns(self) -> Columns:
        return Columns(
            inputs=(Column("digits", "BYTES", says="some digits"),),
            outputs=(Column("largest", "INT64", says="the largest of them"),),
            example={"digits": "3141"},
        )


class OfTask(InProcess):
    """The engine of one task."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__()
        self.interface = TaskInterface(task, "fp32")
        self.served = {("digits", "1"): Served("digits", "1", self.interface.description, True)}

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        return list(answers_of(self.interface, rows, 8, lambda what, error: pytest.fail(f"{what}: {error}")))


def test_a_task_with_columns_is_served() -> None:
    task = ServedDigit.learn(Data("none", {}, []), DigitOptions())
    engine = OfTask(task)

    async def ask() -> tuple[Any, Any]:
        async with client(engine=engine) as asking:
            told = await asking.get("/v2/models/digits")
            rows = {"instances": [{"digits": "3141"}, {"digits": " "}, {"digits": "9" * 9}]}
            answers = [
                await asking.post("/v1/models/digits:predict", json={"instances": [each]}) for each in rows["instances"]
            ]
            return told.json(), [each.json() for each in answers]

    told, (first, empty, long) = asyncio.run(ask())
    assert [each["name"] for each in told["inputs"]] == ["digits"]
    assert first == {"predictions": [task.predict([{"digits": "3141"}])[0]["largest"]]}
    assert "digits: expected a text. Received: an empty text" in str(empty)
    assert "expected at most 8 tokens. Received: 9 tokens" in str(long)
    (shown,) = engine.interface.explain(engine.interface.read({"digits": "3141"}))["inputs"]
    assert shown["stacks"][0]["columns"] == ["3", "1", "4", "1"]
    with pytest.raises(ArgumentError, match="largest-served-digit does not generate text piece by piece"):
        engine.interface.stream(engine.interface.read({"digits": "3141"}))


def test_a_task_without_columns_says_so() -> None:
    with pytest.raises(
        ArgumentError, match=r"largest-digit cannot be served: .* Received: LargestDigit without columns"
    ):
        TaskInterface(LargestDigit.learn(Data("none", {}, []), DigitOptions()), "fp32")
