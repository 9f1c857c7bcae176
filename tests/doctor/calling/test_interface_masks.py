"""What mask arguments mean, found by trial: which argument, dtype, shape and polarity; and masks that do not work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import headwise.nn as hw
from headwise.doctor.calling.interface import Spec, discover
from headwise.errors import DoctorError


class Masked(nn.Module):
    """Self-attention whose mask is used as `rule` says: scores, mask -> scores."""

    def __init__(self, rule: Callable[[Tensor, Tensor], Tensor], causal: bool = False, heads: int = 4) -> None:
        super().__init__()
        self.rule, self.num_heads, self.built_in = rule, heads, causal
        self.qkv = nn.Linear(24, 72)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.built_in:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        scores = scores if mask is None else self.rule(scores, mask)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def hide(scores: Tensor, where: Tensor) -> Tensor:
    return scores.masked_fill(where, -torch.inf)


def tiled(scores: Tensor, mask: Tensor) -> Tensor:
    b, h, q, k = scores.shape
    return hide(scores.reshape(b * h, q, k), ~mask).view(b, h, q, k)


# what is done with the mask; form, dtype and shape that should be found first
RULES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, torch.dtype, str]] = {
    "zero hides": (lambda s, m: hide(s, m == 0), "allowed", torch.bool, "B1QK"),
    "true hides": (hide, "forbidden", torch.bool, "B1QK"),
    "keys": (lambda s, m: hide(s, ~m[:, None, None, :].bool()), "allowed", torch.bool, "BK"),
    "padding": (lambda s, m: hide(s, m[:, None, None, :].bool()), "forbidden", torch.bool, "BK"),
    "one for all": (lambda s, m: hide(s, m.view(s.shape[-2:]) == 0), "allowed", torch.bool, "QK"),
    "heads in the batch": (tiled, "allowed", torch.bool, "(BH)QK"),
    "added": (lambda s, m: s + m, "additive", torch.float32, "B1QK"),
    "no bool": (lambda s, m: s + (1 - m) * -1e9, "allowed", torch.int64, "B1QK"),
}


@pytest.mark.parametrize(("name", "causal"), [*((name, False) for name in RULES), ("keys", True), ("added", True)])
def test_what_a_mask_means(name: str, causal: bool) -> None:
    rule, form, dtype, shape = RULES[name]
    found = discover(Masked(rule, causal))
    first = found.masks[0]
    assert (first.form, first.dtype, first.shape, first.works) == (form, dtype, shape, True)
    check_that_it_blocks(found.module)


def check_that_it_blocks(module: nn.Module) -> None:
    """What `run` is told to hide does not matter, by whichever argument it was said."""
    found = discover(module.eval())
    inputs = found.inputs()
    keys = inputs.query if inputs.key is None else inputs.key
    real = torch.ones(keys.shape[:2], dtype=torch.bool)
    real[:, 2] = False
    if any(m.by_example for m in found.masks):
        real[0, 3] = False
    changed = torch.where(real[..., None], keys, torch.randn(keys.shape))
    other = type(inputs)(changed) if inputs.key is None else type(inputs)(inputs.query, changed, inputs.value)
    told = found.run(inputs, padding=real).output, found.run(other, padding=real).output
    untold = found.run(inputs).output, found.run(other).output
    same = real if inputs.key is None and told[0].shape[1] == real.shape[1] else ...
    torch.testing.assert_close(told[0][same], told[1][same])
    assert (untold[0][same] - untold[1][same]).abs().max() > 1e-2 * untold[0].std()


def test_cells_are_put_into_the_module_s_own_mask() -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True)
    found = discover(module)
    inputs = found.inputs(key_length=5)
    allowed = torch.ones(3, 5, 5, dtype=torch.bool).tril()
    allowed[1] = torch.eye(5, dtype=torch.bool)
    expected = module(inputs.query, inputs.key, inputs.value, attn_mask=(~allowed).repeat_interleave(4, 0))[0]
    torch.testing.assert_close(found.run(inputs, allowed=allowed).output, expected)
    torch.testing.assert_close(
        found.run(inputs, allowed=allowed[0]).output,
        module(inputs.query, inputs.key, inputs.value, attn_mask=~allowed[0])[0],
    )


# Broken ones: nothing blocks, and the best guess is kept for the checks to look at.
BROKEN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "ignored": (lambda s, m: s, "allowed"),
    "true hides, fill too small": (lambda s, m: s.masked_fill(m == 1, -4.0), "forbidden"),
    "hides queries": (lambda s, m: s.masked_fill(m[:, None, :, None] == 0, -1e4), "allowed"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_mask_that_does_not_work_is_kept(name: str) -> None:
    rule, form = BROKEN[name]
    (mask,) = discover(Masked(rule)).masks
    assert not mask.works
    assert mask.form == form


def test_a_mask_that_must_be_given() -> None:
    class Must(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, src: Tensor, tgt: Tensor, src_pad: Tensor, tgt_mask: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.a(tgt, tgt, tgt, attn_mask=~tgt_mask)[0]
            return self.a(hidden, src, src, key_padding_mask=src_pad)

    found = discover(Must())
    first = {m.parameter: m for m in reversed(found.masks)}
    assert (first["src_pad"].shape, first["src_pad"].form, first["src_pad"].own) == ("BK", "forbidden", False)
    assert (first["tgt_mask"].form, first["tgt_mask"].own) == ("allowed", True)
    inputs = found.inputs()
    causal = torch.ones(5, 5, dtype=torch.bool)
    expected = found.module(inputs.key, inputs.query, torch.zeros(3, 7, dtype=torch.bool), causal)[0]
    torch.testing.assert_close(found.run(inputs).output, expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: nn.TransformerDecoderLayer(32, 4, 64, batch_first=True),
            {"memory_mask": False, "memory_key_padding_mask": False, "tgt_mask": True, "tgt_key_padding_mask": True},
        ),
        (lambda: nn.MultiheadAttention(32, 4), {"attn_mask": False, "key_padding_mask": False}),
        (lambda: hw.EncoderLayer(32, 4), {"mask": False, "real": False}),
    ],
)
def test_masks_of_the_memory_and_of_the_queries_own_tokens(
    make: Callable[[], nn.Module], expected: dict[str, bool]
) -> None:
    found = discover(make())
    assert {m.parameter: m.own for m in found.masks} == expected
    assert all(m.works for m in found.masks)
    if found.takes != "qkv":
        check_that_it_blocks(found.module)


def test_a_mask_that_cannot_say_it_raises() -> None:
    some, triangle = torch.tensor([[True] * 5, [True] * 4 + [False], [True] * 5]), torch.ones(5, 5).tril().bool()
    found = discover(Masked(RULES["one for all"][0]))
    with pytest.raises(DoctorError, match="no mask argument that can express which keys of each example are real"):
        found.run(found.inputs(), padding=some)
    keys_only = discover(Masked(RULES["keys"][0]))
    with pytest.raises(DoctorError, match=r"can express which cells are allowed. Its mask arguments: mask"):
        keys_only.run(keys_only.inputs(), allowed=triangle)


class Lengths(Masked):
    def __init__(self) -> None:
        super().__init__(lambda s, m: hide(s, torch.arange(s.shape[-1]) >= m[:, None, None, None]))

    def forward(self, x: Tensor, valid_lens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, valid_lens)


def test_valid_lengths() -> None:
    found = discover(Lengths())
    assert [(m.parameter, m.shape, m.what, m.works) for m in found.masks] == [("valid_lens", "B", "keys", True)]
    inputs = found.inputs()
    real = torch.arange(5) < torch.tensor([3, 5, 1])[:, None]
    expected = found.module(inputs.query, torch.tensor([3, 5, 1]))
    torch.testing.assert_close(found.run(inputs, padding=real).output, expected)
    with pytest.raises(DoctorError, match=r"Its mask arguments: valid_lens \[B\], the number of real keys"):
        found.run(inputs, padding=real.flip(1))


@pytest.mark.parametrize(("form", "works"), [("forbidden", True), ("allowed", False)])
def test_a_stated_mask_is_taken_at_its_word(form: Literal["forbidden", "allowed"], works: bool) -> None:
    found = discover(Masked(RULES["true hides"][0]), spec=Spec(mask=form, mask_shape="B1QK"))
    assert [(m.form, m.shape, m.works) for m in found.masks] == [(form, "B1QK", works)]


class Pooling(nn.Module):
    """One vector for each row; `mask` is required. A mask [B, 1, K] is broadcast over the batch, and hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.context = nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        score = self.context(self.proj(h).tanh()).squeeze(-1)
        w = score.masked_fill(~mask, torch.finfo(score.dtype).min).softmax(1) * mask
        return (w.unsqueeze(-1) * h).sum(1)


def test_a_required_mask_that_would_be_broadcast_over_the_batch() -> None:
    masks = discover(Pooling()).masks
    assert next((m.shape, m.form, m.works) for m in masks) == ("BK", "allowed", True)
