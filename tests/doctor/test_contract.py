"""What modules say of themselves, and where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling.causality import is_triangle
from headwise.doctor.calling.spec import Spec
from headwise.doctor.contract import Contract
from headwise.doctor.patient import Patient
from headwise.masks import causal
from tests.doctor.laws.specimens import Attention, Causal, seeded


class Named(Attention):
    is_causal: bool
    sliding_window = 0

    def forward(self, x: Tensor, document_ids: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None)


def contract(module: nn.Module, **stated: object) -> Contract:
    return Patient(module, spec=Spec(**stated)).contract  # type: ignore[arg-type]


def set_to(**attributes: object) -> nn.Module:
    module = seeded(Named)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_what_is_visible_and_who_says_it() -> None:
    cases = [
        (contract(seeded(Causal)), causal(), "code", "class Causal"),
        (contract(set_to(is_causal=True)), causal(), "code", "is_causal=True"),
        (contract(set_to(is_causal=False)), None, "code", "is_causal is False"),
        (contract(set_to(is_causal=True), causal=False), None, "spec", "stated"),
        (contract(seeded(Attention), causal=True), causal(), "spec", "stated"),
    ]
    for found, mask, source, words in cases:
        assert found.visible is not None
        assert (found.visible.value, found.visible.source, found.visible.words) == (mask, source, words)
    assert contract(seeded(Attention)).visible is None


class Draws(Attention):
    def forward(self, x: Tensor, ahead: bool = False) -> Tensor:
        n = x.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool)
        return self.attend(x, x, allowed if ahead else allowed.tril())


class DrawsIfAsked(Attention):
    def forward(self, x: Tensor, past_only: bool = False) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril() if past_only else None)


def test_a_triangle_counts_where_a_plain_call_draws_it() -> None:
    found = contract(seeded(Draws)).visible
    assert found is not None
    assert found.words == "code tril"
    assert contract(seeded(DrawsIfAsked)).visible is None


def test_a_window() -> None:
    found = contract(set_to(sliding_window=4, use_sliding_window=False)).window
    assert found is not None
    assert (found.value.size, found.value.name, found.value.own, found.value.switch) == (
        4,
        "sliding_window",
        True,
        False,
    )
    assert contract(seeded(Attention)).window is None
    stated = contract(seeded(Attention), window=3).window
    assert stated is not None
    assert (stated.value.size, stated.source) == (3, "spec")


def test_documents() -> None:
    found = contract(seeded(Named)).documents
    assert found is not None
    assert (found.value, found.source) == (("document_ids",), "code")
    assert contract(seeded(Attention)).documents is None


@pytest.mark.parametrize(
    ("mask", "triangle"),
    [
        (torch.ones(4, 4).tril(), True),
        (torch.full((4, 4), -torch.inf).triu(1), True),
        (torch.ones(3, 5).tril(2), True),
        (torch.ones(4, 4).tril(1), False),
        (torch.ones(4, 4).tril().triu(-1), False),  # a window
        (torch.ones(4, 4), False),
        (torch.arange(16.0).view(4, 4), False),
        (torch.ones(4), False),
    ],
)
def test_what_a_triangle_is(mask: Tensor, triangle: bool) -> None:
    assert is_triangle(mask) == triangle
