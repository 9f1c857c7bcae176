"""`TaskInterface`: the interface of a trained task, whatever runs its model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from headwise.server.interface import Description
from headwise.server.interfaces.answering import Answering, Asked
from headwise.server.interfaces.precision import Precision
from headwise.tasks.task import Task

TaskT = TypeVar("TaskT", bound="Task[Any]")

# Tokens of a pass on a CPU. Rows of about one length share one, so that small passes pad little, and their numbers stay
# in the cache: of 32 texts of 5 to 60 words, MiniLM on ONNX Runtime is nearly twice as quick as in one pass.
TOKENS = {"torch": 512, "onnx": 256}


class TaskInterface(Answering[Asked], Generic[TaskT, Asked]):
    """A task, which says its columns.

    Args:
        task: trained, in eval mode.
        backend: "torch", or "onnx" where ONNX Runtime runs its model.
        precision: of PyTorch.
    """

    def __init__(self, task: TaskT, backend: str, precision: Precision) -> None:
        self.task, self.backend, self.precision = task.eval(), backend, precision
        if task.device.type == "cpu":
            task.options = replace(task.options, batch_tokens=min(task.options.batch_tokens, TOKENS[backend]))
        self.platform = f"headwise_{backend}"
        self.description = self.describe()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.task.device

    @property
    def has_records(self) -> bool:
        """Whether there are records of what the heads do: they are PyTorch's."""
        return self.backend == "torch"

    @abstractmethod
    def describe(self) -> Description:
        """The columns, and all else that protocols have to know."""
