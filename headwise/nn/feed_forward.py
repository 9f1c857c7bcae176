"""The feed-forward network of a transformer's layer, plain or gated: applied to each position separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from headwise.nn import options
from headwise.nn.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh"]

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}
# The activation inside each gated activation.
GATED: dict[Activation, Activation] = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}

GATED_MULTIPLE = 64  # the hidden dimension of a gated network is rounded up to a multiple of this, for matrix units


class FeedForward(nn.Module):
    """Two linear maps with an activation between, or three with a gate.

        plain   y = W_down act(W_up x)                  Vaswani et al. 2017, equation 2
        gated   y = W_down (act(W_gate x) ⊙ W_up x)     Shazeer 2020 (GLU Variants), equation 6

    Args:
        dim: M, of input and output.
        hidden_dim: the hidden dimension. None = 4 M; or if gated 8/3 M, rounded up to a multiple of 64, so that the
            three matrices of a gated network have about as many numbers as the two matrices of a plain one.
        activation: "relu", "gelu", "gelu_tanh" (the approximation by tanh; GPT-2), "silu"; gated: "swiglu" (Llama),
            "geglu", "geglu_tanh" (Gemma, T5 1.1).
        dropout: the probability of dropout before W_down, only in training.
        bias: whether the linear maps have a bias.

    Its parameters are `up`, `down` and, if gated, `gate`.

    Raises:
        ArgumentError: a dimension below 1, an unknown activation, a dropout outside of [0, 1).
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        *,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.hidden_dim = checked_widths(dim, hidden_dim, activation)
        self.activation = activation
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gate = nn.Linear(dim, self.hidden_dim, **factory) if activation in GATED else None
        self.up = nn.Linear(dim, self.hidden_dim, **factory)
        self.down = nn.Linear(self.hidden_dim, dim, **factory)
        self.dropout = Dropout(dropout)
        self._act = _PLAIN[GATED.get(activation, activation)]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform distribution for the weights, as in the code of the 2017 paper; 0 for the biases."""
        for linear in (self.gate, self.up, self.down):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The output [..., M] for x [..., M]."""
        hidden = self._act(self.up(x)) if self.gate is None else self._act(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))

    def extra_repr(self) -> str:
        """The options that the shapes of the parameters do not show."""
        return f"{self.dim}, {self.hidden_dim}, activation={self.activation!r}"


def checked_widths(dim: int, hidden_dim: int | None, activation: Activation) -> tuple[int, int]:
    """Check and return M and the hidden dimension: by default 4 M, if gated 8/3 M rounded up to a multiple of 64."""
    options.check_known("activation", activation, [*_PLAIN, *GATED])
    dim = options.whole("dim", dim)
    if hidden_dim is None:
        hidden_dim = -(-8 * dim // (3 * GATED_MULTIPLE)) * GATED_MULTIPLE if activation in GATED else 4 * dim
    return dim, options.whole("hidden_dim", hidden_dim)
