"""Changes of RoPE's frequencies, most for texts longer than in training: linear, dynamic NTK, YaRN, LongRoPE, …

Each computes the same as Hugging Face's function of that name."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.nn.options import positive, whole

Length = int | Tensor | None  # the number of tokens
Device = torch.device | str | None


class RopeScaling:
    """A change of RoPE's frequencies θ_i = base^(-2i/D), for i = 0 … D/2 - 1.

    Attributes:
        depends_on_length: whether the frequencies depend on the number of tokens.
        amplitude: the factor on cos and sin, for both queries and keys.
    """

    depends_on_length: ClassVar[bool] = False

    @property
    def amplitude(self) -> float:
        return 1.0

    def check(self, dim: int) -> None:
        """Raise ArgumentError unless RoPE with this scaling can turn `dim` dimensions."""

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        """Compute θ_i in radians per position, float32 [dim / 2]. `length`: number of tokens, if θ depends on it."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Linear(RopeScaling):
    """Frequencies θ_i / factor: positions are compressed into the training's range (Chen et al. 2023, equation 4)."""

    factor: float

    def __post_init__(self) -> None:
        positive("Linear.factor", self.factor)

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        return unscaled(dim, base, device) / self.factor


@dataclasses.dataclass(frozen=True)
class DynamicNTK(RopeScaling):
    """The base of the frequencies grows with the length L, if L is above the original length (Peng et al. 2023, §3.3).

        base' = base · (1 + factor · (L - original) / original)^(D / (D - 2)),   L > original

    Since the base changes with every token, a cache must keep the keys before rotation.
    """

    factor: float
    original_length: int

    depends_on_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("DynamicNTK.factor", self.factor)
        whole("DynamicNTK.original_length", self.original_length)

    def check(self, dim: int) -> None:
        if dim < 4:
            raise ArgumentError(f"DynamicNTK: expected at least 4 rotated dimensions. Received: rotary_dim={dim}")

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        if length is None:
            return unscaled(dim, base, device)
        # A tensor, not a Python number: a compiled graph must not depend on the value of the length.
        if isinstance(length, Tensor):
            length = length.to(device=device, dtype=torch.float32)
        else:
            length = torch.full((), length, dtype=torch.float32, device=device)
        beyond = (length - self.original_length).clamp(min=0.0)
        stretched = base * (1.0 + self.factor * beyond / self.original_length) ** (dim / (dim - 2))
        return 1.0 / stretched ** _exponents(dim, device)


