"""RoPE with three positions for each token, time, row and column: of texts with pictures and films (Qwen2-VL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.errors import ArgumentError, CheckpointError, ShapeError
from headwise.nn.options import positive, whole
from headwise.nn.positions.rope_config import entry, head_dim_of
from headwise.nn.positions.rope_scaling import unscaled
from headwise.nn.positions.rotation import turn
from headwise.nn.positions.scheme import Positions, check_integers

# Models in which the three positions alternate from pair to pair, by the beginning of their model_type.
_ALTERNATE = ("qwen3_vl", "qwen3_omni", "qwen3_5")


class MRope(Positions):
    """Rotary positions in three dimensions (Wang et al. 2024, Qwen2-VL, §2.1). Pairs are (0, D/2), (1, D/2 + 1) ….

    Pair i rotates by position[axis(i)] · base^(-2i/D). A text has the same number in all three axes: then this is RoPE.
    Position ids are [S, 3] or [B, S, 3]: time, row and column of each token.

    Args:
        head_dim: D, even.
        sections: how many pairs rotate by time, by row and by column: their sum is D / 2.
        base: the base of the frequencies.
        alternate: False = first all pairs of time, then of rows, then of columns (Qwen2-VL). True = time, row, column,
            time, … as long as rows and columns have pairs left, and time behind them (Qwen3-VL).

    Raises:
        ArgumentError: sections that are not three numbers with the sum D / 2.
    """

    axes: Tensor  # [D / 2], float32 as all constants of a scheme: which of the three positions each pair rotates by
    inverse_frequencies: Tensor  # [D / 2] float32

    def __init__(
        self, head_dim: int, sections: Sequence[int] = (16, 24, 24), base: float = 10000.0, *, alternate: bool = False
    ) -> None:
        super().__init__()
        self.head_dim, self.sections, self.alternate = whole("head_dim", head_dim), tuple(sections), alternate
        if len(self.sections) != 3 or 2 * sum(self.sections) != head_dim:
            raise ArgumentError(
                f"sections: expected three numbers of pairs with the sum head_dim / 2 = {head_dim / 2:g}. "
                f"Received: sections={self.sections}"
            )
        self.base = float(positive("base", base))
        self._register_constants()

    @classmethod
    def from_hf(cls, config: Any) -> MRope:
        """Make the positions of a Hugging Face config of a text model, such as `Qwen2VLConfig().text_config`.

        Raises CheckpointError for a config without mrope_section.
        """
        parameters = entry(config, "rope_parameters", "rope_scaling") or {}
        if not parameters.get("mrope_section"):
            raise CheckpointError("rope_parameters: expected mrope_section. Received: a config without it")
        alternate = parameters.get("mrope_interleaved")
        kind = entry(config, "model_type") or ""
        return cls(
            head_dim_of(config),
            parameters["mrope_section"],
            float(entry(parameters, "rope_theta") or entry(config, "rope_theta") or 10000.0),
            alternate=kind.startswith(_ALTERNATE) if alternate is None else bool(alternate),
        )

    def rotate(self, x_BHSD: Tensor, position_ids: Tensor, length: int | Tensor | None = None) -> Tensor:
        """Rotate queries or keys x [B, H, S, D] at positions [S, 3] or [B, S, 3], in the dtype of x."""
        check_integers("position_ids", position_ids, "[S, 3] or [B, S, 3]")
        batch, _, size, _ = x_BHSD.shape
        if position_ids.shape[-2:] != (size, 3) or position_ids.shape[:-2] not in ((), (1,), (batch,)):
            raise ShapeError(
                f"position_ids: expected (time, row, column) [{size}, 3] or [{batch}, {size}, 3]. "
                f"Received: position_ids={list(position_ids.shape)}"
            )
        return turn(x_BHSD, position_ids[..., self.axes.long()].float() * self.inverse_frequencies)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.sections}, base={self.base}{', alternate=True' if self.alternate else ''}"

    def _constants(self) -> dict[str, Tensor]:
        return {"axes": self._axes().float(), "inverse_frequencies": unscaled(self.head_dim, self.base, "cpu")}

    def _axes(self) -> Tensor:
        """Return the axis of each pair, integers [D / 2]: 0 = time, 1 = row, 2 = column."""
        if not self.alternate:
            return torch.arange(3).repeat_interleave(torch.tensor(self.sections))
        pairs = torch.arange(self.head_dim // 2)
        axis = pairs % 3
        return torch.where(pairs < 3 * torch.tensor(self.sections)[axis], axis, 0)
