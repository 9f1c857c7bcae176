"""A task of a few parameters, to test what all tasks share: which token came first?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headwise
from headwise.nn import Encoder
from headwise.records import Seen
from headwise.tasks.options.train import TrainOptions, option
from headwise.tasks.rows.tables import Data
from headwise.tasks.scores import Scores
from headwise.tasks.task import Batch, Task

TOKENS = 5


@dataclass(frozen=True, kw_only=True)
class MiniOptions(TrainOptions):
    dim: int = option(8, "Width.", least=2)
    batch_tokens: int = option(64, "Tokens in a batch.", least=1)
    validation_share: float = option(0.25, "Held out.", least=0)
    lr: float = option(1e-2, "Learning rate.", least=0)
    epochs: int = option(3, "Epochs.", least=1)


class MiniModel(nn.Module):
    """The tokens of an example [B, K], 0 where there is none, to the logits of its first [B, TOKENS + 1]."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS + 1, dim, padding_idx=0)
        self.position = nn.Parameter(torch.zeros(64, dim))
        self.encoder = Encoder(dim, num_layers=1, num_heads=2, ffn_dim=dim, dropout=dropout)
        self.output = nn.Linear(dim, TOKENS + 1)

    def forward(self, tokens_BK: Tensor) -> Tensor:
        x_BKM = self.embedding(tokens_BK) + self.position[: tokens_BK.shape[1]]
        real_BK = tokens_BK != 0
        states_BKM: Tensor = self.encoder(x_BKM, real=real_BK) * real_BK[..., None]
        logits: Tensor = self.output(states_BKM.sum(1) / real_BK.sum(1, keepdim=True))
        return logits


class MiniTask(Task[MiniOptions]):
    name = "mini"
    options_type = MiniOptions

    @classmethod
    def read(cls, source: Any, options: MiniOptions, *, targets: bool = True) -> Data:
        if isinstance(source, list):
            return Data("the given", {"tokens": source}, list(range(len(source))))
        return source if isinstance(source, Data) else sequences(source)

    @classmethod
    def learn(cls, data: Data, options: MiniOptions) -> MiniTask:
        return cls(options, MiniModel(options.dim, options.dropout))

    def encode(self, data: Data, *, targets: bool = True) -> list[Any]:
        return data.columns["tokens"]

    def length(self, example: Any) -> int:
        return len(example)

    def collate(self, examples: Sequence[Any]) -> Batch:
        rows = [torch.tensor(example) for example in examples]
        return {"tokens": nn.utils.rnn.pad_sequence(rows, batch_first=True)}

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens_BK = batch["tokens"]
        total = nn.functional.cross_entropy(self.model(tokens_BK), tokens_BK[:, 0], reduction="sum")
        return total, torch.tensor(len(tokens_BK), device=total.device)

    @torch.no_grad()
    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        examples = self.encode(self.read(inputs, self.options))
        found: dict[int, int] = {}
        for batch, places in self.batches(examples):
            found.update(zip(places, self.model(batch["tokens"]).argmax(-1).tolist(), strict=True))
        return [{"first": found[place]} for place in range(len(examples))]

    def evaluate(self, source: Any) -> Scores:
        data = self.read(source, self.options)
        examples = self.encode(data)
        right = [row["first"] == example[0] for row, example in zip(self.predict(data), examples, strict=True)]
        return Scores({"accuracy": sum(right) / len(right)}, len(right), {"any": {"accuracy": 1 / TOKENS}})

    def look(self, inputs: Any) -> list[Seen]:
        found = []
        for tokens in self.encode(self.read(inputs, self.options)):
            with headwise.watch(self.model) as seen, torch.no_grad():
                self.model(torch.tensor([tokens]))
            found.append(seen)
        return found

    def state(self) -> dict[str, Any]:
        return {"tokens": TOKENS}

    @classmethod
    def restore(cls, options: MiniOptions, state: dict[str, Any], folder: Path) -> MiniTask:
        assert state["tokens"] == TOKENS
        return cls(options, MiniModel(options.dim, options.dropout))


def sequences(count: int, seed: int = 0) -> Data:
    """Sequences of 2 to 9 random tokens."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 10, (count,), generator=random).tolist()
    tokens = [torch.randint(1, TOKENS + 1, (length,), generator=random).tolist() for length in lengths]
    return Data("the sequences", {"tokens": tokens}, list(range(count)), fingerprint=f"{count}-{seed}")
