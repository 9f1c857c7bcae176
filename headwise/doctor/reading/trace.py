"""One forward, operation by operation: the matrix products and softmaxes of a module, with marks on what met in them.

`trace(module, inputs, function, output)` runs `function` under a dispatch mode (tracing.py) that sees what every style
of code comes down to (einsum, bmm, `@`, Linear and fused attention are all products here; fused attention is made to
run as its parts), and notes of each product and softmax what it was given, where in the code it stood, and the marks
(marks.py) of its operands. What it finds is described in events.py.
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
    """Run `function`, which calls `module` on `inputs` ([B, N, M] each), and note what happens. The result's `output`
    is marked too.
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
    """Attention runs as its parts: products and a softmax."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
