"""The interface of classify: a text, or a pair of texts -> a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.models import Bert
from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces import unpadded
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.interfaces.texts import Texts, texts_of_row
from headwise.tasks.classify import Classify, Example
from headwise.viewer import Input, inputs_of

EXAMPLE = {"text": "a warm, funny film", "text_pair": "a cold, sad one"}


class ClassifyInterface(TaskInterface[Classify, Texts]):
    """`text`, for pairs also `text_pair` -> `label`, `probability`, `probabilities`."""

    def describe(self) -> Description:
        task, pairs = self.task, self.task.options.text_pair is not None
        says = {"text": "the text to classify", "text_pair": "the second text"}
        self.columns = ["text", "text_pair"][: 1 + pairs]
        labels = tuple(task.labels)
        return Description(
            task=task.name,
            platform=self.platform,
            inputs=tuple(Column(column, "BYTES", says=says[column]) for column in self.columns),
            outputs=(
                Column("label", "BYTES", says="the most probable label"),
                Column("probability", "FP32", says="probability of that label"),
                Column(
                    "probabilities", "FP32", (len(labels),), says="probability of each label, in the order of labels"
                ),
            ),
            labels=labels,
            explains=self.has_records,
            example={column: EXAMPLE[column] for column in self.columns},
        )

    def parse(self, row: Row) -> Texts:
        return texts_of_row(row, self.columns, self.task.subwords)

    def tokens(self, asked: Texts) -> int:
        return asked.tokens

    def run(self, asked: Sequence[Texts]) -> list[Row]:
        found_NC = self._logits([self.task.example(each.pieces) for each in asked]).float().softmax(-1)
        probabilities, best = found_NC.max(-1)
        labels = self.description.labels
        return [
            {"label": labels[number], "probability": share, "probabilities": shares}
            for number, share, shares in zip(best.tolist(), probabilities.tolist(), found_NC.numpy(), strict=True)
        ]

    def look(self, asked: Texts) -> list[Input]:
        return inputs_of(self.task.look([asked.texts]))

    def _logits(self, examples: Sequence[Example]) -> Tensor:
        """[N, C] on the CPU."""
        task = self.task
        model: Any = task.model
        if self.backend == "torch" and isinstance(model.encoder, Bert) and task.device.type == "cpu":
            hidden = unpadded.read(model.encoder, [each.ids for each in examples], [each.types for each in examples])
            pooled = [x_SM[0] if model.pooling == "cls" else x_SM.mean(0) for x_SM in hidden]
            return model.head(torch.stack(pooled))
        logits_NC = torch.empty(len(examples), len(task.labels))
        for batch, places in task.batches(examples):
            logits_NC[places] = model(batch["input_ids"], batch["real"], batch["token_type_ids"]).float().cpu()
        return logits_NC
