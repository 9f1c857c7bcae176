"""What is saved must be the whole module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.checks.state_dict import looks_random
from tests.doctor.checks.specimens import Attention, found, one, seeded


class KeepsAList(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(16, 16), nn.Linear(16, 16)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.more[1](self.more[0](x)))


class KeepsATensor(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.randn(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x @ self.mix)


class Transient(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mix", torch.randn(16, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x @ self.mix)


class Remakes(Attention):
    """Keeps a copy of a parameter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.folded = None

    def forward(self, x: Tensor) -> Tensor:
        if self.folded is None:
            self.folded = (self.q.weight.detach() @ self.k.weight.detach()).tril()
        return super().forward(x @ self.folded)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().load_state_dict(*args, **kwargs)
        self.folded = torch.zeros_like(self.q.weight)
        return found


class Renames(Attention):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {f"model.{name}": x for name, x in super().state_dict(*args, **kwargs).items()}


class Tables(Attention):
    """Constants that are made anew need not be saved."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(8) / 8)
        self.table = torch.cat([angles.sin(), angles.cos()], dim=1)
        self.register_buffer("seen", torch.ones(64, 64).tril().bool(), persistent=False)
        self.scale = torch.tensor(math.sqrt(4.0))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        x = x + self.table[:n]
        return self.attend(x, x, self.seen[:n, :n])


def test_modules_in_a_plain_list() -> None:
    finding = one("state_dict", seeded(KeepsAList))
    assert (finding.name, finding.severity) == ("weights-unregistered", "bug")
    assert finding.numbers["weights"] == 2 * (16 * 16 + 16)
    assert "more holds 544 weights" in finding.evidence


def test_random_numbers_that_are_not_saved() -> None:
    plain = one("state_dict", seeded(KeepsATensor))
    assert (plain.name, plain.severity, plain.numbers["weights"]) == ("weights-unregistered", "risk", 256)
    buffer = one("state_dict", seeded(Transient))
    assert (buffer.name, buffer.severity) == ("state-dict", "risk")
    assert "mix [16, 16]" in buffer.evidence


def test_loading_that_changes_the_output() -> None:
    finding = one("state_dict", seeded(Remakes))
    assert (finding.name, finding.severity) == ("state-dict", "bug")
    assert finding.numbers["change"] > 0.01


def test_a_state_dict_that_cannot_be_loaded() -> None:
    module = seeded(Renames)
    finding = one("state_dict", module)
    assert finding.severity == "bug"
    assert "cannot be loaded" in finding.evidence


def test_healthy_ones() -> None:
    assert found("state_dict", seeded(Attention)) == []
    assert found("state_dict", seeded(Tables)) == []


def test_what_looks_random() -> None:
    draw = torch.Generator().manual_seed(1)
    assert looks_random(torch.randn(32, 32, generator=draw))
    assert looks_random(torch.rand(32, 32, generator=draw))
    assert not looks_random(torch.arange(1024.0).view(32, 32))
    assert not looks_random(torch.ones(32, 32).tril())
    assert not looks_random(torch.randn(7, 7, generator=draw))  # too few to tell
