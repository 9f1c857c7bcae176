"""RoPE: queries and keys are rotated by angles proportional to their positions.

So a score depends on the distance between two tokens, not on their absolute positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headwise.errors import ArgumentError
from headwise.nn.options import check_known, positive, whole
from headwise.nn.positions import rope_config
from headwise.nn.positions.rope_scaling import RopeScaling, unscaled
from headwise.nn.positions.rotation import turn
from headwise.nn.positions.scheme import Positions, check_ids


class Rope(Positions):
    """Rotary positions. Su et al. 2021 (RoFormer), equations 14-16 and 34.

    For a query or key at position m, each pair i of dimensions is turned by the angle m · θ_i, θ_i = base^(-2i/D):

        (a, b) → (a cos mθ - b sin mθ,  b cos mθ + a sin mθ)

    The angles are float32 under autocast too, and after `.half()` or `.to(bfloat16)`.

    Args:
        head_dim: D, the dimensions of queries and keys.
        base: the base of the frequencies θ_i.
        interleaved: which dimensions are a pair: (0, 1), (2, 3) … as in the paper, in GPT-J and DeepSeek; or, if
            False, (0, D/2), (1, D/2 + 1) … as in GPT-NeoX, Llama and most later models. For a checkpoint, choose the
            pairs that it was trained with.
        rotary_dim: only the first `rotary_dim` dimensions are turned (GPT-J, GPT-NeoX); None = D.
        scaling: for long texts, `Linear`, `DynamicNTK`, `Yarn` or `Llama3`; None = none.

    Raises:
        ArgumentError: dimensions that are odd or not positive, rotary_dim > head_dim, an unknown scaling.

    >>> Rope(64, base=500000.0)
    Rope(64, base=500000.0)
    """

    inverse_frequencies: Tensor  # [rotary_dim / 2] float32: θ, radians per position

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim, least=2)
        self.rotary_dim = head_dim if rotary_dim is None else whole("rotary_dim", rotary_dim, least=2)
        if self.rotary_dim % 2:
            name = "head_dim" if rotary_dim is None else "rotary_dim"
            raise ArgumentError(
                f"{name}: expected an even number, because pairs are rotated. Received: {name}={self.rotary_dim}"
            )
        if self.rotary_dim > head_dim:
            raise ArgumentError(
                f"rotary_dim: expected at most head_dim = {head_dim}. Received: rotary_dim={rotary_dim}"
            )
        if scaling is not None:
            if not isinstance(scaling, RopeScaling):
                raise ArgumentError(
                    f"scaling: expected None or one of Linear, DynamicNTK, Yarn, Llama3. Received: scaling={scaling!r}"
                )
            scaling.check(self.rotary_dim)
        check_known("interleaved", interleaved, (False, True))
        self.base = float(positive("base", base))
        if self.base <= 1.0:
            raise ArgumentError(f"base: expected a number above 1. Received: base={base}")
        self.interleaved = interleaved
        self.scaling = scaling
        self.depends_on_length = scaling is not None and scaling.depends_on_length
        self._register_constants()

    @classmethod
    def from_hf(
        cls,
        config: Any,
        *,
        head_dim: int | None = None,
        interleaved: bool | None = None,
        layer_type: str | None = None,
    ) -> Rope:
        """Make the RoPE of a Hugging Face config, from its rope_parameters (or the older rope_scaling, rope_theta …).

        Args:
            config: a transformers config, or the dict in its config.json; transformers itself need not be installed.
            head_dim: D; needed if the config does not determine it (by head_dim, qk_rope_head_dim, or the hidden size
                divided by the number of heads).
            interleaved: None = as the config says (`rope_interleave`), or else as in models of the config's model_type.
            layer_type: the type of layer, for a config with one RoPE per type (Gemma 3).

        Raises:
            CheckpointError: the config has a rope type or an option of a rope type that is not supported.
        """
        return cls(**rope_config.read(config, head_dim=head_dim, interleaved=interleaved, layer_type=layer_type))

    def rotate(self, x_BHSD: Tensor, position_ids: Tensor, length: int | Tensor | None = None) -> Tensor:
        """Rotate queries or keys x [B, H, S, D] at positions [S] or [B, S] by their angles, in the dtype of x.

        Only `DynamicNTK` needs `length`, the number of tokens seen so far.
        """
        check_ids("position_ids", position_ids, x_BHSD.shape[0], x_BHSD.shape[2])
        phases = position_ids[..., None].float() * self._frequencies(length)
        return turn(x_BHSD, phases, amplitude=self.amplitude, interleaved=self.interleaved)

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin: 1 except for YaRN (attention_scaling in Hugging Face)."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def extra_repr(self) -> str:
        parts = [f"{self.head_dim}, base={self.base}"]
        parts += ["interleaved=True"] if self.interleaved else []
        parts += [f"rotary_dim={self.rotary_dim}"] if self.rotary_dim != self.head_dim else []
        parts += [f"scaling={self.scaling}"] if self.scaling is not None else []
        return ", ".join(parts)

    def _frequencies(self, length: int | Tensor | None) -> Tensor:
        if self.scaling is None or not self.depends_on_length:
            return self.inverse_frequencies
        if length is None:
            raise ArgumentError(
                f"length: expected the number of tokens, {self.scaling} depends on it. Received: length=None"
            )
        return self.scaling.frequencies(self.rotary_dim, self.base, length, self.inverse_frequencies.device)

    def _constants(self) -> dict[str, Tensor]:
        if self.scaling is None:
            return {"inverse_frequencies": unscaled(self.rotary_dim, self.base, "cpu")}
        return {"inverse_frequencies": self.scaling.frequencies(self.rotary_dim, self.base, None, "cpu")}
