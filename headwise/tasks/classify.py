"""`Classify`: predicts a label for a text, or for a pair of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import MeanMetric

from headwise.errors import ArgumentError, brief
from headwise.graphs import text_encoders
from headwise.graphs.graph import Graph
from headwise.graphs.rows import collect_inputs
from headwise.language import Sentence, join
from headwise.models.bert import Bert
from headwise.models.text_classifier import TextClassifier
from headwise.records import Seen
from headwise.tasks.columns import Column, Columns, Row, take_text
from headwise.tasks.options.classify import ClassifyOptions
from headwise.tasks.rows.labels import read_number
from headwise.tasks.rows.tables import Data, check_filled, read_table, texts_in
from headwise.tasks.scores import Scores
from headwise.tasks.scoring.class_scores import class_scores
from headwise.tasks.task import SEPARATOR, Batch, Task
from headwise.tasks.text import encoders
from headwise.tasks.text.cuts import cut, cut_longer, limit
from headwise.tasks.text.padding import padded, padded_with_real
from headwise.tasks.text.subwords import Pieces, Read, Subwords
from headwise.text import Tokens

TEXTS = ("text", "pair")  # columns of `Data`
UNSEEN = -100  # the class of a label that is not in the training data; the loss ignores it


class Example(NamedTuple):
    ids: list[int]
    types: list[int]
    label: int


class Classify(Task[ClassifyOptions]):
    """A BERT fine-tuned from a checkpoint, a small encoder from scratch, or a latent encoder for texts of any length.

    >>> task = Classify.fit("reviews.csv", text="sentence", label="label")
    >>> task.predict(["a warm, funny film"])
    [{'label': 'good', 'probability': 0.98, 'probability of bad': 0.02, 'probability of good': 0.98}]
    """

    name = "classify"
    options_type = ClassifyOptions
    best_by = ("validation_accuracy", "max")
    label_column = "label"
    compared_by = (("accuracy", "max"), ("macro_f1", "max"))

    model: TextClassifier
    labels: dict[str, int]

    def __init__(
        self, options: ClassifyOptions, model: TextClassifier, subwords: Subwords, labels: dict[str, int]
    ) -> None:
        """`labels`: the labels of the training data, in the order of the model's classes, with their counts."""
        super().__init__(options, model)
        self.subwords = subwords
        self.labels = labels
        self._numbers = {label: number for number, label in enumerate(labels)}
        self._known = {read_number(label): label for label in labels} | {label: label for label in labels}
        self._accuracy = MeanMetric()

    @classmethod
    def read(cls, source: Any, options: ClassifyOptions, *, targets: bool = True) -> Data:
        columns = {"text": options.text}
        if options.text_pair is not None:
            columns["pair"] = options.text_pair
        if targets:
            columns["label"] = options.label
        return read_table(source, columns, texts=tuple(columns), labels=("label",))

    @classmethod
    def learn(cls, data: Data, options: ClassifyOptions) -> Classify:
        labels = _labels(data, options)
        texts = [*data.columns["text"], *data.columns.get("pair", [])]
        encoder, subwords = encoders.make(texts, options)
        return cls(options, _classifier(encoder, subwords, len(labels), options), subwords, labels)

    def encode(self, data: Data, *, targets: bool = True) -> list[Example]:
        labels = self._labels(data) if targets else [None] * len(data)
        return [self._example(texts, label) for texts, label in zip(self._pieces(data), labels, strict=True)]

    def _labels(self, data: Data) -> list[str]:
        """Return the labels of the rows as the training data wrote them: "1" in another file may have been "1.0"."""
        known = self._known
        return [known.get(label, known.get(read_number(label), label)) for label in data.columns["label"]]

    def _pieces(self, data: Data) -> list[tuple[Pieces, ...]]:
        """Return for each row the tokens of its text, or of its two texts."""
        columns = [self.subwords.pieces(texts) for texts in _texts(data)]
        return list(zip(*columns, strict=True))

    def _example(self, texts: Sequence[Pieces], label: Any = None) -> Example:
        """Make the example of one row from all tokens of its text or its two texts, which are cut if necessary."""
        return Example(*self.subwords.pair(*self._cut(texts)), self._numbers.get(label, UNSEEN))

    def _cut(self, texts: Sequence[Pieces]) -> list[list[int]]:
        """Cut the ends of one or two texts, of two the longer one, so that they fit beside the special tokens."""
        ids = [each.ids for each in texts]
        longest = self.max_length
        return ids if longest is None else cut_longer(ids, longest - self.subwords.frames[len(ids) - 1].size)

    @property
    def max_length(self) -> int | None:
        """The largest number of tokens of an input, special tokens included; None = no limit."""
        return encoders.max_length(self.model.encoder, self.options)

    def length(self, example: Example) -> int:
        return len(example.ids)

    def collate(self, examples: Sequence[Example]) -> Batch:
        ids_BS, real_BS = padded_with_real([example.ids for example in examples], self.subwords.pad)
        return {
            "input_ids": ids_BS,
            "real": real_BS,
            "token_type_ids": padded([example.types for example in examples], 0),
            "labels": torch.tensor([example.label for example in examples]),
        }

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._loss(self._logits(batch), batch["labels"])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Also log "validation_accuracy", which selects the best weights."""
        logits_BC = self._logits(batch)
        self.log_loss(*self._loss(logits_BC, batch["labels"]))
        self._accuracy.update(logits_BC.argmax(-1) == batch["labels"])
        self.log("validation_accuracy", self._accuracy, on_step=False, on_epoch=True)

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the predicted label of each text, and the probability of each label.

        Args:
            inputs: a text, several texts, (text, text) pairs or strings "first [SEP] second", or a table with the
                columns of texts.

        Returns:
            For each input "label", "probability" (of that label), and "probability of …" each label.
        """
        probabilities = self._probabilities(self.encode(self._inputs(inputs), targets=False))
        each = [Sentence("probability of {label}").format(label=label) for label in self.labels]
        found = []
        for row in probabilities.tolist():
            most = max(range(len(row)), key=row.__getitem__)
            found.append(
                {"label": list(self.labels)[most], "probability": row[most], **dict(zip(each, row, strict=True))}
            )
        return found

    def evaluate(self, source: Any) -> Scores:
        """Return accuracy and macro F1, beside a baseline that always predicts the training data's commonest label.

        A label that is not in the training data counts as wrong.
        """
        data = self.read(source, self.options)
        called = self._probabilities(self.encode(data, targets=False)).argmax(-1).tolist()
        labels = list(self.labels)
        return class_scores(
            self._labels(data),
            [labels[number] for number in called],
            known=labels,
            commonest=max(labels, key=self.labels.__getitem__),
            left_out=(*data.left_out, *self.remarks(data)),
        )

    def cut(self, inputs: Any) -> dict[int, str]:
        return cut(map(self.subwords.size, self._pieces(self._inputs(inputs))), self.max_length)

    def look(self, inputs: Any) -> list[Seen]:
        rows = zip(*_texts(self._inputs(inputs)), strict=True)
        return [self.look_at(self.subwords.read(texts))[0] for texts in rows]

    def columns(self) -> Columns:
        says = {"text": join(("the text to classify", limit(self.max_length)), ""), "text_pair": "the second text"}
        shown = {"text": "a warm, funny film", "text_pair": "a cold, sad one"}
        names = self._names()
        shares = "probability of each label, in the order of labels"
        return Columns(
            inputs=tuple(Column(name, "BYTES", says=says[name]) for name in names),
            outputs=(
                Column("label", "BYTES", says="the most probable label"),
                Column("probability", "FP32", says="probability of that label"),
                Column("probabilities", "FP32", (len(self.labels),), says=shares),
            ),
            example={name: shown[name] for name in names},
        )

    def read_row(self, row: Row) -> Read:
        return self.subwords.read([take_text(row, name) for name in self._names()])

    def count_tokens(self, asked: Read) -> int:
        return asked.size

    @property
    def packs(self) -> bool:
        return self._is_unpadded()

    def answer_rows(self, asked: Sequence[Read]) -> list[Row]:
        found_NC = self._probabilities([self._example(each.pieces) for each in asked])
        shares, best = found_NC.max(-1)
        labels = list(self.labels)
        return [
            {"label": labels[number], "probability": share, "probabilities": row_C}
            for number, share, row_C in zip(best.tolist(), shares.tolist(), found_NC.numpy(), strict=True)
        ]

    def look_at(self, asked: Read) -> tuple[Seen, None]:
        example = self._example(asked.pieces)
        return encoders.look(self.model, self._tokens(asked), example.types), None

    def names_of(self, asked: Read) -> list[str]:
        return list(self._tokens(asked).labels)

    def _tokens(self, asked: Read) -> Tokens:
        """Return the tokens that the model reads, after cutting."""
        return self.subwords.named(asked, [slice(len(ids)) for ids in self._cut(asked.pieces)])

    def _names(self) -> list[str]:
        """Return the names of the columns with texts in a row of a request."""
        return ["text", "text_pair"][: 1 + (self.options.text_pair is not None)]

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graph "model": input_ids, attention_mask, token_type_ids → logits [batch, C].

        The logits are in the order of `labels`.
        """
        return text_encoders.graphs(self.model, collect_inputs(self.model, self.predict, rows), self.max_length)

    @property
    def reads_pairs(self) -> bool:
        return self.options.text_pair is not None

    def state(self) -> dict[str, Any]:
        return {
            "labels": list(self.labels),
            "counts": list(self.labels.values()),
            "encoder": encoders.describe(self.model.encoder),
        }

    @classmethod
    def restore(cls, options: ClassifyOptions, state: dict[str, Any], folder: Path) -> Classify:
        subwords = Subwords.from_pretrained(folder)
        labels = dict(zip(state["labels"], state["counts"], strict=True))
        model = _classifier(encoders.again(state["encoder"]), subwords, len(labels), options)
        return cls(options, model, subwords, labels)

    def save_files(self, folder: Path) -> None:
        self.subwords.save(folder)

    def _loss(self, logits_BC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        total = functional.cross_entropy(logits_BC.float(), labels_B, ignore_index=UNSEEN, reduction="sum")
        return total, (labels_B != UNSEEN).sum()

    def _logits(self, batch: Batch) -> Tensor:
        logits_BC: Tensor = self.model(batch["input_ids"], batch["real"], batch["token_type_ids"])
        return logits_BC

    @torch.no_grad()
    def _probabilities(self, examples: Sequence[Example]) -> Tensor:
        """Compute the probability of each label, [rows, C], for the examples in their order."""
        if self.training or self.model.training:  # setting each module takes as long as a layer of a short text
            self.eval()
        if examples and self._is_unpadded():
            logits_NC = self.model.unpadded([each.ids for each in examples], [each.types for each in examples])
            return logits_NC.float().softmax(-1)
        found = torch.empty(len(examples), len(self.labels))
        for batch, places in self.batches(examples):
            found[places] = self._logits(batch).float().softmax(-1).cpu()
        return found

    def _is_unpadded(self) -> bool:
        """Whether texts are read without padding, which is faster on a CPU.

        If the model has hooks, such as those of `headwise.watch`, it is False: hooks need the padded `forward`.
        """
        hooks = self.model._forward_pre_hooks or self.model._forward_hooks
        return self.on_torch and isinstance(self.model.encoder, Bert) and self.device.type == "cpu" and not hooks

    def _inputs(self, inputs: Any) -> Data:
        """Return the inputs of `predict` as a table (`Data`)."""
        if (texts := texts_in(inputs)) is None:
            return self.read(inputs, self.options, targets=False)
        names = TEXTS[: 1 + (self.options.text_pair is not None)]
        pairs = [tuple(text) if isinstance(text, list | tuple) else self._pair(text) for text in texts]
        if wrong := [pair for pair in pairs if len(pair) != len(names)]:
            expected = "a text" if len(names) == 1 else "two texts"
            raise ArgumentError(
                Sentence("expected {expected} for each input. Received: {count}: {wrong}").format(
                    expected=expected, count=len(wrong[0]), wrong=brief(wrong[0])
                )
            )
        columns = {name: [pair[i] for pair in pairs] for i, name in enumerate(names)}
        for texts in columns.values():
            check_filled(texts)
        return Data("inputs", columns, [*range(len(pairs))])

    def _pair(self, text: Any) -> tuple[str, ...]:
        """Split a string into the texts before and after its first [SEP]. Without pairs, a string is one text."""
        if self.options.text_pair is None or not isinstance(text, str):
            return (text,)
        return tuple(part.strip() for part in text.split(SEPARATOR, 1))


def _texts(data: Data) -> list[list[str]]:
    """Return the columns of texts: one column, or two for pairs."""
    return [data.columns[name] for name in TEXTS if name in data.columns]


def _labels(data: Data, options: ClassifyOptions) -> dict[str, int]:
    """Count the rows of each label. The order of the labels does not depend on the order of the rows."""
    counts = Counter(data.columns["label"])
    if len(counts) < 2:
        raise ArgumentError(
            Sentence(
                "{name}: expected at least two different labels in column {label!r}. Received: only {received!r}, "
                "in {count} rows"
            ).format(name=data.name, label=options.label, received=next(iter(counts)), count=len(data))
        )
    if len(counts) > 2 and len(counts) > len(data) / 2:
        raise ArgumentError(
            Sentence(
                "{name}: column {label!r} has {count} different labels in {rows} rows: most occur only once "
                "and cannot be learned. Is it the column of labels?"
            ).format(name=data.name, label=options.label, count=len(counts), rows=len(data))
        )
    return {label: counts[label] for label in sorted(counts, key=_in_order)}


def _in_order(label: str) -> tuple[int, float, str]:
    """Return the sort key of a label: 2 comes before 10, and numbers before words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def _classifier(
    encoder: encoders.AnyEncoder, subwords: Subwords, num_classes: int, options: ClassifyOptions
) -> TextClassifier:
    return TextClassifier(
        encoder,
        num_classes,
        pooling=options.pooling,
        dropout=options.dropout,
        word_dropout=options.word_dropout,
        mask_id=subwords.mask,
        kept_ids=(subwords.cls, subwords.sep, subwords.pad),
    )
