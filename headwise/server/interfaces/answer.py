"""The interface of answer: a question and a context -> the words of the context that answer it."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.cells import text_of
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.tasks.answer import Answer
from headwise.viewer import Input, inputs_of

NO_ANSWER = -1  # the start when the context has no answer


class AnswerInterface(TaskInterface[Answer, tuple[str, str]]):
    """`question`, `context` -> `answer`, `start`, `probability`."""

    def describe(self) -> Description:
        return Description(
            task=self.task.name,
            platform=self.platform,
            inputs=(
                Column("question", "BYTES", says="the question"),
                Column("context", "BYTES", says="the text with the answer, of any length"),
            ),
            outputs=(
                Column("answer", "BYTES", says="copied from the context; empty if the context has no answer"),
                Column(
                    "start",
                    "INT64",
                    says=f"index of its first character in the context; {NO_ANSWER} if there is no answer",
                ),
                Column("probability", "FP32", says="probability of this answer, or of no answer"),
            ),
            explains=self.has_records,
            example={
                "question": "Who wrote the book?",
                "context": "The book was written by Mary Shelley. It came out in 1818.",
            },
        )

    def read(self, row: Row) -> tuple[str, str]:
        return text_of(row, "question"), text_of(row, "context")

    def size(self, asked: tuple[str, str]) -> int:
        return 3 + sum(len(pieces.ids) for pieces in self.task.subwords.pieces(asked))

    def run(self, asked: Sequence[tuple[str, str]]) -> list[Row]:
        found = self.task.predict(list(asked))
        return [{**each, "start": NO_ANSWER if each["start"] is None else each["start"]} for each in found]

    def look(self, asked: tuple[str, str]) -> list[Input]:
        return inputs_of(self.task.look([asked]))
