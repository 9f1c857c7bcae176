"""`Answer`: takes a question and a context, and finds the words of the context that answer the question."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headwise.errors import ArgumentError, brief
from headwise.graphs import text_encoders
from headwise.graphs.graph import Graph
from headwise.graphs.rows import collect_inputs
from headwise.language import Sentence, join
from headwise.models.span_reader import SpanReader
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, take_text
from headwise.tasks.options.answer import AnswerOptions
from headwise.tasks.rows.squad import Span, read_questions
from headwise.tasks.rows.tables import Data
from headwise.tasks.scores import Scores
from headwise.tasks.scoring import span_scores
from headwise.tasks.task import SEPARATOR, Batch, Task
from headwise.tasks.text import encoders
from headwise.tasks.text.best_spans import BestSpans
from headwise.tasks.text.cuts import cut, limit
from headwise.tasks.text.padding import padded
from headwise.tasks.text.subwords import Pieces, Read, Subwords
from headwise.tasks.text.windows import windows

NO_ANSWER = -1  # the start in an answer of the server, if there is no answer
_LONGEST = 384  # default tokens per window, if the model can read more
_SENTENCE = re.compile(r".*?[.!?。！？](?=\s|$|[^\x00-\x7f])|.+", re.DOTALL)


class Window(NamedTuple):
    """A question and the part of its context that fits into one input of the model."""

    row: int  # index of the row in the data
    ids: list[int]
    types: list[int]
    context: int  # index of the context's first token in the ids
    low: int  # index of that token in the context
    offsets: list[tuple[int, int]]  # the offsets of the context's tokens in this window: context[start:end]
    start: int  # first and last token of the answer in the ids; both 0, [CLS], if the answer is not in this window
    end: int


class Answer(Task[AnswerOptions]):
    """A BERT that scores each token as the first and as the last of the answer. Long contexts are read in windows.

    If the training data have questions without an answer, the model may also predict that there is no answer.

    >>> task = Answer.fit("squad.json")
    >>> task.predict([("Who wrote it?", "The book was written by Mary Shelley in 1818.")])
    [{'answer': 'Mary Shelley', 'start': 24, 'probability': 0.93}]
    """

    name = "answer"
    options_type = AnswerOptions
    compared_by = (("exact_match", "max"), ("f1", "max"))

    model: SpanReader

    def __init__(self, options: AnswerOptions, model: SpanReader, subwords: Subwords, facts: Mapping[str, Any]) -> None:
        """`facts`: largest and mean number of tokens of a training answer, and whether some questions have none."""
        super().__init__(options, model)
        self.subwords = subwords
        self.longest = int(facts["longest"])
        self.mean = float(facts["mean"])
        self.may_be_none = bool(facts["may_be_none"])

    @classmethod
    def read(cls, source: Any, options: AnswerOptions, *, targets: bool = True) -> Data:
        return source if isinstance(source, Data) else read_questions(source, options, targets=targets)

    @classmethod
    def split(cls, data: Data, options: AnswerOptions) -> tuple[Data, Data]:
        """Split the data by contexts: questions about the same text are related, and stay in one part."""
        return data.split_groups("context", options.validation_share, options.seed)

    @classmethod
    def learn(cls, data: Data, options: AnswerOptions) -> Answer:
        if not any(data.columns["answers"]):
            raise ArgumentError(
                Sentence("{name}: expected questions with answers. Received: no answers in {count} rows").format(
                    name=data.name, count=len(data)
                )
            )
        contexts = list(dict.fromkeys(data.columns["context"]))
        encoder, subwords = encoders.make([*data.columns["question"], *contexts], options)
        lengths = [len(span) for span in _token_spans(data, subwords) if span is not None]
        none = not all(data.columns["answers"])
        facts = {"longest": max(lengths), "mean": fmean(lengths), "may_be_none": none}
        return cls(options, SpanReader(encoder), subwords, facts)

    def encode(self, data: Data, *, targets: bool = True) -> list[Window]:
        questions = self.subwords.pieces(data.columns["question"])
        contexts = _pieces(data.columns["context"], self.subwords)
        spans = _token_spans(data, self.subwords) if targets else [None] * len(data)
        found = []
        for row, (question, text, span) in enumerate(zip(questions, data.columns["context"], spans, strict=True)):
            found += self._windows(row, question, contexts[text], span)
        return found

    def _windows(self, row: int, asked: Pieces, context: Pieces, answer: range | None = None) -> list[Window]:
        """Make the windows of one row (question, context); each window has the question and a part of the context."""
        question = asked.ids[: self.options.question_length]
        frame = self.subwords.frames[1]
        room = self.max_length - len(question) - frame.size
        if room < 1:
            raise ArgumentError(
                f"max_length: expected room for a context beside a question of {len(question)} tokens and {frame.size} "
                f"signs. Received: max_length={self.max_length}. Increase it, or reduce question_length"
            )
        # The requested overlap, but at most half of the window, and enough that no training answer is cut.
        overlap = min(max(min(self.options.overlap, room // 2), self.longest - 1), room - 1)
        begin = len(question) + self._signs_before
        found = []
        for low, high in windows(len(context.ids), room, overlap):
            whole = answer is not None and low <= answer.start and answer.stop <= high
            start, end = (answer.start - low + begin, answer.stop - 1 - low + begin) if answer and whole else (0, 0)
            ids, types = self.subwords.pair(question, context.ids[low:high])
            found.append(Window(row, ids, types, begin, low, context.offsets[low:high], start, end))
        return found

    @property
    def _signs_before(self) -> int:
        """The number of special tokens, such as [CLS], before the context. The question's tokens do not count."""
        return sum(map(len, self.subwords.frames[1].signs[:2]))

    @property
    def max_length(self) -> int:
        """The largest number of tokens in a window, including the question."""
        return self.options.max_length or min(
            _LONGEST, encoders.max_length(self.model.encoder, self.options) or _LONGEST
        )

    def length(self, example: Window) -> int:
        return len(example.ids)

    def collate(self, examples: Sequence[Window]) -> Batch:
        ids_BS = padded([each.ids for each in examples], self.subwords.pad)
        places_S = torch.arange(ids_BS.shape[1])
        first_B1 = torch.tensor([[each.context] for each in examples])
        length_B1 = torch.tensor([[len(each.ids)] for each in examples])
        after = len(self.subwords.frames[1].signs[-1])
        return {
            "input_ids": ids_BS,
            "real": places_S < length_B1,
            "token_type_ids": padded([each.types for each in examples], 0),
            "in_context": (places_S >= first_B1) & (places_S < length_B1 - after),
            "starts": torch.tensor([each.start for each in examples]),
            "ends": torch.tensor([each.end for each in examples]),
        }

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (the loss, the number of windows in it).

        The loss is the cross-entropy of the first and the last token of the answer; both are [CLS] if a window has no
        answer.
        """
        starts_BS, ends_BS = self._log_probabilities(batch)
        total = functional.nll_loss(starts_BS, batch["starts"], reduction="sum")
        total = total + functional.nll_loss(ends_BS, batch["ends"], reduction="sum")
        return total / 2, torch.tensor(len(starts_BS), device=starts_BS.device)

    def _log_probabilities(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return each token's log-probability to be the answer's first and its last token: [B, S] each, float32."""
        allowed_BS = batch["in_context"].clone()
        allowed_BS[:, 0] = True
        logits = self.model(batch["input_ids"], batch["real"], batch["token_type_ids"])
        lowest = torch.finfo(torch.float32).min
        starts_BS, ends_BS = (each.float().masked_fill(~allowed_BS, lowest).log_softmax(-1) for each in logits)
        return starts_BS, ends_BS

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the answer to each question, copied from its context.

        Args:
            inputs: (question, context) pairs, one or several strings "question [SEP] context", or a table with the
                columns of questions and contexts.

        Returns:
            For each question "answer", "start" (index in the context of the answer's first character) and
            "probability", among all spans of all windows. If the model predicts that there is no answer, "answer" is ""
            and "start" is None.
        """
        data = self._inputs(inputs)
        return self._answers(data.columns["context"], self.encode(data, targets=False))

    def _answers(self, contexts: Sequence[str], windows: Sequence[Window]) -> list[dict[str, Any]]:
        """Make the predictions for some rows, from their contexts and all windows of these contexts."""
        found = []
        for context, spans in zip(contexts, self._best(len(contexts), windows), strict=True):
            (start, end), probability = spans.best()
            answer = context[start:end]
            start += len(answer) - len(answer.lstrip())  # a token of sentencepiece may be a space alone
            answer = answer.strip()
            found.append({"answer": answer, "start": start if answer else None, "probability": probability})
        return found

    def evaluate(self, source: Any) -> Scores:
        """Return exact match and F1, beside two baselines: the first tokens, or the first sentence of a context."""
        data = self.read(source, self.options)
        contexts, answers = data.columns["context"], data.columns["answers"]
        called = [each["answer"] for each in self.predict(data)]
        pieces = _pieces(contexts, self.subwords)
        count = max(round(self.mean), 1)
        beginnings = [text[: _find_end(pieces[text], count)] for text in contexts]
        sentences = [found[0] if (found := _SENTENCE.match(text.strip())) else "" for text in contexts]
        return Scores(
            values=_values(called, answers, contexts),
            count=len(data),
            baselines={
                Sentence("the first {count} token{s}, as an answer has in the mean").format(
                    count=count, s="s" * (count > 1)
                ): _values(beginnings, answers, contexts),
                "the first sentence": _values(sentences, answers, contexts),
            },
            left_out=(*data.left_out, *self.remarks(data)),
        )

    def cut(self, inputs: Any) -> dict[int, str]:
        """Return a dict: index of a too long question -> why it is cut. Contexts are not cut, but read in windows."""
        questions = self.subwords.pieces(self._inputs(inputs).columns["question"])
        return cut((len(each.ids) for each in questions), self.options.question_length, what="a question of ")

    def look(self, inputs: Any) -> list[Seen]:
        """Return the attention for each question with its context.

        Of a long context, only the window whose middle is nearest to the answer is read.
        """
        data = self._inputs(inputs)
        rows = zip(data.columns["question"], data.columns["context"], strict=True)
        return [self.look_at(self.subwords.read(texts))[0] for texts in rows]

    def columns(self) -> Columns:
        question = join(("the question", limit(self.options.question_length)), "")
        start = Sentence("index of its first character in the context; {none} if there is no answer").format(
            none=NO_ANSWER
        )
        return Columns(
            inputs=(
                Column("question", "BYTES", says=question),
                Column("context", "BYTES", says="the text with the answer, of any length"),
            ),
            outputs=(
                Column("answer", "BYTES", says="copied from the context; empty if the context has no answer"),
                Column("start", "INT64", says=start),
                Column("probability", "FP32", says="probability of this answer, or of no answer"),
            ),
            example={
                "question": "Who wrote the book?",
                "context": "The book was written by Mary Shelley. It came out in 1818.",
            },
        )

    def read_row(self, row: Row) -> Read:
        return self.subwords.read([take_text(row, "question"), take_text(row, "context")])

    def count_tokens(self, asked: Read) -> int:
        return asked.size

    def answer_rows(self, asked: Sequence[Read]) -> list[Row]:
        windows = []
        for row, each in enumerate(asked):
            question, context = each.pieces
            windows += self._windows(row, question, context)
        found = self._answers([each.texts[1] for each in asked], windows)
        return [{**each, "start": NO_ANSWER if each["start"] is None else each["start"]} for each in found]

    def look_at(self, asked: Read) -> tuple[Seen, None]:
        question, context = asked.pieces
        windows = self._windows(0, question, context)
        (answer,) = self._answers([asked.texts[1]], windows)
        middle = 0.0 if answer["start"] is None else answer["start"] + len(answer["answer"]) / 2
        window = min(windows, key=lambda each: abs((each.offsets[0][0] + each.offsets[-1][1]) / 2 - middle))
        kept = slice(window.context - self._signs_before), slice(window.low, window.low + len(window.offsets))
        return encoders.look(self.model, self.subwords.named(asked, kept), window.types), None

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """The graph "model": input_ids, attention_mask, token_type_ids → start_logits, end_logits [batch, length].

        The answer is the best span of the context, or [CLS], whose logits mean that there is no answer.
        """
        return text_encoders.graphs(self.model, collect_inputs(self.model, self.predict, rows), self.max_length)

    @property
    def reads_pairs(self) -> bool:
        return True

    def state(self) -> dict[str, Any]:
        return {
            "longest": self.longest,
            "mean": self.mean,
            "may_be_none": self.may_be_none,
            "encoder": encoders.describe(self.model.encoder),
        }

    @classmethod
    def restore(cls, options: AnswerOptions, state: dict[str, Any], folder: Path) -> Answer:
        encoder = encoders.again(state["encoder"])
        return cls(options, SpanReader(encoder), Subwords.from_pretrained(folder), state)

    def save_files(self, folder: Path) -> None:
        self.subwords.save(folder)

    @torch.no_grad()
    def _best(self, rows: int, examples: Sequence[Window]) -> list[BestSpans]:
        """Collect the most probable answers to each of `rows` rows from all its windows."""
        self.eval()
        found = [BestSpans(self.may_be_none) for _ in range(rows)]
        for batch, places in self.batches(examples):
            starts_BS, ends_BS = self._log_probabilities(batch)
            for i, place in enumerate(places):
                window = examples[place]
                inside = slice(window.context, window.context + len(window.offsets))
                none = float(starts_BS[i, 0] + ends_BS[i, 0])
                found[window.row].add(starts_BS[i, inside], ends_BS[i, inside], none, window.offsets, self.longest)
        return found

    def _inputs(self, inputs: Any) -> Data:
        """Return the inputs of `predict` as a table (`Data`)."""
        given = [inputs] if isinstance(inputs, str) and SEPARATOR in inputs else inputs
        if not isinstance(given, list | tuple) or not given or isinstance(given[0], Mapping):
            return self.read(inputs, self.options, targets=False)
        pairs = [_pair(each) for each in given]
        columns = {"question": [pair[0] for pair in pairs], "context": [pair[1] for pair in pairs]}
        return Data("inputs", columns, [*range(len(pairs))])


def _pair(given: Any) -> tuple[str, str]:
    """Return (question, context), given as a pair or as one string with [SEP] between them."""
    parts = given.split(SEPARATOR, 1) if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise ArgumentError(
            Sentence('expected "question {separator} context", or the two as a pair. Received: {given}').format(
                separator=SEPARATOR, given=brief(given)
            )
        )
    question, context = parts
    if isinstance(given, str):
        question, context = question.strip(), context.strip()
    if not question.strip() or not context.strip():
        raise ArgumentError(
            Sentence("expected a non-empty question and context. Received: {given}").format(given=brief(given))
        )
    return question, context


def _pieces(contexts: Sequence[str], subwords: Subwords) -> dict[str, Pieces]:
    """Return a dict: context -> its tokens. A context is tokenized once: in SQuAD many questions share one context."""
    once = list(dict.fromkeys(contexts))
    return dict(zip(once, subwords.pieces(once), strict=True))


def _token_spans(data: Data, subwords: Subwords) -> list[range | None]:
    """Find the range of tokens of each row's first answer; None for a question without an answer."""
    pieces = _pieces(data.columns["context"], subwords)
    rows = zip(data.columns["context"], data.columns["answers"], strict=True)
    return [_find_tokens(answers[0], pieces[context]) if answers else None for context, answers in rows]


def _find_tokens(answer: Span, context: Pieces) -> range | None:
    """Find the range of the context's tokens that overlap the answer; None if no token does."""
    end = answer.start + len(answer.text)
    touched = [i for i, (low, high) in enumerate(context.offsets) if low < end and high > answer.start]
    return range(touched[0], touched[-1] + 1) if touched else None


def _find_end(context: Pieces, count: int) -> int:
    """Return the index in the context of the character after the context's first `count` tokens."""
    return context.offsets[min(count, len(context.offsets)) - 1][1] if context.offsets else 0


def _values(called: Sequence[str], answers: Sequence[Sequence[Span]], contexts: Sequence[str]) -> dict[str, float]:
    rows = [
        (said, [span.text for span in true], span_scores.is_by_character(context))
        for said, true, context in zip(called, answers, contexts, strict=True)
    ]
    return {
        "exact_match": fmean(span_scores.exact_match(said, true, by_character=each) for said, true, each in rows),
        "f1": fmean(span_scores.f1(said, true, by_character=each) for said, true, each in rows),
    }
