"""The copy of a module for trials: as deepcopy makes it, whatever its parts say of how they are copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import copied
from headwise.errors import DoctorError


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.again = self.one  # shared
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.one.weight
        self.settings: dict[str, Any] = {}
        self.same_settings = self.settings
        self.layers = [self.one]  # outside of what nn.Module knows
        self.register_buffer("table", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.again(x))


def test_what_is_shared_stays_shared_and_nothing_is_shared_with_the_original() -> None:
    module = Whole().eval()
    found = copied(module)
    assert isinstance(found, Whole)
    assert found.one is found.again is found.layers[0] is not module.one
    assert found.tied.weight is found.one.weight is not module.one.weight
    assert found.settings is found.same_settings is not module.settings
    assert list(found.state_dict()) == list(module.state_dict())
    assert not found.training
    with torch.no_grad():
        found.one.weight.zero_()
        found.table.zero_()
    found.one.register_forward_hook(lambda *_: None)
    assert bool(module.one.weight.any())
    assert bool(module.table.all())
    assert not module.one._forward_hooks


def test_what_cannot_be_copied_is_said() -> None:
    module = nn.Linear(4, 4)
    module.stream = (x for x in "ab")  # type: ignore[assignment]
    with pytest.raises(DoctorError, match="Linear cannot be copied"):
        copied(module)
