"""The interface of answer: a question and a context -> the words of the context that answer it."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.interfaces.texts import Texts, texts_of_row
from headwise.tasks.answer import Answer
from headwise.viewer import Input, inputs_of

NO_ANSWER = -1  # the start when the context has no answer


class AnswerInterface(TaskInterface[Answer, Texts]):
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

    def parse(self, row: Row) -> Texts:
        return texts_of_row(row, ("question", "context"), self.task.subwords)

    def tokens(self, asked: Texts) -> int:
        return asked.tokens

    def run(self, asked: Sequence[Texts]) -> list[Row]:
        windows = []
        for place, (_, (question, context)) in enumerate(asked):
            windows += self.task.windows(place, question, context)
        found = self.task.answers([each.texts[1] for each in asked], windows)
        return [{**each, "start": NO_ANSWER if each["start"] is None else each["start"]} for each in found]

    def look(self, asked: Texts) -> list[Input]:
        return inputs_of(self.task.look([asked.texts]))
