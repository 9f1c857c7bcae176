"""Trace one forward: the matrix products and softmaxes of a module, with marks on their operands.

`trace(module, inputs, function, output)` runs `function` under a dispatch mode (tracing.py). It sees the operations
that every style of code is executed as: einsum, bmm, `@` and Linear are all products, and fused attention is run as
separate operations. For each product and softmax it records the operands, the line of code, and the marks (marks.py).
events.py describes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headwise.doctor.reading.events import Trace
from headwise.doctor.reading.ledger import Ledger
from headwise.doctor.reading.tracing import Tracing

T = TypeVar("T")


def trace(
    module: nn.Module, inputs: Sequence[Tensor | None], function: Callable[[], T], output: Callable[[T], Tensor]
) -> Trace:
    """Run `function`, which calls `module` on `inputs` ([B, N, M] each), and record its operations. The result's
    `output` is marked too.
    """
    ledger = Ledger(module, inputs)
    with torch.no_grad(), without_fused():
        with Tracing(ledger):
            result = function()
        found = ledger.trace
        found.result = result
        found.out = ledger.marks_of(output(result))
    return found


@contextmanager
def without_fused() -> Iterator[None]:
    """Run attention as separate operations: products and a softmax."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
