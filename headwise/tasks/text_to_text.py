"""`TextToText`: the base class of the tasks translate, summarize and reply.

An encoder-decoder reads a text and generates another one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from headwise.capture import watch
from headwise.errors import ArgumentError
from headwise.graphs import encoder_decoder
from headwise.graphs.graph import Graph
from headwise.graphs.session import Sessions
from headwise.language import join
from headwise.models.bert import Bert, BertConfig
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, take_text
from headwise.tasks.options.text_to_text import TextToTextOptions
from headwise.tasks.rows.tables import Data, check_filled, cut_notes, texts_in
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task
from headwise.tasks.text import encoders
from headwise.tasks.text.cuts import cut, limit
from headwise.tasks.text.decoding import CachedSteps, MakeSteps, draw_numbers, follow, write
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.pieces import pieces
from headwise.tasks.text.running.batch import RunningBatch
from headwise.tasks.text.running.passes import Translating
from headwise.tasks.text.searches import Asked, search_for
from headwise.tasks.text.steps import Decoding, Written
from headwise.tasks.text.vocabulary import Vocabulary
from headwise.tasks.text.writing import Writing
from headwise.text.tokenizer import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self

SOURCE_FILE, TARGET_FILE = "tokenizer.json", "target_tokenizer.json"  # the second file if vocabularies are not shared

Values = dict[str, float]
SOURCES = 4  # largest number of real sources on which an export is compared

TextOptions = TypeVar("TextOptions", bound=TextToTextOptions)


class Example(NamedTuple):
    source: list[int]  # [BOS] … [EOS]
    target: list[int]  # the same, without [EOS] if it was cut; [] without targets


class Pairs(NamedTuple):
    """Sources and their references (true targets). A row of the data is one pair or, in some tasks, several pairs."""

    sources: list[str]
    references: list[list[str]]  # one or more per source; the first is used for training. [] without targets


class TextToText(Task[TextOptions]):
    """The base class of text-to-text tasks. A subclass defines how pairs are read and how generated texts are scored.

    The source is read as [BOS] … [EOS]. Training is teacher-forced, with label smoothing (Szegedy et al. 2016, section
    7); validation losses and perplexities are without smoothing. Decoding: `headwise.tasks.text.decoding`.
    """

    reads: ClassVar[str]  #: the meaning of the text in a request
    writes: ClassVar[str]  #: the column of `predict`
    keep: ClassVar[Literal["beginning", "end"]] = "beginning"  #: the part of a long source that is read
    learned: ClassVar[tuple[str, ...]] = ()  #: the attributes that `look_over` computes

    model: EncoderDecoder
    make_steps: MakeSteps = CachedSteps  #: makes the steps of the model for decoding

    def __init__(
        self, options: TextOptions, model: EncoderDecoder, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary
    ) -> None:
        super().__init__(options, model)
        self.source_vocabulary = source_vocabulary
        self.target_vocabulary = target_vocabulary

    # Defined by subclasses.

    @classmethod
    @abstractmethod
    def pairs(cls, data: Data, options: TextOptions, *, targets: bool = True) -> Pairs:
        """Return the pairs of texts in the rows from `read`."""

    @classmethod
    def list_rows(cls, data: Data, options: TextOptions) -> Sequence[int]:
        """Return for each pair the index of its row. By default each row is one pair."""
        return range(len(data))

    @abstractmethod
    def score(self, pairs: Pairs, written: list[str], examples: list[Example]) -> tuple[Values, dict[str, Values]]:
        """Return (scores of the generated texts, name of each baseline -> the same scores)."""

    # Training.

    @classmethod
    def learn(cls, data: Data, options: TextOptions) -> Self:
        pairs = cls.pairs(data, options)
        targets = [each[0] for each in pairs.references]
        shared, bert = options.shared_vocabulary, None
        if options.model is not None:
            bert, subwords = encoders.pretrained(
                options.model,
                [*pairs.sources, *targets] if shared else pairs.sources,
                dropout=min(options.dropout, 0.1),
                max_length=options.max_source_length,
                asked_as="max_source_length",
            )
            source = Vocabulary(subwords.backend())
        else:
            source = Vocabulary.train([*pairs.sources, *targets] if shared else pairs.sources, options.vocab_size)
        target = source if shared else Vocabulary.train(targets, options.vocab_size)
        task = cls._made(options, source, target, bert)
        task.look_over(pairs)
        return task

    def look_over(self, pairs: Pairs) -> None:
        """Compute from the training data the attributes whose names are in `learned`. By default there are none."""

    @classmethod
    def _made(cls, options: TextOptions, source: Vocabulary, target: Vocabulary, bert: Bert | None) -> Self:
        _decoding(options, target)  # reports invalid options before the training
        reader = None if bert is None else bert.config
        writer = reader if options.shared_vocabulary else None  # its embeddings are used on both sides
        config = EncoderDecoderConfig(
            vocab_size=len(target) if writer is None else None,
            source_vocab_size=None if options.shared_vocabulary or reader is not None else len(source),
            dim=options.dim if writer is None else writer.embedding_width,
            num_heads=options.heads,
            encoder_layers=options.layers,
            decoder_layers=options.layers,
            ffn_dim=options.ffn_dim,
            dropout=options.dropout,
            positions=options.positions,
            max_positions=max(options.max_source_length, options.max_target_length),
            copies=options.copies,
            bert=reader,
        )
        return cls(options, EncoderDecoder(config, bert), source, target)

    def encode(self, data: Data, *, targets: bool = True) -> list[Example]:
        return self._encoded(self.pairs(data, self.options, targets=targets))

    def _encoded(self, pairs: Pairs) -> list[Example]:
        sources = self.source_vocabulary.encode(pairs.sources, self.options.max_source_length, keep=self.keep)
        if not pairs.references:
            return [Example(source, []) for source in sources]
        # A cut text has no [EOS], so its end is not learned.
        targets = self.target_vocabulary.encode([each[0] for each in pairs.references])
        most = self.options.max_target_length + 1
        return [Example(source, target[:most]) for source, target in zip(sources, targets, strict=True)]

    def length(self, example: Example) -> int:
        return len(example.source) + len(example.target)

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Make a batch: source_ids, source_real [B, K]; target_ids [B, Q], each target without its last token.

        It also has labels [N], the N target tokens to learn, and places [N], their indices in the flattened [B · Q].
        """
        source_ids, source_real = padded_with_real([each.source for each in examples], self.source_vocabulary.pad)
        target_ids, is_target = padded_with_real([each.target[:-1] for each in examples], self.target_vocabulary.pad)
        return {
            "source_ids": source_ids,
            "source_real": source_real,
            "target_ids": target_ids,
            "places": is_target.flatten().nonzero()[:, 0],
            "labels": torch.tensor([token for each in examples for token in each.target[1:]]),
        }

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        total = self.model(
            *(batch["source_ids"], batch["target_ids"], batch["source_real"]),
            at=batch["places"],
            labels=batch["labels"],
            label_smoothing=self.options.label_smoothing if self.training else 0.0,
        )
        return total, torch.tensor(len(batch["labels"]), device=total.device)

    # Decoding.

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the generated text for each input.

        Args:
            inputs: a text, several texts, or a table with the column of sources.

        Returns:
            For each input the text and its score: the score of beam search, with the `length_penalty` of the
            options; for greedy and sampled texts the log-probability.
        """
        return self._answers(self._encoded(self._inputs(inputs)))

    def _answers(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return [self._answer(each) for each in self.write(examples)]

    def _answer(self, written: Written) -> dict[str, Any]:
        return {self.writes: self.target_vocabulary.decode(written.ids), "score": written.score}

    def stream(self, text: Any) -> Iterator[str]:
        """Yield the text that `predict` returns for one input, in pieces, each as soon as it is final.

        The pieces form the text of `predict`. With greedy decoding or sampling, every token is final at once; with beam
        search, the common prefix of all hypotheses that can still win is final, so pieces are longer and later.

        Raises:
            ArgumentError: several inputs, or an invalid one.
        """
        sources = self._inputs(text).sources
        if len(sources) != 1:
            raise ArgumentError(f"stream: expected one input. Received: {len(sources)} inputs. Stream each separately")
        return self.stream_row(self.source_vocabulary.read(sources[0]))

    def stream_row(self, asked: Encoded) -> Iterator[str]:
        self.eval()
        source = self._example(asked).source
        decoding = _decoding(self.options, self.target_vocabulary)
        certain = follow(self.model, source, self._limit(source), decoding, steps=self.make_steps)
        return pieces(certain, self.target_vocabulary.decode)

    def write(self, examples: Sequence[Example], *, steps: MakeSteps | None = None) -> list[Written]:
        """Generate the text for each example: at most `max_target_length` tokens, and at most 2 · source tokens + 10.

        `steps` makes the `Steps` (next step) of the model; None = the attribute `make_steps`.
        """
        self.eval()
        sources = [each.source for each in examples]
        limits = [self._limit(source) for source in sources]
        decoding = _decoding(self.options, self.target_vocabulary)
        return write(self.model, sources, limits, decoding, steps=steps or self.make_steps)

    def _limit(self, source: Sequence[int]) -> int:
        return min(self.options.max_target_length, 2 * len(source) + 10)

    def evaluate(self, source: Any) -> Scores:
        """Return the scores of the generated texts, beside the scores of baselines."""
        data = self.read(source, self.options)
        pairs = self.pairs(data, self.options)
        examples = self._encoded(pairs)
        written = [self.target_vocabulary.decode(each.ids) for each in self.write(examples)]
        values, baselines = self.score(pairs, written, examples)
        in_part = cut_notes(self.cut(data), data.numbers, data.unit)  # references are read whole
        return Scores(values, len(written), baselines, left_out=(*data.left_out, *in_part))

    def cut(self, inputs: Any) -> dict[int, str]:
        sources = self.source_vocabulary.encode(self._inputs(inputs).sources)
        return cut(map(len, sources), self.options.max_source_length, part=self._unread)

    def remarks(self, data: Data) -> tuple[str, ...]:
        """Return notes on sources that are cut, and on targets learned only up to `max_target_length` tokens."""
        targets = self.target_vocabulary.encode([each[0] for each in self.pairs(data, self.options).references])
        long = cut((len(ids) - 1 for ids in targets), self.options.max_target_length, what="a target of ")  # no [BOS]
        rows = self.list_rows(data, self.options)
        found = {rows[pair]: said for pair, said in long.items()}
        return (*super().remarks(data), *cut_notes(found, data.numbers, data.unit))

    @property
    def _unread(self) -> str:
        """The words in a message for the part of a long source that is not read."""
        return "the rest" if self.keep == "beginning" else "the beginning"

    def look(self, inputs: Any) -> list[Seen]:
        """Return the attention while each source and its generated text are read.

        The rows (queries) of a decoder are the tokens that it has read, beginning with [BOS]. With the attention in a
        row it predicts the next token.
        """
        return [self.look_at(self.source_vocabulary.read(text))[0] for text in self._inputs(inputs).sources]

    def columns(self) -> Columns:
        ranked = ", by which beam search ranks texts" if not self.options.sample and self.options.beams > 1 else ""
        unread = limit(self.options.max_source_length, part=self._unread)
        return Columns(
            inputs=(Column("text", "BYTES", says=join((self.reads, unread), "")),),
            outputs=(
                Column(self.writes, "BYTES", says=f"the {self.writes}"),
                Column("score", "FP32", says=join(("its log-probability", ranked), "")),
            ),
            streams=True,
            example={"text": "Two dogs play in the snow."},
        )

    def read_row(self, row: Row) -> Encoded:
        return self.source_vocabulary.read(take_text(row, "text"))

    def count_tokens(self, asked: Encoded) -> int:
        return len(asked.ids)

    def answer_rows(self, asked: Sequence[Encoded]) -> list[Row]:
        examples = [self._example(each) for each in asked]
        if self.options.sample:  # one row at a time: a sample depends on the row's index in its batch
            return [row for example in examples for row in self._answers([example])]
        return self._answers(examples)

    def running(self, most: int) -> RunningBatch[Row] | None:
        if self.make_steps is not CachedSteps:  # another runtime computes the model
            return None
        self.eval()
        decoding = _decoding(self.options, self.target_vocabulary)

        def read(asked: Encoded) -> Asked:
            source = self._example(asked).source
            limit = self._limit(source)
            draws = draw_numbers(decoding, [limit])
            return Asked(source, limit, None if draws is None else draws[0])

        return RunningBatch(
            lambda: Writing(Translating(self.model, decoding.beams, decoding.begin), search_for(decoding, self.device)),
            read,
            lambda _, written: self._answer(written),
            most,
        )

    def look_at(self, asked: Encoded) -> tuple[Seen, None]:
        (written,) = self.write([self._example(asked)])
        source = self.source_vocabulary.tokens(asked, self.options.max_source_length, keep=self.keep)
        target = self.target_vocabulary.named([self.target_vocabulary.begin, *written.ids])
        ids = [torch.tensor([each.ids], device=self.device) for each in (source, target)]
        with torch.no_grad(), watch(self.model) as seen:
            self.model(*ids)
        seen.tokens = {"source": [source], "target": [target]}
        return seen, None

    def _example(self, asked: Encoded) -> Example:
        return Example(self.source_vocabulary.cut(asked.ids, self.options.max_source_length, keep=self.keep), [])

    # Export.

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graphs "encoder" and "decoder", see `headwise.graphs.encoder_decoder`."""
        sources = [] if rows is None else self._encoded(self._inputs(rows))[:SOURCES]
        batch = self.collate(sources) if sources else {}
        return encoder_decoder.graphs(
            self.model,
            [(batch["source_ids"], batch["source_real"])] if batch else [],
            longest=self.options.max_source_length,
            begin=self.target_vocabulary.begin,
        )

    def run_on(self, sessions: Sessions) -> None:
        self.make_steps = encoder_decoder.run_on(self.model, sessions)

    # The run folder.

    def state(self) -> dict[str, Any]:
        bert = self.model.config.bert
        learned = {name: getattr(self, name) for name in self.learned}
        return learned if bert is None else {"bert": asdict(bert), **learned}

    @classmethod
    def restore(cls, options: TextOptions, state: dict[str, Any], folder: Path) -> Self:
        source = Vocabulary.load(folder / SOURCE_FILE)
        target = source if options.shared_vocabulary else Vocabulary.load(folder / TARGET_FILE)
        task = cls._made(options, source, target, Bert(BertConfig(**state["bert"])) if "bert" in state else None)
        vars(task).update({name: state[name] for name in cls.learned})
        return task

    def rates(self) -> dict[str, float]:
        return {} if self.model.config.bert is None else {"model.encoder.": self.options.encoder_lr}

    def save_files(self, folder: Path) -> None:
        self.source_vocabulary.save(folder / SOURCE_FILE)
        if not self.options.shared_vocabulary:
            self.target_vocabulary.save(folder / TARGET_FILE)

    def _inputs(self, inputs: Any) -> Pairs:
        """Return the inputs of `predict` as pairs that have no targets."""
        if (texts := texts_in(inputs)) is not None:
            check_filled(texts)
            return Pairs(texts, [])
        return self.pairs(self.read(inputs, self.options, targets=False), self.options, targets=False)


def _decoding(options: TextToTextOptions, vocabulary: Vocabulary) -> Decoding:
    """Return the `Decoding` of the options. Sampling follows one hypothesis, so the default of `beams` is ignored."""
    names = ("length_penalty", "no_repeat", "sample", "temperature", "top_k", "top_p", "seed")
    return Decoding(
        *(vocabulary.begin, vocabulary.end, (vocabulary.pad, vocabulary.begin)),
        beams=1 if options.sample else options.beams,
        **{name: getattr(options, name) for name in names},
    )
