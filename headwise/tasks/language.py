"""`Language`: a language model trained on plain text, to predict masked tokens (`Masked`) or the next (`Causal`)."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from headwise import masks
from headwise.errors import ArgumentError, HeadwiseError, brief
from headwise.graphs import causal_language_model, text_encoders
from headwise.graphs.graph import Graph
from headwise.graphs.session import Sessions
from headwise.language import Sentence, join
from headwise.models import Bert, BertConfig
from headwise.models.bert_checkpoint import save_checkpoint
from headwise.models.checkpoint import resolve
from headwise.models.cross_entropy import summed_cross_entropy
from headwise.models.language_model import CausalConfig, CausalLanguageModel, MaskedLanguageModel
from headwise.nn import Cache
from headwise.parallel import context_parallel, deal, shard
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, take_text
from headwise.tasks.kinds import load
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.rows.corpus import read_corpus
from headwise.tasks.rows.tables import Data, check_filled, texts_in
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task
from headwise.tasks.text import encoders
from headwise.tasks.text.cuts import cut, limit
from headwise.tasks.text.padding import padded, padded_with_real
from headwise.tasks.text.pieces import pieces
from headwise.tasks.text.running.batch import RunningBatch
from headwise.tasks.text.running.passes import Continuing
from headwise.tasks.text.searches import Asked, search_for
from headwise.tasks.text.steps import Decoding, Steps, Written
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.text.vocabulary import Vocabulary
from headwise.tasks.text.wordpieces import INSIDE, MASK
from headwise.tasks.text.writing import Stepped, Writing, followed, written
from headwise.tasks.training.run import CONFIG
from headwise.tasks.training.sharding import sequence_mesh
from headwise.text import Tokens
from headwise.text.tokenizer import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self

MASKED, RANDOM = 0.8, 0.1  # shares of the tokens to predict that become [MASK], or a random token; others stay
SHOWN = 3

FILE = "tokenizer.json"
TEXTS = 4  # largest number of real texts on which an export is compared


class Language(Task[LanguageOptions]):
    """A BERT that predicts masked tokens, or a decoder that continues a text.

    Documents are cut into pieces of `block` tokens; no piece spans two documents. `fit` returns a subclass, by the
    option `objective`: `Masked` or `Causal`.

    >>> task = Language.fit("corpus.txt", out="run")
    >>> task.predict(["a [MASK] of statements"])[0]["filled"]
    'a sequence of statements'
    >>> Classify.fit("reviews.csv", model="run")     # fine-tunes the trained model

    Raises:
        ArgumentError: the objective does not support these options.
    """

    name = "language"
    options_type = LanguageOptions
    reads_documents = True
    compared_by = (("perplexity", "min"),)

    # Attributes that each objective (Masked, Causal) defines.
    reads: ClassVar[str]  #: the meaning of the text in a request
    writes: ClassVar[str]  #: the text column of `predict`
    outputs: ClassVar[tuple[Column, ...]]
    example: ClassVar[str]
    unread: ClassVar[str] = "the rest"  #: the part of a long text that `predict` does not read
    unread_signs: ClassVar[int] = 0  #: special tokens at the end of a text that `predict` never reads
    streams: ClassVar[bool] = False

    model: Any  # MaskedLanguageModel or CausalLanguageModel
    block: int  #: the largest number of tokens of a text that are read

    @classmethod
    def read(cls, source: Any, options: LanguageOptions, *, targets: bool = True) -> Data:
        return read_corpus(source, options.text)

    @classmethod
    def learn(cls, data: Data, options: LanguageOptions) -> Self:
        return _OBJECTIVES[options.objective].learn(data, options)  # type: ignore[return-value]

    @classmethod
    def restore(cls, options: LanguageOptions, state: dict[str, Any], folder: Path) -> Self:
        return _OBJECTIVES[options.objective].restore(options, state, folder)  # type: ignore[return-value]

    # Defined by each objective.

    @abstractmethod
    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Cut documents into pieces of at most `block` tokens, and return the token ids of each piece."""

    @abstractmethod
    def tokenize(self, text: str) -> Encoded:
        """Return all tokens of a text, with special tokens such as [CLS] around them."""

    @abstractmethod
    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits [N, V] at the tokens to predict outside of training, and the ids of these N tokens.

        For equal batches these are the same tokens each time.
        """

    @abstractmethod
    def answer(self, asked: Encoded, place: int = 0) -> dict[str, Any]:
        """Return the prediction for one text; `place` is the index of the text among the inputs."""

    @abstractmethod
    def tokens(self, asked: Encoded) -> Tokens:
        """Return the tokens of a text that `predict` reads."""

    # The same for both objectives.

    def encode(self, data: Data, *, targets: bool = True) -> list[list[int]]:
        return self.pieces(data.columns["text"])

    def length(self, example: list[int]) -> int:
        return len(example)

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Fill the masks of each text, or continue each text.

        Args:
            inputs: a text, several texts, or another input of `read`. A masked model fills every [MASK].

        Returns:
            For each text a dict. Masked: "filled" (the text), its "probability", and in "or" other candidates. Causal:
            "continuation" and its "log_probability".
        """
        self.eval()
        return [self.answer(self.tokenize(text), place) for place, text in enumerate(self._texts(inputs))]

    def cut(self, inputs: Any) -> dict[int, str]:
        sizes = (len(self.tokenize(text).ids) - self.unread_signs for text in self._texts(inputs))
        return cut(sizes, self.block, part=self.unread)

    def remarks(self, data: Data) -> tuple[str, ...]:
        """Return no remarks: every piece of each document is learned and scored."""
        return ()

    def stream(self, text: str) -> Iterator[str]:
        """Yield the continuation that `predict` returns for one text, in parts as they become final.

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
            inputs=(Column("text", "BYTES", says=join((self.reads, limit(self.block, part=self.unread)), "")),),
            outputs=self.outputs,
            streams=self.streams,
            example={"text": self.example},
        )

    def read_row(self, row: Row) -> Encoded:
        return self.tokenize(take_text(row, "text"))

    def count_tokens(self, asked: Encoded) -> int:
        return len(asked.ids)

    def answer_rows(self, asked: Sequence[Encoded]) -> list[Row | HeadwiseError]:
        """Answer one text at a time, so that each is sampled with the same random numbers as a single text."""
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
        """Return perplexity, exp(mean of -log p), and accuracy: how often the most probable token is right.

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
            raise ArgumentError(Sentence("{name}: it has no token to predict").format(name=data.name))
        share = counts[counts > 0] / counts.sum()
        values = {"perplexity": _exp(total / float(counts.sum())), "accuracy": right / float(counts.sum())}
        unigram = {"perplexity": _exp(float(-(share * share.log()).sum())), "accuracy": float(share.max())}
        name = "how often each token is there, without context"
        return Scores(values, len(data), {name: unigram}, left_out=data.left_out)

    def examples(self, rows: Any) -> list[list[int]]:
        """Return the first pieces of the texts in `rows`, on which an export is compared; none if `rows` is None."""
        return self.pieces([] if rows is None else self._texts(rows))[: self.options.batch_size]

    def _texts(self, inputs: Any) -> list[str]:
        """Return the inputs as a list of texts: the texts themselves, or the texts in a file or table, one per row."""
        if (texts := texts_in(inputs)) is not None:
            check_filled(texts)
            return texts
        return list(self.read(inputs, self.options, targets=False).columns["text"])


