"""Attention computed again from a layer's weights: each mistake gives the layer's output, and no other does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.finding import NotChecked
from headwise.doctor.laws.recomputed import Match, recompute
from headwise.doctor.subject import Subject

PLAIN = {
    "": "",
    "width": "wrong-scale",
    "heads": "softmax-axis",
    "split": "head-split",
    "merge": "head-merge",
    "transposed": "weights-transposed",
    "keys for values": "projection-reused",
}
MASKS = {
    "ignored": "mask-ignored",
    "rows": "mask-broadcast",
    "zero": "mask-multiplied",
    "after": "mask-after-softmax",
}


class Layer(nn.Module):
    """With kernels as Keras has them: [in, H, D], and of the output [H, D, out]."""

    def __init__(self, wrong: str = "", *, causal: bool = False) -> None:
        super().__init__()
        self.wrong, self.causal = wrong, causal
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(16, 4, 4) * 0.4) for _ in range(3))
        self.wo, self.out_bias = nn.Parameter(torch.randn(4, 4, 16) * 0.4), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: [batch, keys], True = may be attended to."""
        wrong = self.wrong
        q, k, v = (x @ w.flatten(1) for w in (self.wq, self.wk, self.wk if wrong == "keys for values" else self.wv))
        if wrong == "split":
            q, k, v = (y.reshape(len(x), 4, x.shape[1], 4) for y in (q, k, v))
        else:
            q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.mT / (4.0 if wrong == "width" else 2.0)
        if self.causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        after: Tensor | float = 1.0
        if mask is not None and wrong != "ignored":
            if wrong == "after":
                after = mask[:, None, None].to(x.dtype)
            else:
                hidden = ~mask[:, None, :, None] if wrong == "rows" else ~mask[:, None, None]
                scores = scores.masked_fill(hidden, 0.0 if wrong == "zero" else -1e9)
        weights = scores.softmax(1 if wrong == "heads" else -1) * after
        y = (weights.mT if wrong == "transposed" else weights) @ v
        y = y.reshape(x.shape) if wrong == "merge" else y.transpose(1, 2).flatten(2)
        return y @ self.wo.flatten(0, 1) + self.out_bias


def examine(module: nn.Module) -> dict[str, Match]:
    return recompute(Subject(module.eval()))


def names(module: nn.Module) -> dict[str, str]:
    """The mistake of each part, "" if there is none."""
    return {x: match.mistake.name if match.mistake else "" for x, match in examine(module).items()}


UNMASKED = ("heads", "transposed", "split")  # of these a causal mask hides no future


@pytest.mark.parametrize("wrong", PLAIN)
def test_the_mistake_that_gives_the_output_is_named(wrong: str) -> None:
    torch.manual_seed(0)
    for causal in (False, True) if wrong not in UNMASKED else (False,):
        module = Layer(wrong, causal=causal)
        assert names(module) == {"": PLAIN[wrong], "mask": ""}
        assert examine(module)[""].right["causal"] is causal


@pytest.mark.parametrize("wrong", MASKS)
def test_what_is_wrong_with_a_mask_is_named(wrong: str) -> None:
    torch.manual_seed(0)
    assert names(Layer(wrong)) == {"": "", "mask": MASKS[wrong]}


class Fused(Layer):
    """One kernel for all three."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(16, 48) * 0.4)
        del self.wq, self.wk, self.wv

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = (w.unflatten(1, (4, 4)) for w in self.qkv.chunk(3, 1))
        self.__dict__.update(zip(("wq", "wk", "wv"), weights, strict=True))
        return super().forward(x, mask)


def test_one_kernel_for_all_three() -> None:
    torch.manual_seed(0)
    subject = Subject(Fused().eval())
    subject.interface.__dict__["heads"] = 4
    assert recompute(subject)[""].mistake is None


class Sigmoid(Layer):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x.sigmoid(), mask)


def test_what_is_something_else_is_not_named() -> None:
    with pytest.raises(NotChecked, match="neither the definition nor a known mistake"):
        examine(Sigmoid())
    assert examine(nn.MultiheadAttention(16, 4, batch_first=True)) == {}
