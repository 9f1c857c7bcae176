"""Files that earlier versions wrote open, and say what they said then. tests/data/README.md says how they were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import headwise
from headwise.records import CallSite, Coverage, Site
from headwise.records.tensor_file import TensorFile

DATA = Path(__file__).parents[1] / "data"


def wave(*shape: int, step: float) -> torch.Tensor:
    """sin(0), sin(step), sin(2 · step), … in this shape, float64."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).mul(step).sin().view(shape)


def close(x: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(x.double(), expected, atol=1e-6, rtol=1e-5)


def test_a_file_of_0_1_0_opens_with_the_same_weights() -> None:
    seen = headwise.load(DATA / "seen-0.1.0.hw", verify=True)
    assert seen.layers == ["decoder.0.self_attn", "decoder.0.cross_attn"]

    s = 2.0 * torch.tanh(0.5 * wave(2, 2, 4, 3, step=0.7) @ wave(2, 1, 4, 3, step=1.1).mT / 2.0)
    s = s + wave(2, 4, 4, step=0.3)
    allowed = torch.ones(4, 4).tril().bool() & (torch.arange(4) < torch.tensor([4, 3])[:, None, None, None])
    total = (s.exp() * allowed).sum(-1, keepdim=True) + torch.tensor([0.25, -1.0]).double().exp()[:, None, None]
    close(seen[0].weights(), s.exp() * allowed / total)

    s = wave(2, 2, 2, 3, step=0.9) @ wave(2, 2, 5, 3, step=0.2).mT / 3**0.5
    allowed = torch.arange(5) < torch.tensor([5, 2])[:, None, None, None]
    close(seen[1].weights(), s.exp() * allowed / (s.exp() * allowed).sum(-1, keepdim=True))


def test_a_file_of_0_1_0_opens_with_all_that_stands_beside_the_weights() -> None:
    seen = headwise.load(DATA / "seen-0.1.0.hw")
    own, other = seen
    assert (own.scale, own.softcap, own.dropout) == (0.5, 2.0, 0.125)
    assert own.site == Site("decoder.0.self_attn", 0, "self", True, 2, 1, call=0)
    assert other.site == Site("decoder.0.cross_attn", 0, "cross", False, 2, 2, call=3)
    close(own.v, wave(2, 1, 4, 2, step=1.3))
    close(own.grad, wave(2, 2, 4, 2, step=0.6))
    close(own.output_weight, wave(2, 2, 6, step=0.8))
    assert (own.row_names, other.row_names, other.col_names) == (None, ("first", "second"), None)
    assert seen.row_labels(own) == ("我", "爱", "猫", "。")
    assert seen.row_labels(own, 1) == ("[CLS]", "das", "ist", "gut")
    assert seen.row_labels(other) == ("first", "second")
    assert seen.col_labels(other, 1) == ("to", "be", "or", "not", "🐈")
    assert seen.coverage() == Coverage(
        (
            CallSite("decoder.0.self_attn", "seen", 1, "scaled_dot_product_attention"),
            CallSite("decoder.0.cross_attn", "seen", 1, "scaled_dot_product_attention"),
            CallSite("decoder.1.linear_attn", "missed", 2, "no softmax was recognised"),
        ),
        ("the fast path was turned off",),
    )


def said(path: Path) -> Any:
    """What a file says, but for the tensors."""
    file = TensorFile(path)
    description = json.loads(file.metadata["description"])
    return file.metadata["headwise"], description, json.loads(file["tokens"].numpy().tobytes())


def test_what_is_saved_again_is_a_file_that_0_1_0_can_read(tmp_path: Path) -> None:
    """0.1.0 wants exactly the fields that it wrote."""
    headwise.load(DATA / "seen-0.1.0.hw").save(tmp_path / "again.hw")
    assert said(tmp_path / "again.hw") == said(DATA / "seen-0.1.0.hw")