def _exp(mean: float) -> float:
    return float(torch.tensor(mean, dtype=torch.float64).exp())


class Masked(Language):
    """A BERT that predicts hidden tokens from the tokens on both sides. Devlin et al. 2018, section 3.1."""

    reads = f"a text with {MASK} where tokens are missing"
    writes = "filled"
    outputs = (
        Column("filled", "BYTES", says=f"the text with each {MASK} replaced by the most probable token"),
        Column("probability", "FP32", says="product of the probabilities of these tokens"),
        Column("or", "BYTES", says=f"other candidates, one list per {MASK}"),
    )
    example = f"a {MASK} film"

    model: MaskedLanguageModel

    def __init__(self, options: LanguageOptions, model: MaskedLanguageModel, subwords: Subwords) -> None:
        super().__init__(options, model)
        if subwords.mask == subwords.unknown:
            raise ArgumentError(f"model: expected a tokenizer with {MASK}, this checkpoint's has none")
        self.subwords = subwords
        self.block = min(options.block, model.bert.config.max_positions)
        self._signs = {subwords.pad, subwords.unknown, subwords.cls, subwords.sep, subwords.mask}
        self._words = torch.tensor([number for number in range(len(subwords)) if number not in self._signs])

    @classmethod
    def learn(cls, data: Data, options: LanguageOptions) -> Self:
        """Make the task, with a new vocabulary and a new model, or with both from a checkpoint."""
        if options.model is None:
            subwords = Subwords.train(data.columns["text"], options.vocab_size, lowercase=options.lowercase)
            shape = {"dim": options.dim, "layers": options.layers, "heads": options.heads}
            bert = encoders.new_bert(subwords, **shape, max_length=options.block, dropout=options.dropout)
            return cls(options, MaskedLanguageModel(bert), subwords)
        folder = resolve(options.model)
        if (folder / CONFIG).is_file():
            trained = load(folder).model
            model = MaskedLanguageModel(encoders.take_bert(trained, folder, options.dropout))
            if isinstance(trained, MaskedLanguageModel):
                model.load_state_dict(trained.state_dict())
        else:
            model = MaskedLanguageModel.from_pretrained(folder, dropout=options.dropout)
        return cls(options, model.train(), Subwords.from_pretrained(folder))

    @classmethod
    def restore(cls, options: LanguageOptions, state: dict[str, Any], folder: Path) -> Self:
        return cls(options, MaskedLanguageModel(Bert(BertConfig(**state))), Subwords.from_pretrained(folder))

    def state(self) -> dict[str, Any]:
        return asdict(self.model.bert.config)

    def save_files(self, folder: Path) -> None:
        self.subwords.save(folder)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a checkpoint that transformers can load (BertForMaskedLM). OSError passes through."""
        folder, named = Path(folder).expanduser(), dict(self.model.named_parameters())
        head = {theirs: named[ours] for ours, theirs in self.model.head_names().items()}
        save_checkpoint(self.model.bert, folder, head=head, pad=self.subwords.pad)
        self.subwords.save(folder)

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Cut documents into pieces "[CLS] … [SEP]" of at most `block` tokens; no piece spans two documents."""
        room = self.block - 2
        return [
            self.subwords.pair(pieces.ids[start : start + room])[0]
            for pieces in self.subwords.pieces(texts)
            for start in range(0, len(pieces.ids), room)
        ]

    def collate(self, examples: Sequence[list[int]]) -> Batch:
        ids, real = padded_with_real(examples, self.subwords.pad)
        fixed = torch.zeros(ids.shape, dtype=torch.bool)
        for row, example in enumerate(examples):
            fixed[row, self._fixed(example)] = True
        return {"input_ids": ids, "real": real, "fixed": fixed}

    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits [N, V] at the hidden positions, and the N token ids that are hidden there.

        For equal examples the positions are the same each time; the model reads [MASK] at each of them.
        """
        ids, hidden = batch["input_ids"], batch["fixed"]
        return self.model(ids.masked_fill(hidden, self.subwords.mask), batch["real"], at=hidden), ids[hidden]

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (the sum of -log p over the hidden tokens, the number of these tokens).

        In training the hidden positions are drawn anew in every step (Liu et al. 2019, section 4.1); else they are the
        fixed positions of `predictions`.
        """
        if not self.training:
            logits_NV, tokens_N = self.predictions(batch)
        else:
            ids, real = batch["input_ids"], batch["real"]
            hidden, seen = self._drawn(ids, real)
            logits_NV, tokens_N = self.model(seen, real, at=hidden), ids[hidden]
        return summed_cross_entropy(logits_NV, tokens_N), torch.tensor(len(tokens_N), device=tokens_N.device)

    def tokenize(self, text: str) -> Encoded:
        """Return [CLS], all tokens of a text, [SEP]. The string "[MASK]" in the text becomes one token."""
        return self.subwords.tokenizer.read(text)

    def answer(self, asked: Encoded, place: int = 0) -> dict[str, Any]:
        """Return the text with every [MASK] filled, the probability of these tokens, and other candidates."""
        text, ids, _ = asked
        kept = ids if len(ids) <= self.block else [*ids[: self.block - 1], ids[-1]]
        ids_1S = torch.tensor([kept], device=self.model.bias.device)
        at = ids_1S == self.subwords.mask
        wanted = text.count(MASK)
        if not wanted or int(at.sum()) < wanted:
            told = Sentence("Received: {text}").format(text=brief(text))
            if wanted:
                beyond = Sentence("The {mask} at the end of this text is beyond the {block} tokens that are read")
                told = beyond.format(mask=MASK, block=self.block)
            raise ArgumentError(
                Sentence("expected a text with {mask} where a token is to be found. {told}").format(
                    mask=MASK, told=told
                )
            )
        with torch.no_grad():
            shares = self.model(ids_1S, at=at).float().softmax(-1)[:, self._words.to(ids_1S.device)]
        best = shares.topk(SHOWN)
        names = [[self.subwords.name(number) for number in self._words[row].tolist()] for row in best.indices.cpu()]
        return {
            "filled": _filled(text, [row[0] for row in names]),
            "probability": float(best.values[:, 0].prod()),
            "or": " | ".join(", ".join(row[1:]) for row in names),
        }

    def tokens(self, asked: Encoded) -> Tokens:
        return self.subwords.tokenizer.tokens(asked, self.block)

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graph "model": see `text_encoders` in `headwise.graphs`."""
        examples = self.examples(rows)
        batch = self.collate(examples) if examples else {}
        return text_encoders.graphs(self.model, [(batch["input_ids"], batch["real"])] if batch else [])

    def run_on(self, sessions: Sessions) -> None:
        text_encoders.run_on(self.model, sessions)

    def _drawn(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the tokens to predict, by torch's generator. Returns (True for each of them, ids with replacements)."""
        device = ids.device
        words = real & torch.isin(ids, self._words.to(device))
        hidden = words & (torch.rand(ids.shape, device=device) < self.options.mask_share)
        kind = torch.rand(ids.shape, device=device)
        others = self._words.to(device)[torch.randint(len(self._words), ids.shape, device=device)]
        seen = torch.where(kind < MASKED, self.subwords.mask, torch.where(kind < MASKED + RANDOM, others, ids))
        return hidden, torch.where(hidden, seen, ids)

    def _fixed(self, ids: Sequence[int]) -> list[int]:
        """Choose the positions hidden outside of training, by the tokens alone; at least one if there is a word."""
        words = [place for place, number in enumerate(ids) if number not in self._signs]
        if not words:
            return []
        random = np.random.default_rng(zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes()))
        count = max(1, round(self.options.mask_share * len(words)))
        return sorted(random.choice(words, count, replace=False).tolist())


