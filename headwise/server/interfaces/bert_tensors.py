"""The interface of a BERT checkpoint without a task.

It answers token ids by hidden states and their mean, and a text by its vector (embedding).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headwise.capture import watch
from headwise.errors import ArgumentError, CheckpointError, RequestRefused
from headwise.models import Bert, unpadded
from headwise.models.checkpoint import resolve
from headwise.server.interface import Description, Embeds
from headwise.server.interfaces.answering import Answering
from headwise.server.interfaces.precision import Precision
from headwise.tasks.columns import Column, Row, take_array
from headwise.text import Tokenizer, as_tokens
from headwise.viewer import Input, inputs_of

IDS = Column("input_ids", "INT64", (-1,), "tokens")
MASK = Column("attention_mask", "INT64", (-1,), "1 for tokens, 0 for padding after them", optional=True)
TYPES = Column("token_type_ids", "INT64", (-1,), "which text of a pair each token belongs to: 0 or 1", optional=True)


@dataclass(frozen=True)
class Ids:
    """A row of token ids: its real tokens, and its number of tokens with padding."""

    ids: list[int]
    types: list[int]
    length: int


@dataclass(frozen=True)
class Text(Ids):
    """A row that is a text, or the token ids of a text. Its answer is only the vector (embedding) of the text."""

    prompt: str = ""


class BertTensors(Answering[Ids]):
    """The interface of a BERT encoder without a task.

    A row of `input_ids`, `attention_mask` and `token_type_ids` is answered by `last_hidden_state` and `embedding`, the
    mean over its tokens. A row with "text" or "ids" (see `Embeds`) is answered by the vector of this text, computed as
    the settings of the checkpoint say.

    Args:
        path: a folder or a Hugging Face hub id.

    Raises:
        CheckpointError: the checkpoint is not a BERT.
    """

    def __init__(self, path: str | Path, precision: Precision) -> None:
        folder = resolve(path)
        self.bert, self.precision = Bert.from_pretrained(folder), precision
        try:
            self.tokenizer: Tokenizer | None = Tokenizer.from_pretrained(folder)
        except CheckpointError:  # without a tokenizer only ids are read, and tokens are named by their ids
            self.tokenizer = None
        config = self.bert.config
        self.sentences = None if self.tokenizer is None else self.bert.sentences
        embeds = None
        if self.sentences is not None:
            embeds = Embeds(self.sentences.dim, self.sentences.max_tokens, tuple(self.sentences.prompts))
        words = "a warm, funny film"
        example = self.tokenizer.encode(words).ids if self.tokenizer else tuple(range(min(8, config.vocab_size)))
        self.description = Description(
            task="tensors",
            platform="headwise_torch",
            inputs=(IDS, MASK, TYPES),
            outputs=(
                Column("last_hidden_state", "FP32", (-1, config.dim), "one vector per token; 0 at padding"),
                Column("embedding", "FP32", (config.dim,), "the mean over real tokens"),
            ),
            explains=True,
            embeds=embeds,
            packs=True,
            example={"input_ids": np.array(example, dtype=np.int64)},
        )

    def read(self, row: Row) -> Ids:
        if self.sentences is None or not row.keys() & {"text", "ids"}:
            return super().read(row)
        self.use_threads()
        prompt, ids = "", [] if row.get("ids") is None else row["ids"].tolist()
        count = len(ids)
        if "text" in row:
            prompt = self.sentences.prompt(row.get("prompt_name"))
            ids, count = self.sentences.tokenized(row["text"], prompt)
        most = self.sentences.max_tokens
        if count > most and not row.get("truncate"):
            said = f"expected at most {most} tokens. Received: {count} tokens. Shorten it, or have it cut"
            raise RequestRefused("too_large", said)
        if not ids:
            raise ArgumentError("expected at least one token. Received: none")
        _check_numbers("ids", np.array(ids), self.bert.config.vocab_size)
        return Text(ids[:most], [0] * min(len(ids), most), count, prompt)

    def parse(self, row: Row) -> Ids:
        ids = take_array(row, IDS)
        arrays = {column.name: take_array(row, column) for column in (MASK, TYPES) if row.get(column.name) is not None}
        for name, array in arrays.items():
            if len(array) != len(ids):
                raise ArgumentError(
                    f"{name}: expected {len(ids)} numbers, as in input_ids. Received: {len(array)} numbers"
                )
        mask = arrays.get("attention_mask", np.ones_like(ids))
        types = arrays.get("token_type_ids", np.zeros_like(ids))
        real = int(mask.sum())
        if real < 1 or not np.array_equal(mask, np.arange(len(ids)) < real):
            raise ArgumentError("attention_mask: expected one or more 1 (tokens), then only 0 (padding)")
        config = self.bert.config
        if real > config.max_positions:
            raise ArgumentError(f"input_ids: expected at most {config.max_positions} tokens. Received: {real} tokens")
        _check_numbers("input_ids", ids[:real], config.vocab_size)
        _check_numbers("token_type_ids", types[:real], max(config.num_token_types, 1))
        return Ids(ids[:real].tolist(), types[:real].tolist(), len(ids))

    def tokens(self, asked: Ids) -> int:
        return asked.length

    def run(self, asked: Sequence[Ids]) -> list[Row]:
        found: list[Row] = []
        hidden = unpadded.read(self.bert, [each.ids for each in asked], [each.types for each in asked])
        vectors = self._vectors(asked, hidden)
        for each, hidden_SM in zip(asked, hidden, strict=True):
            if isinstance(each, Text):
                found.append({"embedding": next(vectors), "tokens": len(each.ids)})
                continue
            whole = torch.zeros(each.length, hidden_SM.shape[1])
            whole[: len(hidden_SM)] = hidden_SM.float()
            found.append({"last_hidden_state": whole.numpy(), "embedding": hidden_SM.float().mean(0).numpy()})
        return found

    def _vectors(self, asked: Sequence[Ids], hidden: Sequence[torch.Tensor]) -> Iterator[np.ndarray]:
        """Yield the vectors of the rows that are texts."""
        pairs = [(x_SM, each.prompt) for each, x_SM in zip(asked, hidden, strict=True) if isinstance(each, Text)]
        if pairs and self.sentences is not None:
            yield from self.sentences.vectors(*zip(*pairs, strict=True)).numpy()

    def names(self, asked: Ids) -> list[str]:
        name = str if self.tokenizer is None else self.tokenizer.backend.id_to_token
        return [str(name(id_)) for id_ in asked.ids]

    def look(self, asked: Ids) -> list[Input]:
        with torch.no_grad(), watch(self.bert, tokens=as_tokens([self.names(asked)])) as seen:
            self.bert(torch.tensor([asked.ids]), token_type_ids=torch.tensor([asked.types]))
        return inputs_of(seen)


def _check_numbers(name: str, numbers: np.ndarray, size: int) -> None:
    if numbers.min() < 0 or numbers.max() >= size:
        odd = numbers[(numbers < 0) | (numbers >= size)][0]
        raise ArgumentError(f"{name}: expected numbers from 0 to {size - 1}. Received: {odd}")
