"""`TaskInterface`: the interface of any trained task, run by PyTorch or ONNX Runtime, with the columns of the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.server.interface import Description, Running
from headwise.server.interfaces.answering import Answering
from headwise.server.interfaces.precision import Precision
from headwise.tasks.columns import Row
from headwise.tasks.task import Task
from headwise.viewer import Input, inputs_of

# Tokens per pass on a CPU. Rows of similar length share a pass, so a small pass needs little padding and its data stay
# in the cache: on 32 texts of 5 to 60 words, MiniLM on ONNX Runtime is nearly twice as fast as in one pass.
TOKENS = {"torch": 512, "onnx": 256}


class TaskInterface(Answering[Any]):
    """A trained task as an `Interface`, with the columns that the task defines.

    Args:
        task: a trained task.
        precision: the precision of PyTorch.

    Raises:
        ArgumentError: the task defines no columns.
    """

    def __init__(self, task: Task[Any], precision: Precision) -> None:
        self.task, self.precision = task.eval(), precision
        backend = "torch" if task.on_torch else "onnx"
        if task.device.type == "cpu":
            task.options = replace(task.options, batch_tokens=min(task.options.batch_tokens, TOKENS[backend]))
        self.description = Description(
            **vars(task.columns()),
            task=task.name,
            platform=f"headwise_{backend}",
            labels=tuple(task.labels),
            explains=task.on_torch,
            packs=task.packs,
            joins=task.running(1) is not None,
        )

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.task.device

    def parse(self, row: Row) -> Any:
        return self.task.read_row(row)

    def tokens(self, asked: Any) -> int:
        return self.task.count_tokens(asked)

    def run(self, asked: Sequence[Any]) -> Sequence[Row | HeadwiseError]:
        return self.task.answer_rows(asked)

    def running(self, most: int) -> Running:
        batch = self.task.running(most)
        return super().running(most) if batch is None else batch

    def stream(self, asked: Any) -> Iterator[str]:
        return self.task.stream_row(asked)

    def names(self, asked: Any) -> list[str]:
        found = self.task.names_of(asked) if self.description.explains else None
        return super().names(asked) if found is None else found

    def look(self, asked: Any) -> list[Input]:
        if not self.description.explains:
            return super().look(asked)
        seen, image = self.task.look_at(asked)
        return inputs_of([seen], images=None if image is None else [image])
