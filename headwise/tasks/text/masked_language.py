"""Masked language: tokens are hidden, and a BERT finds them again from both sides. Devlin et al. 2018, section 3.1."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import ArgumentError, brief
from headwise.graphs import text_encoders
from headwise.graphs.graph import Graph
from headwise.graphs.session import Sessions
from headwise.models import Bert, BertConfig
from headwise.models.bert_checkpoint import save_checkpoint
from headwise.models.checkpoint import resolve
from headwise.models.cross_entropy import summed_cross_entropy
from headwise.models.language_model import MaskedLanguageModel
from headwise.tasks.columns import Column
from headwise.tasks.language import Language
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.rows.tables import Data
from headwise.tasks.task import Batch
from headwise.tasks.text import encoders
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.text.wordpieces import INSIDE, MASK
from headwise.text import Tokens
from headwise.text.tokenizer import Encoded

if TYPE_CHECKING:
    from typing_extensions import Self

CHECKPOINT = "bert"  # a folder of the run folder
MASKED, RANDOM = 0.8, 0.1  # of the tokens that are to be found: [MASK] stands there, any token; else the token itself
SHOWN = 3


class Masked(Language):
    """Masked tokens are found."""

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
        """The vocabulary of the texts and a new model, or those of a checkpoint."""
        if options.model is None:
            subwords = Subwords.train(data.columns["text"], options.vocab_size, lowercase=options.lowercase)
            shape = {"dim": options.dim, "layers": options.layers, "heads": options.heads}
            bert = encoders.new_bert(subwords, **shape, max_length=options.block, dropout=options.dropout)
            return cls(options, MaskedLanguageModel(bert), subwords)
        folder = resolve(options.model)
        model = MaskedLanguageModel.from_pretrained(folder, dropout=options.dropout).train()
        return cls(options, model, Subwords.from_pretrained(folder))

    @classmethod
    def restore(cls, options: LanguageOptions, state: dict[str, Any], folder: Path) -> Self:
        return cls(options, MaskedLanguageModel(Bert(BertConfig(**state))), Subwords.from_pretrained(folder))

    def state(self) -> dict[str, Any]:
        return asdict(self.model.bert.config)

    def save_files(self, folder: Path) -> None:
        """The tokenizer; once the weights are learned, also a checkpoint to go on from: `--model RUN/bert`."""
        self.subwords.save(folder)
        model = self.model
        if not model.training:
            head = {theirs: dict(model.named_parameters())[ours] for ours, theirs in model.head_names().items()}
            save_checkpoint(model.bert, folder / CHECKPOINT, head=head, pad=self.subwords.pad)
            self.subwords.save(folder / CHECKPOINT)

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Pieces of documents, "[CLS] … [SEP]", of `block` tokens at most; no piece is of two documents."""
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
        """Logits [N, V] at the places of hidden tokens, and these tokens [N].

        The places are always the same, and [MASK] stands at each.
        """
        ids, hidden = batch["input_ids"], batch["fixed"]
        return self.model(ids.masked_fill(hidden, self.subwords.mask), batch["real"], at=hidden), ids[hidden]

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of -log p over hidden tokens, and their number.

        In training their places are drawn anew in every step (Liu et al. 2019, section 4.1); else they are those of
        `predictions`.
        """
        if not self.training:
            logits_NV, tokens_N = self.predictions(batch)
        else:
            ids, real = batch["input_ids"], batch["real"]
            hidden, seen = self._drawn(ids, real)
            logits_NV, tokens_N = self.model(seen, real, at=hidden), ids[hidden]
        return summed_cross_entropy(logits_NV, tokens_N), torch.tensor(len(tokens_N), device=tokens_N.device)

    def tokenize(self, text: str) -> Encoded:
        """[CLS], all tokens of a text, [SEP]; a [MASK] is one token."""
        return self.subwords.tokenizer.read(text)

    def answer(self, asked: Encoded, place: int = 0) -> dict[str, Any]:
        """The text with every [MASK] filled, how likely that is, and what else may stand there."""
        text, ids, _ = asked
        kept = ids if len(ids) <= self.block else [*ids[: self.block - 1], ids[-1]]
        ids_1S = torch.tensor([kept], device=self.model.bias.device)
        at = ids_1S == self.subwords.mask
        wanted = text.count(MASK)
        if not wanted or int(at.sum()) < wanted:
            said = f"Received: {brief(text)}"
            if wanted:
                said = f"The {MASK} at the end of this text is beyond the {self.block} tokens that are read"
            raise ArgumentError(f"expected a text with {MASK} where a token is to be found. {said}")
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
        """model: see `text_encoders` in `headwise.graphs`."""
        examples = self.examples(rows)
        batch = self.collate(examples) if examples else {}
        return text_encoders.graphs(self.model, [(batch["input_ids"], batch["real"])] if batch else [])

    def run_on(self, sessions: Sessions) -> None:
        text_encoders.run_on(self.model, sessions)

    def _drawn(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are to be found, and what stands in their places; drawn by torch's own generator."""
        device = ids.device
        words = real & torch.isin(ids, self._words.to(device))
        hidden = words & (torch.rand(ids.shape, device=device) < self.options.mask_share)
        kind = torch.rand(ids.shape, device=device)
        others = self._words.to(device)[torch.randint(len(self._words), ids.shape, device=device)]
        seen = torch.where(kind < MASKED, self.subwords.mask, torch.where(kind < MASKED + RANDOM, others, ids))
        return hidden, torch.where(hidden, seen, ids)

    def _fixed(self, ids: Sequence[int]) -> list[int]:
        """The places of an example that are hidden where nothing is learned: a function of its tokens, at least one."""
        words = [place for place, number in enumerate(ids) if number not in self._signs]
        if not words:
            return []
        random = np.random.default_rng(zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes()))
        count = max(1, round(self.options.mask_share * len(words)))
        return sorted(random.choice(words, count, replace=False).tolist())


def _filled(text: str, names: Sequence[str]) -> str:
    """The text with the tokens in the places of [MASK]; a piece that goes on with a word is joined to it."""
    before, *rest = text.split(MASK)
    for name, after in zip(names, rest, strict=True):
        joined = name.startswith(INSIDE)
        before = (before.rstrip() + name.removeprefix(INSIDE) if joined else before + name) + after
    return before
