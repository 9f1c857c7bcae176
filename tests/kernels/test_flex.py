"""How FlexAttention is called. What it computes is in test_conformance.py and, compiled on a GPU, in test_cuda.py."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.kernels import flex


class Attends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return headwise.attention(x, x, x, mask=headwise.masks.causal(), kernel="flex")


@pytest.mark.parametrize("around", ["nothing", "watch", "edit"])
def test_it_is_compiled_under_watch_and_edit_too(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both make torch.compile run the model as it is: FlexAttention would store every score."""

    def compiled_or_not(q: Tensor) -> Tensor:
        return q + 1 if torch.compiler.is_dynamo_compiling() else q - 1

    compiled = torch.compile(compiled_or_not, backend="eager")

    def attend(q: Tensor, *_: Any, **__: Any) -> Tensor:
        return compiled(torch.zeros_like(q))

    monkeypatch.setattr(flex, "_flex_attention", lambda device: attend)
    monkeypatch.setattr("headwise.edits.run.attention", functools.partial(headwise.attention, kernel="flex"))
    model, x = Attends(), torch.randn(1, 2, 8, 16)
    contexts = {
        "nothing": torch.compiler.set_stance("default"),  # whatever another test has left
        "watch": headwise.watch(model),
        "edit": headwise.edit(model, headwise.edits.block("*", queries=5, keys=2)),
    }
    with torch.no_grad(), contexts[around]:
        out = model(x)
    assert (out == 1).all()
