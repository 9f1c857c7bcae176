"""The nominal speeds that plans reckon with, and the name of this machine."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise.kernels import native, speeds


def test_the_plan_says_which_share_of_the_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "instruction_set", lambda: "avx512")
    monkeypatch.setattr(native.attend, "refuse", lambda call: None)
    q = torch.empty(1, 4, 2048, 64)
    plan = headwise.plan(q, q, q)
    assert plan.share == pytest.approx(0.77, abs=0.01)
    assert "about 77% of a matrix product (nominal; `headwise bench` measures it)" in str(plan)


def test_the_name_of_the_machine_has_what_times_depend_on(one_thread: None) -> None:
    name = speeds.name_machine()
    for part in (speeds.processor(), "threads: 1,", f"torch {torch.__version__}"):
        assert part in name
    torch.set_num_threads(2)
    assert "threads: 2," in speeds.name_machine()
