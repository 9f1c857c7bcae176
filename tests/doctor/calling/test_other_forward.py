"""Blocks of images whose caller sets the sides of the map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.doctor.calling.other_forward import with_sides
from headwise.doctor.patient import Patient


class Block(nn.Module):
    """As in Swin Transformer for detection: `block.H, block.W = H, W` comes before every call."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.H = self.W = None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, self.W, x.shape[-1])  # each row of the map attends to itself
        assert x.shape[1] == self.H * self.W
        return x + self.attention(rows, rows, rows)[0].reshape(x.shape)


def test_sides_that_the_caller_sets_are_with_sides() -> None:
    patient = Patient(Block())
    interface = patient.interface
    inputs = interface.inputs(2)
    assert interface.run(inputs).output.shape == inputs.query.shape
    assert "H" not in vars(type(patient.original))


def test_other_modules_are_left_as_they_are() -> None:
    for held in ({"H": None}, {"H": 4, "W": 6}, {"H": None, "h": None}):
        module = nn.Linear(2, 2)
        vars(module).update(held)
        assert with_sides(module) is None
        assert module(torch.ones(1, 2)).shape == (1, 2)
