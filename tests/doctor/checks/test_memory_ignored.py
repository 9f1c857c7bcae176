"""Memories that are passed, and change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded

NAME = "memory_ignored"


class Block(nn.Module):
    """Attention to a context; to its own tokens where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return x + self.attention.attend(x, x if context is None else context, None)


class Stack(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, context)
        return x


class Forgets(Stack):
    """The blocks do not get the context."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Switched(Stack):
    """Only a decoder attends to a context."""

    def __init__(self, is_decoder: bool = False) -> None:
        super().__init__()
        self.is_decoder = is_decoder

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return super().forward(x, context if self.is_decoder else None)


class OwnKeys(Cross):
    """Keys and values of the wrong input."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return super().attend(x, x, None) + 0 * memory.mean()


class Gated(Cross):
    """The gate is shut when training begins."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        return x + self.gate.tanh() * super().forward(x, memory, memory_mask)


@pytest.mark.parametrize(("kind", "name"), [(Forgets, "context"), (OwnKeys, "memory")])
def test_a_memory_that_changes_nothing(kind: type[nn.Module], name: str) -> None:
    finding = one(NAME, seeded(kind))
    assert (finding.name, finding.severity) == ("memory-ignored", "bug")
    assert f"other numbers in {name}" in finding.evidence


@pytest.mark.parametrize("kind", [Cross, Gated])
def test_a_memory_that_is_read(kind: type[nn.Module]) -> None:
    assert found(NAME, seeded(kind)) == []


@pytest.mark.parametrize("kind", [Attention, Switched])
def test_an_optional_memory_that_forward_reads_is_not_judged(kind: type[nn.Module]) -> None:
    with pytest.raises(NotApplicable):
        found(NAME, seeded(kind))


class ReadsItself(Stack):
    """The context is read, and what is passed on is another."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if x is not None else context
        return super().forward(x, context)


def test_a_context_that_is_overwritten() -> None:
    assert found(NAME, seeded(Stack)) == []
    assert one(NAME, seeded(ReadsItself)).severity == "bug"


class ReadsForItsQueries(Cross):
    """Learned queries read the image; text and queries come back."""

    reads = True

    def forward(self, text: Tensor, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries = self.q.bias.expand(len(text), 3, 16)
        return super().forward(queries, image if self.reads else text), text + 1, image


class ReadsTheText(ReadsForItsQueries):
    reads = False


def test_a_memory_that_reaches_another_of_the_outputs() -> None:
    assert found(NAME, seeded(ReadsForItsQueries)) == []
    assert one(NAME, seeded(ReadsTheText)).name == "memory-ignored"
