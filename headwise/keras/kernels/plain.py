"""A kernel that computes all scores at once. Time and memory grow with Q · K."""

from __future__ import annotations

from headwise.keras.call import Call, Tensor, attend


def run(call: Call, *, weights: bool = False) -> tuple[Tensor, Tensor | None]:
    """Compute the output [B, H, Q, E], and the weights [B, H, Q, K] before dropout (None unless `weights`)."""
    call = call.usable()
    return attend(call, call.q, call.k, call.v, weights=weights)
