"""`Language`: a language model trained on plain text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.errors import ArgumentError, HeadwiseError
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, text_of
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.rows.corpus import read_corpus
from headwise.tasks.rows.tables import Data, check_filled, texts_in
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task
from headwise.tasks.text import encoders
from headwise.tasks.text.cuts import cut, limit
from headwise.text import Tokens
from headwise.text.tokenizer import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self


class Language(Task[LanguageOptions]):
    """A BERT that predicts masked tokens, or a decoder that continues a text.

    Documents are cut into pieces of `block` tokens; no piece spans two documents. The class of a task is that of its
    objective: `Masked` or `Causal`.

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

    # Of each objective.
    reads: ClassVar[str]  #: what the text of a request is
    writes: ClassVar[str]  #: the text column of `predict`
    outputs: ClassVar[tuple[Column, ...]]
    example: ClassVar[str]
    unread: ClassVar[str] = "the rest"  #: the part of a long text that `predict` does not read
    unread_signs: ClassVar[int] = 0  #: signs at the end of a text that it never reads
    streams: ClassVar[bool] = False

    model: Any  # MaskedLanguageModel or CausalLanguageModel
    block: int  #: tokens of a text that are read at most

    @classmethod
    def read(cls, source: Any, options: LanguageOptions, *, targets: bool = True) -> Data:
        return read_corpus(source, options.text)

    @classmethod
    def learn(cls, data: Data, options: LanguageOptions) -> Self:
        return _objective(options).learn(data, options)  # type: ignore[return-value]

    @classmethod
    def restore(cls, options: LanguageOptions, state: dict[str, Any], folder: Path) -> Self:
        return _objective(options).restore(options, state, folder)  # type: ignore[return-value]

    # Defined by each objective.

    @abstractmethod
    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the pieces of documents."""

    @abstractmethod
    def tokenize(self, text: str) -> Encoded:
        """All tokens of a text, with signs around them."""

    @abstractmethod
    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits [N, V] of the tokens to predict, and these tokens [N]; the same each time."""

    @abstractmethod
    def answer(self, asked: Encoded, place: int = 0) -> dict[str, Any]:
        """What `predict` gives for a text at this place."""

    @abstractmethod
    def tokens(self, asked: Encoded) -> Tokens:
        """The tokens that `predict` reads of a text."""

    # The same for both.

    def encode(self, data: Data, *, targets: bool = True) -> list[list[int]]:
        return self.pieces(data.columns["text"])

    def length(self, example: list[int]) -> int:
        return len(example)

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Texts with masks filled in, or continuations of texts.

        Args:
            inputs: a text, several texts, or another input of `read`. A masked model fills every [MASK].

        Returns:
            Masked: "filled", its "probability", and other candidates "or". Causal: "continuation"
            and its "log_probability".
        """
        self.eval()
        return [self.answer(self.tokenize(text), place) for place, text in enumerate(self._texts(inputs))]

    def cut(self, inputs: Any) -> dict[int, str]:
        sizes = (len(self.tokenize(text).ids) - self.unread_signs for text in self._texts(inputs))
        return cut(sizes, self.block, part=self.unread)

    def remarks(self, data: Data) -> tuple[str, ...]:
        """None: documents are learned and scored in pieces, all of them."""
        return ()

    def stream(self, text: str) -> Iterator[str]:
        """The continuation that `predict` returns for one text, piece by piece.

        Raises:
            ArgumentError: several texts, or a masked model, which fills all masks at once.
        """
        if not self.streams:
            raise ArgumentError(
                "stream: expected a model with objective=causal. Received: a masked one, which fills all masks at once"
            )
        texts = self._texts(text)
        if len(texts) != 1:
            raise ArgumentError(f"stream: expected one text. Received: {len(texts)} texts. Stream each separately")
        return self.stream_row(self.tokenize(texts[0]))

    def look(self, inputs: Any) -> list[Seen]:
        return [self.look_at(self.tokenize(text))[0] for text in self._texts(inputs)]

    def columns(self) -> Columns:
        return Columns(
            inputs=(Column("text", "BYTES", says=self.reads + limit(self.block, part=self.unread)),),
            outputs=self.outputs,
            streams=self.streams,
            example={"text": self.example},
        )

    def read_row(self, row: Row) -> Encoded:
        return self.tokenize(text_of(row, "text"))

    def count_tokens(self, asked: Encoded) -> int:
        return len(asked.ids)

    def answer_rows(self, asked: Sequence[Encoded]) -> list[Row | HeadwiseError]:
        """One text at a time, so that each is sampled with the same random numbers as a single text."""
        found: list[Row | HeadwiseError] = []
        for each in asked:
            try:
                found.append(self.answer(each))
            except HeadwiseError as error:  # noqa: PERF203 (each by itself)
                found.append(error)
        return found

    def look_at(self, asked: Encoded) -> tuple[Seen, None]:
        self.eval()
        return encoders.look(self.model, self.tokens(asked)), None

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
            logits_NV, tokens_N = self.predictions(batch)
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

    def examples(self, rows: Any) -> list[list[int]]:
        """The pieces of real texts on which an export is compared; none of None."""
        return self.pieces([] if rows is None else self._texts(rows))[: self.options.batch_size]

    def _texts(self, inputs: Any) -> list[str]:
        """The texts themselves, or those in a file or table, one per row."""
        if (texts := texts_in(inputs)) is not None:
            check_filled(texts)
            return texts
        return list(self.read(inputs, self.options, targets=False).columns["text"])


def _exp(mean: float) -> float:
    return float(torch.tensor(mean, dtype=torch.float64).exp())


def _objective(options: LanguageOptions) -> type[Language]:
    from headwise.tasks.text.causal_language import Causal
    from headwise.tasks.text.masked_language import Masked

    return Causal if options.objective == "causal" else Masked