def _filled(text: str, names: Sequence[str]) -> str:
    """Replace each [MASK] in the text by a token; one that continues a word (##ing) is joined to the word before."""
    before, *rest = text.split(MASK)
    for name, after in zip(names, rest, strict=True):
        joined = name.startswith(INSIDE)
        before = (before.rstrip() + name.removeprefix(INSIDE) if joined else before + name) + after
    return before


class Causal(Language):
    """A decoder that predicts each token from the tokens before it, and so continues a text. Radford et al. 2018."""

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
        """Make the task, with a vocabulary learned from the texts and a new model."""
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
        """Cut "[BOS] document [EOS]" into pieces of `block` + 1 tokens: the last token of a piece begins the next.

        So each token except [BOS] is predicted exactly once. No piece spans two documents.
        """
        return [
            ids[start : start + self.block + 1]
            for ids in self.vocabulary.encode(texts)
            for start in range(0, len(ids) - 1, self.block)
        ]

    def collate(self, examples: Sequence[list[int]]) -> Batch:
        ids, real = padded_with_real(examples, self.vocabulary.pad)
        return {"input_ids": ids, "real": real}

    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits [N, V] for every token except the first of each piece, and the ids of these N tokens."""
        ids, follows = batch["input_ids"], batch["real"][:, 1:]
        return self.model(ids[:, :-1], batch["real"][:, :-1], at=follows), ids[:, 1:][follows]

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (the sum of -log p over every token except the first of each piece, the number of these tokens).

        Processes that share sequences get the same batch; each counts only the tokens of its own part of the sequences.
        """
        ids, real, mesh = batch["input_ids"], batch["real"], sequence_mesh(self)
        if mesh is None:
            follows = real[:, 1:]
            labels = ids[:, 1:][follows]
            total = self.model(ids[:, :-1], real[:, :-1], at=follows, labels=labels)
            return total, torch.tensor(len(labels), device=total.device)
        missing = max(0, mesh.size() + 1 - ids.shape[1])  # every process needs a position, even if it is padding
        ids, real = pad(ids, (0, missing), value=self.vocabulary.pad), pad(real, (0, missing))
        layout = deal(masks.causal(), ids.shape[1] - 1, mesh)
        mine = [shard(x, layout, mesh) for x in (ids[:, :-1], real[:, :-1], ids[:, 1:], real[:, 1:])]
        read, real_S, tokens, follows = mine
        with context_parallel(mesh, layout):
            labels = tokens[follows]
            total = self.model(read, real_S, at=follows, labels=labels)
        return total, torch.tensor(len(labels), device=total.device)

    def tokenize(self, text: str) -> Encoded:
        """Return [BOS], all tokens of a text, [EOS]."""
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
        """Yield the continuation of this text in pieces, each as soon as its tokens are chosen."""
        self.eval()
        return pieces(followed(self._writing(asked, 0)), partial(self._text, asked.ids))

    @torch.no_grad()
    def _writing(self, asked: Encoded, place: int) -> Writing:
        """Make a `Writing` (texts that are being written) for one continuation, by the model or another runtime."""
        device = self.model.embedding.weight.device
        run = Stepped(lambda sources: self.make_steps(self.model, sources[0]), self.decoding, device)
        writing = Writing(run, search_for(self.decoding, device))
        writing.join([self._asked(asked, place)])
        return writing

    def _asked(self, asked: Encoded, place: int = 0) -> Asked:
        """Make the request to continue the last `block` tokens of a text, without its [EOS].

        If the task samples, the request has random numbers, which depend only on `place`, the text's index.
        """
        draws = None
        if self.decoding.sample:
            generator = torch.Generator().manual_seed(place)
            draws = torch.rand(1, self.options.write, generator=generator, dtype=torch.float64)[0]
        return Asked(asked.ids[:-1][-self.block :], self.options.write, draws)

    def tokens(self, asked: Encoded) -> Tokens:
        """Return the last `block` tokens of "[BOS] text"."""
        whole = self.vocabulary.tokens(asked)
        return whole.take(range(len(whole.ids) - 1)[-self.block :])

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graph "decoder": see `causal_language_model` in `headwise.graphs`."""
        examples = [row for row in self.examples(rows)[:TEXTS] if len(row) >= 4]  # two tokens, and two more
        real = [(padded(examples, self.vocabulary.pad)[:, : self.block],)] if examples else []
        return causal_language_model.graphs(self.model, real, longest=self.block)

    def run_on(self, sessions: Sessions) -> None:
        self.make_steps = causal_language_model.run_on(self.model, sessions)

    def _text(self, text: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of the written `ids`, decoded with the prompt `text`, as they may end a word of it."""
        begun = text[:-1]
        whole, before = self.vocabulary.decode([*begun, *ids]), self.vocabulary.decode(begun)
        return whole[len(before) :]


class After:
    """The `Steps` (next step of a model) of a decoder that continues a text: the first step reads the beginning."""

    def __init__(self, model: CausalLanguageModel, begun: Sequence[int]) -> None:
        self._model, self._begun = model, begun
        self._cache = Cache()

    def __call__(self, ids: Tensor) -> Tensor:
        read = ids[:, None] if self._cache.length else torch.tensor([self._begun], device=ids.device)
        logits: Tensor = self._model(read, cache=self._cache)
        return logits[:, -1]

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self._cache.reorder(order)


_OBJECTIVES: dict[str, type[Language]] = {"masked": Masked, "causal": Causal}
