"""Linear attention and the sum that it divides by."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws import normaliser
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.laws.specimens import Attention
from tests.doctor.laws.told import names, told


class Linear(nn.Module):
    """padding_mask: [B, N], True = a real token."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (4, 4)) for w in (self.q, self.k, self.v))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        if padding_mask is not None:
            k, v = self.hide(k, v, padding_mask[..., None, None].to(x))
        out = (q[..., None] * (k[..., None] * v[..., None, :]).cumsum(1)).sum(-2)
        return self.out(self.normalised(out, q, k).flatten(2))

    def hide(self, k: Tensor, v: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        return k * real, v * real

    def normalised(self, out: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return out / ((q * k.cumsum(1)).sum(-1, keepdim=True) + 1e-9)


class OverHeads(Linear):
    def normalised(self, out: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return out / (q * k.cumsum(2)).sum(-1, keepdim=True)


class Times(Linear):
    def normalised(self, out: Tensor, q: Tensor, k: Tensor) -> Tensor:
        denominator = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return out * denominator


class ValuesOnly(Linear):
    def hide(self, k: Tensor, v: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        return k, v * real


class Retention(Linear):
    """Without a sum, followed by a norm."""

    def normalised(self, out: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return out / out.square().mean(-1, keepdim=True).sqrt()


class Unnormalised(Linear):
    def normalised(self, out: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return out


class InBlocks(nn.Module):
    """A softmax over two halves of the keys, merged (ring attention); one projection for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(8 * x))
        (out, most, total), (other, most_, total_) = (
            self.block(q, *pair) for pair in zip(k.chunk(2, 2), v.chunk(2, 2), strict=True)
        )
        new = most.maximum(most_)
        old_scale, scale = (most - new).exp(), (most_ - new).exp()
        out = out * old_scale + other * scale
        return self.proj((out / (total * self.kept(old_scale) + total_ * scale)).transpose(1, 2).flatten(2))

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).unbind(0)

    def block(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = q @ k.mT / 2
        most = scores.amax(-1, keepdim=True)
        weights = (scores - most).exp()
        return weights @ v, most, weights.sum(-1, keepdim=True)

    def kept(self, scale: Tensor) -> Tensor:
        return scale


class SumNotRescaled(InBlocks):
    def kept(self, scale: Tensor) -> Tensor:
        return scale.clamp(min=1)


class EachHeadTogether(InBlocks):
    """[H, 3, D]: the last third of the projection holds queries and keys, too."""

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(-1, (4, 3, 4)).permute(3, 0, 2, 1, 4).unbind(0)


class ASigmoidOfEach(Attention):
    """The weights of a row are independent of each other and do not sum to one."""

    def normalise(self, scores: Tensor) -> Tensor:
        return (scores - scores.new_tensor(scores.shape[-1]).log()).sigmoid()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (OverHeads, "the sum that it divides by is not that of its weights"),
        (Times, "it does not divide by their sum"),
        (ValuesOnly, "padded keys are left out of the values, and counted in the sum"),
        (SumNotRescaled, "off by up to"),
    ],
)
def test_the_wrong_sum(module: type[nn.Module], said: str) -> None:
    (finding,) = told(normaliser, module)
    assert (finding.name, finding.severity) == ("normaliser-wrong", "bug")
    assert said in finding.evidence


@pytest.mark.parametrize("module", [Linear, InBlocks])
def test_the_right_sum(module: type[nn.Module]) -> None:
    assert names(normaliser, module) == []


@pytest.mark.parametrize("module", [Unnormalised, Retention, Attention, EachHeadTogether, ASigmoidOfEach])
def test_what_does_not_normalise(module: type[nn.Module]) -> None:
    with pytest.raises(NotChecked):
        list(normaliser.check(Patient(module())))
