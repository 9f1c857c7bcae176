"""The copy of a module for trials."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.doctor.calling.copying import copied
from headwise.errors import DoctorError


def test_what_is_shared_stays_shared_and_nothing_is_shared_with_the_original() -> None:
    module = nn.Sequential(one := nn.Linear(4, 4), one, nn.Linear(4, 4)).eval()
    module[2].weight = one.weight
    module.layers = [one]  # outside of what nn.Module knows
    found = copied(module)
    assert found[0] is found[1] is found.layers[0] is not one
    assert found[2].weight is found[0].weight is not one.weight
    assert not found.training
    with torch.no_grad():
        found[0].weight.zero_()
    found[0].register_forward_hook(lambda *_: None)
    assert bool(one.weight.any())
    assert not one._forward_hooks


def test_what_cannot_be_copied_is_said() -> None:
    module = nn.Linear(4, 4)
    module.stream = (x for x in "ab")  # type: ignore[assignment]
    with pytest.raises(DoctorError, match="Linear cannot be copied"):
        copied(module)
