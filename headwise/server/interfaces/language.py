"""A text with gaps to the same without, or the beginning of a text to what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from headwise.errors import HeadwiseError
from headwise.models.language_model import CausalLanguageModel
from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.cells import text_of
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.tasks.language import Language
from headwise.tasks.text.causal_language import Causal
from headwise.tasks.text.masked_language import Masked
from headwise.tasks.text.wordpieces import MASK
from headwise.viewer import Input, inputs_of


class LanguageInterface(TaskInterface[Language, str]):
    """`text` -> `filled`, `probability`, `or` of a masked model; `continuation`, `log_probability` of a causal one."""

    def describe(self) -> Description:
        masked = isinstance(self.task.objective, Masked)
        outputs: tuple[Column, ...] = (
            Column("continuation", "BYTES", says="how the text goes on"),
            Column("log_probability", "FP32", says="of that, natural logarithm"),
        )
        if masked:
            outputs = (
                Column("filled", "BYTES", says=f"the text with the likeliest token in the place of each {MASK}"),
                Column("probability", "FP32", says="of all these tokens, taken by themselves"),
                Column("or", "BYTES", says=f"what else may stand there, a list for each {MASK}"),
            )
        says = f"a text with {MASK} where tokens are to be found" if masked else "the beginning of a text"
        return Description(
            task=self.task.name,
            platform=self.platform,
            inputs=(Column("text", "BYTES", says=says),),
            outputs=outputs,
            streams=not masked,
            explains=self.has_records,
            example={"text": f"a {MASK} film" if masked else "a warm, funny"},
        )

    def read(self, row: Row) -> str:
        return text_of(row, "text")

    def size(self, asked: str) -> int:
        objective: Any = self.task.objective
        if isinstance(objective, Masked):
            return len(objective.subwords.tokens(asked).ids)
        return len(objective.vocabulary.encode([asked])[0])

    def run(self, asked: Sequence[str]) -> list[Row | HeadwiseError]:
        """One text after another: what is drawn for the first of several is what is drawn for one alone."""
        found: list[Row | HeadwiseError] = []
        for text in asked:
            try:
                found += self.task.predict([text])
            except HeadwiseError as error:  # noqa: PERF203 (each by itself)
                found.append(error)
        return found

    def write(self, asked: str) -> Iterator[str]:
        objective = self.task.objective
        if not isinstance(objective, Causal):
            return super().write(asked)
        # Not by the task, to which a text alone may be the name of a file, which would be read.
        return objective.stream(cast("CausalLanguageModel", self.task.model), asked)

    def look(self, asked: str) -> list[Input]:
        return inputs_of(self.task.look([asked]))
