"""`TaskInterface`: the interface of a trained task, with PyTorch or with ONNX Runtime."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from headwise.server.interface import Asked, Description
from headwise.server.interfaces.answering import Answering
from headwise.server.interfaces.precision import Precision
from headwise.tasks.task import Task

TaskT = TypeVar("TaskT", bound="Task[Any]")

# Tokens per pass on a CPU. Rows of similar length share a pass, so a small pass needs little padding and its data stay
# in the cache: on 32 texts of 5 to 60 words, MiniLM on ONNX Runtime is nearly twice as fast as in one pass.
TOKENS = {"torch": 512, "onnx": 256}


class TaskInterface(Answering[Asked], Generic[TaskT, Asked]):
    """A task with its columns.

    Args:
        task: a trained task in eval mode.
        backend: "torch", or "onnx" if ONNX Runtime runs the model.
        precision: the precision of PyTorch.
    """

    def __init__(self, task: TaskT, backend: str, precision: Precision) -> None:
        self.task, self.backend, self.precision = task.eval(), backend, precision
        if task.device.type == "cpu":
            task.options = replace(task.options, batch_tokens=min(task.options.batch_tokens, TOKENS[backend]))
        self.platform = f"headwise_{backend}"
        self.description = self.describe()

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.task.device

    @property
    def has_records(self) -> bool:
        """Whether attention can be recorded, which needs PyTorch."""
        return self.backend == "torch"

    @abstractmethod
    def describe(self) -> Description:
        """The columns, and everything else that protocols need to know."""
