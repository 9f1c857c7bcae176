"""Causal language: a decoder finds each token from those before it, and so goes on with a text. Radford et al. 2018."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise import masks
from headwise.graphs import causal_language_model
from headwise.graphs.graph import Graph
from headwise.graphs.session import Sessions
from headwise.models.language_model import CausalConfig, CausalLanguageModel
from headwise.nn import Cache
from headwise.parallel import context_parallel, deal, shard
from headwise.tasks.columns import Column, Row
from headwise.tasks.language import Language
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.rows.tables import Data
from headwise.tasks.task import Batch
from headwise.tasks.text.padding import padded, padded_with_real
from headwise.tasks.text.pieces import pieces
from headwise.tasks.text.running.batch import RunningBatch
from headwise.tasks.text.running.passes import Continuing
from headwise.tasks.text.searches import Asked, search_for
from headwise.tasks.text.steps import Decoding, Steps, Written
from headwise.tasks.text.vocabulary import Vocabulary
from headwise.tasks.text.writing import Stepped, Writing, followed, written
from headwise.tasks.training.sharding import sequence_mesh
from headwise.text import Tokens
from headwise.text.tokenizer import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self

FILE = "tokenizer.json"
TEXTS = 4  # most real texts on which an export is compared


class Causal(Language):
    """The next token is found."""

    reads = "the beginning of a text"
    writes = "continuation"
    outputs = (
        Column("continuation", "BYTES", says="the continuation of the text"),
        Column("log_probability", "FP32", says="natural logarithm of its probability"),
    )
    example = "a warm, funny"
    unread, unread_signs = "the beginning", 1
    streams = True

    model: CausalLanguageModel

    def __init__(self, options: LanguageOptions, model: CausalLanguageModel, vocabulary: Vocabulary) -> None:
        super().__init__(options, model)
        self.vocabulary, self.block = vocabulary, options.block
        self.make_steps: Callable[[CausalLanguageModel, Sequence[int]], Steps] = After
        self.decoding = Decoding(
            *(vocabulary.begin, vocabulary.end, (vocabulary.pad, vocabulary.begin)),
            sample=options.sample,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )

    @classmethod
    def learn(cls, data: Data, options: LanguageOptions) -> Self:
        """The vocabulary of the texts, and a new model."""
        vocabulary = Vocabulary.train(data.columns["text"], options.vocab_size)
        config = CausalConfig(len(vocabulary), options.dim, options.layers, options.heads, options.dropout)
        return cls(options, CausalLanguageModel(config), vocabulary)

    @classmethod
    def restore(cls, options: LanguageOptions, state: dict[str, Any], folder: Path) -> Self:
        return cls(options, CausalLanguageModel(CausalConfig(**state)), Vocabulary.load(folder / FILE))

    def state(self) -> dict[str, Any]:
        return asdict(self.model.config)

    def save_files(self, folder: Path) -> None:
        self.vocabulary.save(folder / FILE)

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Pieces of "[BOS] document [EOS]", of `block` tokens and the one after, with which the next piece begins: so
        each token is to be found once. No piece is of two documents."""
        return [
            ids[start : start + self.block + 1]
            for ids in self.vocabulary.encode(texts)
            for start in range(0, len(ids) - 1, self.block)
        ]

    def collate(self, examples: Sequence[list[int]]) -> Batch:
        ids, real = padded_with_real(examples, self.vocabulary.pad)
        return {"input_ids": ids, "real": real}

    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [N, V] of every token but the first of a piece, and these tokens [N]."""
        ids, follows = batch["input_ids"], batch["real"][:, 1:]
        return self.model(ids[:, :-1], batch["real"][:, :-1], at=follows), ids[:, 1:][follows]

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of -log p over every token but the first of a piece, and their number.

        The batch is the same in every process of those that share its sequences: what is counted are the tokens of
        this process.
        """
        ids, real, mesh = batch["input_ids"], batch["real"], sequence_mesh(self)
        if mesh is None:
            follows = real[:, 1:]
            labels = ids[:, 1:][follows]
            total = self.model(ids[:, :-1], real[:, :-1], at=follows, labels=labels)
            return total, torch.tensor(len(labels), device=total.device)
        missing = max(0, mesh.size() + 1 - ids.shape[1])  # every process holds a position, even if it is padding
        ids, real = pad(ids, (0, missing), value=self.vocabulary.pad), pad(real, (0, missing))
        layout = deal(masks.causal(), ids.shape[1] - 1, mesh)
        mine = [shard(x, layout, mesh) for x in (ids[:, :-1], real[:, :-1], ids[:, 1:], real[:, 1:])]
        read, real_S, tokens, follows = mine
        with context_parallel(mesh, layout):
            labels = tokens[follows]
            total = self.model(read, real_S, at=follows, labels=labels)
        return total, torch.tensor(len(labels), device=total.device)

    def tokenize(self, text: str) -> Encoded:
        """[BOS], all tokens of a text, [EOS]."""
        return self.vocabulary.read(text)

    def answer(self, asked: Encoded, place: int = 0) -> dict[str, Any]:
        (found,) = written(self._writing(asked, place))
        return self._answer(asked, found)

    def _answer(self, asked: Encoded, written: Written) -> dict[str, Any]:
        return {"continuation": self._text(asked.ids, written.ids), "log_probability": written.log_probability}

    def running(self, most: int) -> RunningBatch[Row] | None:
        if self.make_steps is not After:  # another runtime computes the model
            return None
        self.eval()
        search = partial(search_for, self.decoding, self.model.embedding.weight.device)
        return RunningBatch(lambda: Writing(Continuing(self.model), search()), self._asked, self._answer, most)

    def stream_row(self, asked: Encoded) -> Iterator[str]:
        """What `predict` gives for this text alone, piece by piece, as soon as each is chosen."""
        self.eval()
        return pieces(followed(self._writing(asked, 0)), partial(self._text, asked.ids))

    @torch.no_grad()
    def _writing(self, asked: Encoded, place: int) -> Writing:
        """The beginning of a continuation, by the modules of the model or by another runtime."""
        device = self.model.embedding.weight.device
        run = Stepped(lambda sources: self.make_steps(self.model, sources[0]), self.decoding, device)
        writing = Writing(run, search_for(self.decoding, device))
        writing.join([self._asked(asked, place)])
        return writing

    def _asked(self, asked: Encoded, place: int = 0) -> Asked:
        """What is read are the last tokens before [EOS]; the draws, where there are some, are those of the place."""
        draws = None
        if self.decoding.sample:
            generator = torch.Generator().manual_seed(place)
            draws = torch.rand(1, self.options.write, generator=generator, dtype=torch.float64)[0]
        return Asked(asked.ids[:-1][-self.block :], self.options.write, draws)

    def tokens(self, asked: Encoded) -> Tokens:
        """[BOS] and the text, its last `block` tokens."""
        whole = self.vocabulary.tokens(asked)
        return whole.take(range(len(whole.ids) - 1)[-self.block :])

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """decoder: see `causal_language_model` in `headwise.graphs`."""
        examples = [row for row in self.examples(rows)[:TEXTS] if len(row) >= 4]  # two tokens, and two more
        real = [(padded(examples, self.vocabulary.pad)[:, : self.block],)] if examples else []
        return causal_language_model.graphs(self.model, real, longest=self.block)

    def run_on(self, sessions: Sessions) -> None:
        self.make_steps = causal_language_model.run_on(self.model, sessions)

    def _text(self, text: Sequence[int], ids: Sequence[int]) -> str:
        """What was written: it may end a word of the text, so that both are put into letters together."""
        begun = text[:-1]
        whole, before = self.vocabulary.decode([*begun, *ids]), self.vocabulary.decode(begun)
        return whole[len(before) :]


class After:
    """`Steps` of a model that has read the beginning of a text: what comes first is not [BOS] but what follows it."""

    def __init__(self, model: CausalLanguageModel, begun: Sequence[int]) -> None:
        self._model, self._begun = model, begun
        self._cache = Cache()

    def __call__(self, ids: Tensor) -> Tensor:
        read = ids[:, None] if self._cache.length else torch.tensor([self._begun], device=ids.device)
        logits: Tensor = self._model(read, cache=self._cache)
        return logits[:, -1]

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self._cache.reorder(order)
