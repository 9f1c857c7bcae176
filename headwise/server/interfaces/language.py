"""The interface of language: a text with masks -> the text filled in, or the beginning of a text -> the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from headwise.errors import HeadwiseError
from headwise.models.language_model import CausalLanguageModel
from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.cells import text_of
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.interfaces.texts import Text
from headwise.tasks.language import Language
from headwise.tasks.text.causal_language import Causal
from headwise.tasks.text.masked_language import Masked
from headwise.tasks.text.wordpieces import MASK
from headwise.viewer import Input, inputs_of


class LanguageInterface(TaskInterface[Language, Text]):
    """`text` -> `filled`, `probability`, `or` (masked model); `continuation`, `log_probability` (causal model)."""

    def describe(self) -> Description:
        masked = isinstance(self.task.objective, Masked)
        outputs: tuple[Column, ...] = (
            Column("continuation", "BYTES", says="the continuation of the text"),
            Column("log_probability", "FP32", says="natural logarithm of its probability"),
        )
        if masked:
            outputs = (
                Column("filled", "BYTES", says=f"the text with each {MASK} replaced by the most probable token"),
                Column("probability", "FP32", says="product of the probabilities of these tokens"),
                Column("or", "BYTES", says=f"other candidates, one list per {MASK}"),
            )
        says = f"a text with {MASK} where tokens are missing" if masked else "the beginning of a text"
        return Description(
            task=self.task.name,
            platform=self.platform,
            inputs=(Column("text", "BYTES", says=says),),
            outputs=outputs,
            streams=not masked,
            explains=self.has_records,
            example={"text": f"a {MASK} film" if masked else "a warm, funny"},
        )

    def parse(self, row: Row) -> Text:
        text = text_of(row, "text")
        return Text(text, self.task.objective.ids(text))

    def tokens(self, asked: Text) -> int:
        return len(asked.ids)

    def run(self, asked: Sequence[Text]) -> list[Row | HeadwiseError]:
        """One text at a time, so that each is sampled with the same random numbers as a single text."""
        found: list[Row | HeadwiseError] = []
        for each in asked:
            try:
                found.append(self.task.objective.answer(self.task.model, *each))
            except HeadwiseError as error:  # noqa: PERF203 (each by itself)
                found.append(error)
        return found

    def stream(self, asked: Text) -> Iterator[str]:
        objective = self.task.objective
        if not isinstance(objective, Causal):
            return super().stream(asked)
        return objective.stream(cast("CausalLanguageModel", self.task.model), asked.ids)

    def look(self, asked: Text) -> list[Input]:
        return inputs_of(self.task.look([asked.text]))
