"""Causal language: a decoder finds each token from those before it, and so goes on with a text. Radford et al. 2018."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from headwise.records import Seen
from headwise.tasks.columns import Column
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.task import Batch
from headwise.tasks.text import encoders
from headwise.tasks.text.cuts import cut, limit
from headwise.tasks.text.padding import padded, padded_with_real
from headwise.tasks.text.pieces import pieces
from headwise.tasks.text.running.batch import RunningBatch
from headwise.tasks.text.running.passes import Continuing
from headwise.tasks.text.searches import Asked, search_for
from headwise.tasks.text.steps import Decoding, Steps, Written
from headwise.tasks.text.vocabulary import Vocabulary
from headwise.tasks.text.writing import Stepped, Writing, followed, written
from headwise.text.tokenizer import Encoded

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FILE = "tokenizer.json"
TEXTS = 4  # most real texts on which an export is compared


class Causal:
    """What of `Language` is its own where the next token is found."""

    writes: ClassVar[str] = "continuation"
    reads: ClassVar[str] = "the beginning of a text"
    example: ClassVar[str] = "a warm, funny"
    outputs: ClassVar[tuple[Column, ...]] = (
        Column("continuation", "BYTES", says="the continuation of the text"),
        Column("log_probability", "FP32", says="natural logarithm of its probability"),
    )

    def __init__(self, options: LanguageOptions, vocabulary: Vocabulary) -> None:
        self.options, self.vocabulary = options, vocabulary
        self.make_steps: Callable[[CausalLanguageModel, Sequence[int]], Steps] = After
        self.decoding = Decoding(
            *(vocabulary.begin, vocabulary.end, (vocabulary.pad, vocabulary.begin)),
            sample=options.sample,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )

    @classmethod
    def learn(cls, texts: Sequence[str], options: LanguageOptions) -> tuple[Causal, CausalLanguageModel]:
        """The vocabulary of the texts, and a new model."""
        vocabulary = Vocabulary.train(texts, options.vocab_size)
        config = CausalConfig(len(vocabulary), options.dim, options.layers, options.heads, options.dropout)
        return cls(options, vocabulary), CausalLanguageModel(config)

    @classmethod
    def restore(
        cls, options: LanguageOptions, state: dict[str, Any], folder: Path
    ) -> tuple[Causal, CausalLanguageModel]:
        return cls(options, Vocabulary.load(folder / FILE)), CausalLanguageModel(CausalConfig(**state))

    @staticmethod
    def state(model: CausalLanguageModel) -> dict[str, Any]:
        return asdict(model.config)

    def save_files(self, model: CausalLanguageModel, folder: Path) -> None:
        self.vocabulary.save(folder / FILE)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Pieces of "[BOS] document [EOS]", of `block` tokens and the one after, with which the next piece begins: so
        each token is to be found once. No piece is of two documents."""
        block = self.options.block
        return [
            ids[start : start + block + 1]
            for ids in self.vocabulary.encode(texts)
            for start in range(0, len(ids) - 1, block)
        ]

    def collate(self, examples: Sequence[list[int]]) -> Batch:
        ids, real = padded_with_real(examples, self.vocabulary.pad)
        return {"input_ids": ids, "real": real}

    def predictions(self, model: CausalLanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [N, V] of every token but the first of a piece, and these tokens [N]."""
        ids, follows = batch["input_ids"], batch["real"][:, 1:]
        return model(ids[:, :-1], batch["real"][:, :-1], at=follows), ids[:, 1:][follows]

    def loss(
        self, model: CausalLanguageModel, batch: Batch, mesh: DeviceMesh | None, *, training: bool
    ) -> tuple[Tensor, int]:
        """The sum of -log p over every token but the first of a piece, and their number.

        Args:
            model: of these tokens.
            batch: the whole of it, the same in every process of the mesh.
            mesh: the processes that share its sequences: what is counted are the tokens of this process. None = one
                process has them all.
            training: makes no difference.
        """
        ids, real = batch["input_ids"], batch["real"]
        if mesh is None:
            follows = real[:, 1:]
            labels = ids[:, 1:][follows]
            return model(ids[:, :-1], real[:, :-1], at=follows, labels=labels), len(labels)
        missing = max(0, mesh.size() + 1 - ids.shape[1])  # every process holds a position, even if it is padding
        ids, real = pad(ids, (0, missing), value=self.vocabulary.pad), pad(real, (0, missing))
        layout = deal(masks.causal(), ids.shape[1] - 1, mesh)
        mine = [shard(x, layout, mesh) for x in (ids[:, :-1], real[:, :-1], ids[:, 1:], real[:, 1:])]
        read, real_S, tokens, follows = mine
        with context_parallel(mesh, layout):
            labels = tokens[follows]
            return model(read, real_S, at=follows, labels=labels), len(labels)

    def predict(self, model: CausalLanguageModel, texts: Sequence[str]) -> list[dict[str, Any]]:
        """How the model goes on with each text, of which it reads the last `block` tokens."""
        return [self.answer(model, self.read(text), place) for place, text in enumerate(texts)]

    @property
    def limit(self) -> str:
        """How much of a text `predict` reads, for the description of a column."""
        return limit(self.options.block, part="the beginning")

    def cut(self, texts: Sequence[str]) -> dict[int, str]:
        """As of `Task.cut`."""
        return cut((len(self.read(text).ids) - 1 for text in texts), self.options.block, part="the beginning")

    def read(self, text: str) -> Encoded:
        """[BOS], all tokens of a text, [EOS]."""
        return self.vocabulary.read(text)

    def answer(self, model: CausalLanguageModel, asked: Encoded, place: int = 0) -> dict[str, Any]:
        """What `predict` gives for a text at this place."""
        (found,) = written(self._writing(model, asked, place))
        return self._answer(asked, found)

    def _answer(self, asked: Encoded, written: Written) -> dict[str, Any]:
        return {"continuation": self._text(asked.ids, written.ids), "log_probability": written.log_probability}

    def running(self, model: CausalLanguageModel, most: int) -> RunningBatch[dict[str, Any]] | None:
        """As of `Task.running`."""
        if self.make_steps is not After:  # another runtime computes the model
            return None
        device = model.embedding.weight.device

        def begin() -> Writing:
            return Writing(Continuing(model), search_for(self.decoding, device))

        return RunningBatch(begin, self._asked, self._answer, most)

    def stream(self, model: CausalLanguageModel, asked: Encoded) -> Iterator[str]:
        """What `predict` gives for this text alone, piece by piece, as soon as each is chosen."""
        return pieces(followed(self._writing(model, asked, 0)), partial(self._text, asked.ids))

    @torch.no_grad()
    def _writing(self, model: CausalLanguageModel, asked: Encoded, place: int) -> Writing:
        """The beginning of a continuation, by the modules of the model or by another runtime."""
        device = model.embedding.weight.device
        run = Stepped(lambda sources: self.make_steps(model, sources[0]), self.decoding, device)
        writing = Writing(run, search_for(self.decoding, device))
        writing.join([self._asked(asked, place)])
        return writing

    def _asked(self, asked: Encoded, place: int = 0) -> Asked:
        """The draws, where there are some, are those of the text's place."""
        draws = None
        if self.decoding.sample:
            generator = torch.Generator().manual_seed(place)
            draws = torch.rand(1, self.options.write, generator=generator, dtype=torch.float64)[0]
        return Asked(self._begun(asked.ids), self.options.write, draws)

    def _begun(self, ids: Sequence[int]) -> Sequence[int]:
        """What the model reads of a text before it writes."""
        return ids[:-1][-self.options.block :]

    def look(self, model: CausalLanguageModel, asked: Encoded) -> Seen:
        """What the heads do with what `predict` reads: [BOS] and the text, its last `block` tokens."""
        whole = self.vocabulary.tokens(asked)
        tokens = whole.take(range(len(whole.ids) - 1)[-self.options.block :])
        return encoders.look(model, tokens)

    def graphs(self, model: CausalLanguageModel, examples: Sequence[list[int]]) -> tuple[Graph, ...]:
        rows = [row for row in examples[:TEXTS] if len(row) >= 4]  # two tokens, and two more
        real = [(padded(rows, self.vocabulary.pad)[:, : self.options.block],)] if rows else []
        return causal_language_model.graphs(model, real, longest=self.options.block)

    def run_on(self, model: CausalLanguageModel, sessions: Sessions) -> None:
        self.make_steps = causal_language_model.run_on(model, sessions)

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
