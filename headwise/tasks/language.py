"""`Language`: a language model trained on plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.errors import ArgumentError, HeadwiseError
from headwise.graphs.graph import Graph
from headwise.graphs.session import Sessions
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, text_of
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.rows.corpus import read_corpus
from headwise.tasks.rows.tables import Data, check_filled
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task
from headwise.tasks.text.causal_language import Causal
from headwise.tasks.text.masked_language import Masked
from headwise.tasks.text.running.batch import RunningBatch
from headwise.tasks.training.sharding import sequence_mesh
from headwise.text.tokenizer import Encoded

OBJECTIVES: dict[str, type[Masked] | type[Causal]] = {"masked": Masked, "causal": Causal}


class Language(Task[LanguageOptions]):
    """A BERT that predicts masked tokens, or a decoder that continues a text.

    Documents are cut into pieces of `block` tokens; no piece spans two documents.

    >>> task = Language.fit("corpus.txt", out="run")
    >>> task.predict(["a [MASK] of statements"])[0]["filled"]
    'a sequence of statements'
    >>> Classify.fit("reviews.csv", model="run/bert")     # fine-tunes the trained model

    Raises:
        ArgumentError: the objective does not support these options.
    """

    name = "language"
    options_type = LanguageOptions
    reads_documents = True
    compared_by = (("perplexity", "min"),)

    model: Any  # of the objective: MaskedLanguageModel or CausalLanguageModel

    def __init__(self, options: LanguageOptions, model: nn.Module, objective: Masked | Causal) -> None:
        super().__init__(options, model)
        self.objective = objective

    @property
    def writes(self) -> str:
        """The text column of `predict`."""
        return self.objective.writes

    @classmethod
    def read(cls, source: Any, options: LanguageOptions, *, targets: bool = True) -> Data:
        return read_corpus(source, options.text)

    @classmethod
    def learn(cls, data: Data, options: LanguageOptions) -> Language:
        objective, model = OBJECTIVES[options.objective].learn(data.columns["text"], options)
        return cls(options, model, objective)

    def encode(self, data: Data, *, targets: bool = True) -> list[list[int]]:
        return self.objective.encode(data.columns["text"])

    def length(self, example: list[int]) -> int:
        return len(example)

    def collate(self, examples: Sequence[list[int]]) -> Batch:
        return self.objective.collate(examples)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        total, count = self.objective.loss(self.model, batch, sequence_mesh(self), training=self.training)
        return total, torch.tensor(count, device=total.device)

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Texts with masks filled in, or continuations of texts.

        Args:
            inputs: a text, several texts, or another input of `read`. A masked model fills every [MASK].

        Returns:
            Masked: "filled", its "probability", and other candidates "or". Causal: "continuation"
            and its "log_probability".
        """
        self.eval()
        return self.objective.predict(self.model, self._texts(inputs))

    def cut(self, inputs: Any) -> dict[int, str]:
        return self.objective.cut(self._texts(inputs))

    def remarks(self, data: Data) -> tuple[str, ...]:
        """None: documents are learned and scored in pieces, all of them."""
        return ()

    def stream(self, text: str) -> Iterator[str]:
        """The continuation that `predict` returns for one text, piece by piece.

        Raises:
            ArgumentError: several texts, or a masked model, which fills all masks at once.
        """
        if not isinstance(self.objective, Causal):
            raise ArgumentError(
                "stream: expected a model with objective=causal. Received: a masked one, which fills all masks at once"
            )
        texts = self._texts(text)
        if len(texts) != 1:
            raise ArgumentError(f"stream: expected one text. Received: {len(texts)} texts. Stream each separately")
        return self.stream_row(self.objective.read(texts[0]))

    def look(self, inputs: Any) -> list[Seen]:
        return [self.look_at(self.objective.read(text))[0] for text in self._texts(inputs)]

    def columns(self) -> Columns:
        objective = self.objective
        return Columns(
            inputs=(Column("text", "BYTES", says=objective.reads + objective.limit),),
            outputs=objective.outputs,
            streams=isinstance(objective, Causal),
            example={"text": objective.example},
        )

    def read_row(self, row: Row) -> Encoded:
        return self.objective.read(text_of(row, "text"))

    def count_tokens(self, asked: Encoded) -> int:
        return len(asked.ids)

    def answer_rows(self, asked: Sequence[Encoded]) -> list[Row | HeadwiseError]:
        """One text at a time, so that each is sampled with the same random numbers as a single text."""
        found: list[Row | HeadwiseError] = []
        for each in asked:
            try:
                found.append(self.objective.answer(self.model, each))
            except HeadwiseError as error:  # noqa: PERF203 (each by itself)
                found.append(error)
        return found

    def running(self, most: int) -> RunningBatch[Row] | None:
        if not isinstance(self.objective, Causal):
            return None
        self.eval()
        return self.objective.running(self.model, most)

    def stream_row(self, asked: Encoded) -> Iterator[str]:
        if not isinstance(self.objective, Causal):
            return super().stream_row(asked)
        self.eval()
        return self.objective.stream(self.model, asked)

    def look_at(self, asked: Encoded) -> tuple[Seen, None]:
        self.eval()
        return self.objective.look(self.model, asked), None

    @torch.no_grad()
    def evaluate(self, source: Any) -> Scores:
        """Perplexity, exp(mean of -log p), and the accuracy of the most probable token.

        For a masked model, both are computed on a fixed set of masked tokens. The baseline is the best model
        without context: the frequency of each token among the tokens to predict.
        """
        self.eval()
        data = self.read(source, self.options)
        examples = self.encode(data)
        counts: Tensor | int = 0
        total, right = 0.0, 0
        for batch, _ in self.batches(examples):
            logits_NV, tokens_N = self.objective.predictions(self.model, batch)
            total += float(cross_entropy(logits_NV.double(), tokens_N, reduction="sum"))
            right += int((logits_NV.argmax(-1) == tokens_N).sum())
            counts = counts + torch.bincount(tokens_N.cpu(), minlength=logits_NV.shape[1]).double()
        if isinstance(counts, int) or not counts.sum():
            raise ArgumentError(f"{data.name}: it has no token to predict")
        share = counts[counts > 0] / counts.sum()
        values = {"perplexity": _exp(total / float(counts.sum())), "accuracy": right / float(counts.sum())}
        unigram = {"perplexity": _exp(float(-(share * share.log()).sum())), "accuracy": float(share.max())}
        name = "how often each token is there, without context"
        return Scores(values, len(data), {name: unigram}, left_out=data.left_out)

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """model or decoder: see `masked_language_model` and `causal_language_model` in `headwise.graphs`."""
        texts = [] if rows is None else self._texts(rows)
        return self.objective.graphs(self.model, self.objective.encode(texts)[: self.options.batch_size])

    def run_on(self, sessions: Sessions) -> None:
        self.objective.run_on(self.model, sessions)

    def state(self) -> dict[str, Any]:
        return self.objective.state(self.model)

    @classmethod
    def restore(cls, options: LanguageOptions, state: dict[str, Any], folder: Path) -> Language:
        objective, model = OBJECTIVES[options.objective].restore(options, state, folder)
        return cls(options, model, objective)

    def save_files(self, folder: Path) -> None:
        self.objective.save_files(self.model, folder)

    def _texts(self, inputs: Any) -> list[str]:
        """The texts themselves, or those in a file or table, one per row."""
        if isinstance(inputs, str) and not Path(inputs).is_file():
            inputs = [inputs]
        if isinstance(inputs, list | tuple) and inputs and not isinstance(inputs[0], dict):
            check_filled(inputs)
            return list(inputs)
        return list(self.read(inputs, self.options, targets=False).columns["text"])


def _exp(mean: float) -> float:
    return float(torch.tensor(mean, dtype=torch.float64).exp())
