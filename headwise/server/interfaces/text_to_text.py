"""The interface of translate, summarize and reply: a text -> another text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.cells import text_of
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.interfaces.texts import Text
from headwise.tasks.rows.tables import Data
from headwise.tasks.text_to_text import TextToText
from headwise.viewer import Input, inputs_of

SAYS = {"translate": "the text to translate", "summarize": "the text to summarize", "reply": "the dialogue so far"}


class TextToTextInterface(TaskInterface[TextToText[Any], Text]):
    """`text` -> the generated text, in a column named by the task, and its `score`."""

    def describe(self) -> Description:
        task = self.task
        says = SAYS[task.name] + ("; a dialogue has one turn per line" if self._is_dialogue else "")
        ranked = ", by which beam search ranks texts" if not task.options.sample and task.options.beams > 1 else ""
        return Description(
            task=task.name,
            platform=self.platform,
            inputs=(Column("text", "BYTES", says=says),),
            outputs=(
                Column(task.writes, "BYTES", says=f"the {task.writes}"),
                Column("score", "FP32", says=f"its log-probability{ranked}"),
            ),
            streams=True,
            explains=self.has_records,
            example={"text": "Two dogs play in the snow."},
        )

    @property
    def _is_dialogue(self) -> bool:
        return getattr(self.task.options, "dialogue", None) is not None

    def parse(self, row: Row) -> Text:
        """The source in the form that the task reads; a dialogue becomes its turns, without empty lines."""
        data = Data("rows", {"dialogue" if self._is_dialogue else "source": [text_of(row, "text")]}, [0])
        (source,) = self.task.pairs(data, self.task.options, targets=False).sources
        return Text(source, self.task.source_vocabulary.encode([source])[0])

    def tokens(self, asked: Text) -> int:
        return len(asked.ids)

    def run(self, asked: Sequence[Text]) -> list[Row]:
        examples = [self.task.example(each.ids) for each in asked]
        if self.task.options.sample:  # one row at a time: a sample depends on the row's index in its batch
            return [row for example in examples for row in self.task.answers([example])]
        return self.task.answers(examples)

    def stream(self, asked: Text) -> Iterator[str]:
        return self.task.streamed(self.task.example(asked.ids))

    def look(self, asked: Text) -> list[Input]:
        return inputs_of(self.task.look([asked.text]))