@dataclasses.dataclass(frozen=True)
class Yarn(RopeScaling):
    """High frequencies stay, low frequencies are divided by `factor`, others are between (Peng et al. 2023, §3.2-3.4).

        θ'_i = (1 - γ_i) · θ_i / factor + γ_i · θ_i

    γ_i falls from 1 to 0 between two dimensions: the one that makes `beta_fast` turns in `original_length` tokens, and
    the one that makes `beta_slow` turns (§3.2, but linear in the dimension, not in the turns, as in the authors' code;
    `truncate` rounds these two dimensions outwards).
    cos and sin are multiplied by `attention_factor`, which is 0.1 ln(factor) + 1 (§3.4), or DeepSeek's
    m(mscale) / m(mscale_all_dim) with m(x) = 0.1 x ln(factor) + 1 if both are given.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            positive(f"Yarn.{name}", getattr(self, name))
        if self.attention_factor is not None:
            positive("Yarn.attention_factor", self.attention_factor)
        whole("Yarn.original_length", self.original_length)
        if self.beta_fast < self.beta_slow:
            raise ArgumentError(
                f"Yarn: expected beta_fast >= beta_slow. Received: beta_fast={self.beta_fast}, "
                f"beta_slow={self.beta_slow}"
            )

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    @property
    def softmax_factor(self) -> float:
        """The factor by which DeepSeek multiplies the softmax scale, besides `amplitude`: m(mscale_all_dim)², or 1."""
        return self._mscale(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        turns = base ** _exponents(dim, device)
        low, high = self._dimension(self.beta_fast, dim, base), self._dimension(self.beta_slow, dim, base)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001  # avoids a division by 0; γ then falls in one step
        slow = ((torch.arange(dim // 2, dtype=torch.float32, device=device) - low) / (high - low)).clamp(0.0, 1.0)
        fast = 1.0 - slow
        return 1.0 / (self.factor * turns) * (1.0 - fast) + 1.0 / turns * fast

    def _dimension(self, turns: float, dim: int, base: float) -> float:
        """Compute the dimension i (a fraction) whose frequency makes `turns` turns in `original_length` tokens."""
        return dim * math.log(self.original_length / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

    def _mscale(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1.0 else 1.0


@dataclasses.dataclass(frozen=True)
class Llama3(RopeScaling):
    """The scaling of Llama 3.1: short wavelengths λ = 2π / θ stay, long wavelengths get θ divided by `factor`.

        θ' = θ                                          λ < original / high_freq_factor
        θ' = θ / factor                                 λ > original / low_freq_factor
        θ' = (1 - s) θ / factor + s θ                   else, s = (original/λ - low) / (high - low)

    From Meta's code (`apply_scaling` of llama-models); "The Llama 3 Herd of Models" (2024) has no formula.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            positive(f"Llama3.{name}", getattr(self, name))
        whole("Llama3.original_length", self.original_length)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ArgumentError(
                f"Llama3: expected high_freq_factor > low_freq_factor. Received: "
                f"high_freq_factor={self.high_freq_factor}, low_freq_factor={self.low_freq_factor}"
            )

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        theta = unscaled(dim, base, device)
        wavelength = 2.0 * math.pi / theta
        smooth = (self.original_length / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        # Clamped to [0, 1], the middle case includes the other two.
        smooth = smooth.clamp(0.0, 1.0)
        return (1.0 - smooth) * theta / self.factor + smooth * theta


@dataclasses.dataclass(frozen=True)
class LongRope(RopeScaling):
    """Each frequency has a divisor of its own: one set up to `original_length` tokens, one beyond (Ding et al. 2024).

        θ'_i = θ_i / short_factor[i],   θ'_i = θ_i / long_factor[i] if L > original

    cos and sin are multiplied by `attention_factor`, by default sqrt(1 + ln(factor) / ln(original)), or 1 if factor
    <= 1. `factor` is the longest length divided by the original one. Since the frequencies change with the length, a
    cache must keep the keys before rotation.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float
    attention_factor: float | None = None

    depends_on_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for divisor in getattr(self, name):
                positive(f"LongRope.{name}", divisor)
        positive("LongRope.factor", self.factor)
        whole("LongRope.original_length", self.original_length)

    def check(self, dim: int) -> None:
        if not len(self.short_factor) == len(self.long_factor) == dim // 2:
            raise ArgumentError(
                f"LongRope: expected {dim // 2} divisors, one for each pair of the {dim} rotated dimensions. Received: "
                f"{len(self.short_factor)} in short_factor, {len(self.long_factor)} in long_factor"
            )

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1.0 + math.log(self.factor) / math.log(self.original_length)) if self.factor > 1.0 else 1.0

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        short, long = (torch.tensor(x, device=device) for x in (self.short_factor, self.long_factor))
        if length is None:
            return unscaled(dim, base, device) / short
        # A tensor, not a Python number: a compiled graph must not depend on the value of the length.
        beyond = torch.as_tensor(length, device=device) > self.original_length
        return unscaled(dim, base, device) / torch.where(beyond, long, short)


@dataclasses.dataclass(frozen=True)
class Proportional(RopeScaling):
    """Only the first `share` of the frequencies turn, the others are 0; all are divided by `factor` (Gemma 4).

    In contrast to `rotary_dim`, the frequencies that turn are those of RoPE over all dimensions.
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        positive("Proportional.share", self.share)
        positive("Proportional.factor", self.factor)

    def frequencies(self, dim: int, base: float, length: Length = None, device: Device = None) -> Tensor:
        turning = torch.arange(dim // 2, device=device) < int(self.share * dim // 2)
        return unscaled(dim, base, device) * turning / self.factor


def unscaled(dim: int, base: float, device: Device = None) -> Tensor:
    """Compute RoPE's frequencies base^(-2i/dim), i = 0 … dim/2 - 1: float32 [dim / 2] (Su et al. 2021, equation 15)."""
    return 1.0 / base ** _exponents(dim, device)


def _exponents(dim: int, device: Device) -> Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
