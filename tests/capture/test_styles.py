"""Attention as people write it: right, or refused with the reason, never wrong and never missed in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.styles import EXPECTED, STYLES, Style, expected, outcome

FAULTS = ("WRONG", "SILENT")
NOT_EXACT = expected()


def _case(name: str) -> Any:
    fault = NOT_EXACT.get(name, ("",))[0] in FAULTS
    marks = pytest.mark.xfail(strict=True, reason=NOT_EXACT[name][0]) if fault else ()
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*LeafSpec:FutureWarning")  # of the styles
@pytest.mark.parametrize("name", [_case(name) for name in STYLES])
def test_a_style(name: str) -> None:
    found, (kind, reason) = outcome(STYLES[name]), NOT_EXACT.get(name, ("", ""))
    assert found.kind not in FAULTS, found
    if kind not in FAULTS:
        assert (found.kind in ("exact", "not attention")) if not kind else (found.kind == kind), (
            f"{found} instead of {kind or 'exact'}: if that is better, python -m tests.capture.styles --write"
        )
        assert reason in found.detail


def test_the_expectations_are_of_styles_that_there_are() -> None:
    assert set(NOT_EXACT) <= set(STYLES), f"remove from {EXPECTED.name}: {set(NOT_EXACT) - set(STYLES)}"


# What tells the outcomes apart.


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1)


def other_weights(q: Tensor, k: Tensor, v: Tensor) -> Any:
    w = _weights(q, k)
    return w @ v, w + 1e-4


def other_example(q: Tensor, k: Tensor, v: Tensor) -> Any:
    w = _weights(q, k)
    return w @ v, w.flip(0)


def a_part_is_left_out(q: Tensor, k: Tensor, v: Tensor) -> Any:
    w = _weights(q, k)
    return w[:, 1:].clone() @ v[:, 1:] + _weights(q[:, :1], k[:, :1]) @ v[:, :1], w


def none_at_all(q: Tensor, k: Tensor, v: Tensor) -> Any:
    w = _weights(q, k)
    return w @ v, "not attention"


def nothing_is_computed(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return q, torch.ones(2, 4, 6, 6)


def by_chance(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """What it computes is another thing under the watch."""
    w = _weights(q, k)
    return w @ v * (1 + len(torch.overrides._get_current_function_mode_stack())), w


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        (other_weights, "WRONG", "differ by up to 0.0001"),
        (other_example, "WRONG", "differ"),
        (a_part_is_left_out, "refused", "a part of an attention"),
        (none_at_all, "WRONG", "there is a record of it"),
        (nothing_is_computed, "SILENT", ""),
        (by_chance, "WRONG", "its output changed"),
    ],
)
def test_an_outcome(body: Any, kind: str, detail: str) -> None:
    found = outcome(Style(body.__name__, "none", body))
    assert (found.kind, detail in found.detail) == (kind, True), found
