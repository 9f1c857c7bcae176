"""Memories that a call returns and the next one takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded
from tests.doctor.checks.styles import Plain


class Recurrent(Attention):
    """Keeps the inputs of the latest 9 tokens; pass the returned memory with the next segment."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        memory = x[:, :0] if memory is None else memory
        past = memory.shape[1]
        context = torch.cat([memory, x], dim=1)
        allowed = torch.ones(x.shape[1], context.shape[1], dtype=torch.bool).tril(past)
        return self.attend(x, context, allowed), self.kept(context).detach()

    def kept(self, context: Tensor) -> Tensor:
        return context[:, -9:]


class KeepsTheOldest(Recurrent):
    def kept(self, context: Tensor) -> Tensor:
        return context[:, :9]


class Grows(Recurrent):
    def kept(self, context: Tensor) -> Tensor:
        return context


class OfLayers(nn.Module):
    """memory: a list of tensors, one for each layer."""

    def __init__(self, layer: type[Recurrent]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer(), layer()])

    def forward(self, x: Tensor, memory: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        returned = []
        for i, layer in enumerate(self.layers):
            y, kept = layer(x, None if memory is None else memory[i])
            returned.append(kept)
            x = x + y
        return x, returned


@pytest.mark.parametrize("module", [KeepsTheOldest, lambda: OfLayers(KeepsTheOldest)], ids=["one", "of layers"])
def test_the_oldest_tokens(module: type[nn.Module]) -> None:
    finding = one("memory_kept", seeded(module))
    assert (finding.name, finding.severity) == ("oldest-kept", "bug")


@pytest.mark.parametrize("module", [Recurrent, lambda: OfLayers(Recurrent)], ids=["one", "of layers"])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("memory_kept", seeded(module)) == []


def test_no_memory_of_some_length() -> None:
    with pytest.raises(NotChecked, match="grows to some length"):
        found("memory_kept", seeded(Grows))
    with pytest.raises(NotApplicable, match="takes no memory"):
        found("memory_kept", seeded(Plain))


class OfSegments(Attention):
    """Pre-norm attention, causal: it returns its input as the memory of the next segment."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor, mems: Tensor | None = None) -> tuple[Tensor, Tensor]:
        whole = self.with_memory(x, mems)
        n = whole.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool).tril()[-x.shape[1] :]
        return x + self.attend(self.norm(x), whole, allowed), x.detach()

    def with_memory(self, x: Tensor, mems: Tensor | None) -> Tensor:
        return self.norm(x if mems is None else torch.cat([mems, x], 1))


class Unnormed(OfSegments):
    def with_memory(self, x: Tensor, mems: Tensor | None) -> Tensor:
        return self.norm(x) if mems is None else torch.cat([mems, self.norm(x)], 1)


class Xl(OfSegments):
    """As in Transformer-XL."""


class UnnormedXl(Unnormed):
    """As in Transformer-XL."""


def test_two_segments_give_what_one_call_gives() -> None:
    finding = one("memory_kept", seeded(UnnormedXl))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert "two segments of 6 tokens, the second with the mems that the first returned" in finding.evidence
    assert found("memory_kept", seeded(Xl)) == found("memory_kept", seeded(Unnormed)) == []  # or a memory of its own
