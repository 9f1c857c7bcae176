"""What modules say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling.spec import Spec
from headwise.doctor.contract import Causal as Said
from headwise.doctor.contract import Contract, Window
from headwise.doctor.patient import Patient
from tests.doctor.laws.specimens import Attention, Causal, seeded, triangle


class Named(Attention):
    def forward(self, x: Tensor, document_ids: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None)


class Draws(Attention):
    def forward(self, x: Tensor, ahead: bool = False) -> Tensor:
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        return self.attend(x, x, allowed if ahead else allowed.tril())


class DrawsIfAsked(Attention):
    def forward(self, x: Tensor, past_only: bool = False) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1], x.shape[1]) if past_only else None)


def contract(module: nn.Module, **stated: Any) -> Contract:
    return Patient(module, spec=Spec(**stated)).contract


@pytest.mark.parametrize(
    ("module", "stated", "said"),
    [
        (seeded(Causal), {}, Said(True, "class Causal")),
        (seeded(Named, is_causal=True), {}, Said(True, "is_causal=True")),
        (seeded(Named, is_causal=False), {}, Said(False, "is_causal is False")),
        (seeded(Named, is_causal=True), {"causal": False}, Said(False, "stated")),
        (seeded(Draws), {}, Said(True, "code tril")),
        (seeded(DrawsIfAsked), {}, None),  # a triangle counts where a plain call draws it
        (seeded(Attention), {}, None),
    ],
)
def test_whether_it_is_causal(module: nn.Module, stated: dict[str, Any], said: Said | None) -> None:
    assert contract(module, **stated).causal == said


def test_a_window_and_documents() -> None:
    windowed = seeded(Named, sliding_window=4, use_sliding_window=False)
    assert contract(windowed).window == Window(4, "sliding_window", own=True, switch=False)
    assert contract(seeded(Attention), window=3).window == Window(3, "left", own=True)
    assert contract(seeded(Named)).documents == ("document_ids",)
    nothing = contract(seeded(Attention))
    assert (nothing.window, nothing.documents) == (None, ())
