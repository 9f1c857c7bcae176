"""The steps of every kind of module come to what PyTorch computes in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise import nn
from headwise.worksheet import Worksheet, make

from .cases import Case, x


def weights_of(sheet: Worksheet) -> list[np.ndarray]:
    return [matrix.values for matrix in sheet.matrices.values() if matrix.kind == "weights"]


@pytest.mark.usefixtures("_exact_rope")
def test_the_output_and_the_weights_are_those_of_pytorch(case: Case) -> None:
    sheet = case.make()
    np.testing.assert_allclose(sheet.output.values, case.forward()[0], rtol=1e-9, atol=1e-12)
    if not isinstance(case.module, (nn.MultiHeadAttention, nn.MultiHeadLatentAttention)):
        return
    _, record = case.forward(record=True)
    np.testing.assert_allclose(np.stack(weights_of(sheet)), record.weights()[0], rtol=1e-9, atol=1e-12)


def test_a_module_in_float32_is_shown_as_it_is(case: Case) -> None:
    case.module.float()
    sheet = case.make()
    for name, matrix in sheet.matrices.items():
        if matrix.kind == "parameter":
            assert np.array_equal(matrix.values, matrix.values.astype(np.float32)), name
    assert next(case.module.parameters()).dtype == torch.float32


def test_the_steps_are_those_of_the_paper() -> None:
    sheet = make(nn.MultiHeadAttention(4, 2), x(3, 4), tokens=["a", "b", "c"])
    assert [step.title for step in sheet] == [
        "Inputs",
        "Queries",
        "Keys",
        "Values",
        "Scores",
        "Scale",
        "Mask",
        "Softmax: exponentials",
        "Attention weights",
        "Weighted sum",
        "Concatenate",
        "Output",
    ]
    assert sheet["X"].rows.labels == sheet["A_1"].rows.labels == sheet["A_1"].cols.labels == ("a", "b", "c")
    assert sheet["Q_1"].size == "[S × D] = [3 × 2]"
    assert sheet["Scores_2"].size == "[Q × K] = [3 × 3]"
    assert sheet["Z"].size == "[Q × H·E] = [3 × 4]"
    assert dict(sheet.dimensions) == {"S": "3", "Q": "3", "K": "3", "M": "4", "H·E": "4", "D": "2", "E": "2"}


def test_a_score_by_hand() -> None:
    module = nn.MultiHeadAttention(2, 1, bias=False)
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([torch.eye(2), torch.eye(2), 2 * torch.eye(2)]))
        module.out.weight.copy_(torch.eye(2))
    sheet = make(module, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), mask=torch.tensor([[True, False], [True, True]]))
    np.testing.assert_array_equal(sheet["Scores_1"].values, [[1, 0], [0, 4]])
    np.testing.assert_allclose(sheet["Scaled_1"].values, [[0.5**0.5, 0], [0, 4 * 0.5**0.5]])
    assert sheet["Masked_1"].values[0, 1] == -np.inf
    share = np.exp(-4 * 0.5**0.5)
    np.testing.assert_allclose(sheet["A_1"].values, [[1, 0], [share / (1 + share), 1 / (1 + share)]])
    np.testing.assert_allclose(sheet["Y"].values[0], [2, 0])


def test_what_a_cache_keeps_of_mla() -> None:
    module = nn.MultiHeadLatentAttention(
        8, 2, q_rank=4, kv_rank=3, nope_dim=2, rope_dim=4, value_head_dim=3, dtype=torch.float64
    )
    inputs, cache = x(), nn.Cache()
    module(inputs, cache=cache)
    sheet = make(module, inputs)
    (held,) = cache.append(torch.zeros(1, 1, 0, 7, dtype=torch.float64))
    np.testing.assert_allclose(sheet["Cache"].values, held[0, 0].detach(), atol=1e-6)  # its angles are float32
    step = next(step for step in sheet if step.title == "What a cache holds")
    assert "7 numbers per token" in step.sentence
    assert "2 heads would be 18" in step.sentence


@pytest.mark.parametrize("form", ["positional", "by name", "without a batch"])
def test_inputs_come_as_a_tensor_several_or_by_name(form: str) -> None:
    module, query, memory = nn.MultiHeadAttention(4, 2), x(3, 4).float(), x(2, 4).float()
    given = {
        "positional": (query, memory),
        "by name": {"query": query, "key": memory},
        "without a batch": (query[0], memory[0]),
    }[form]
    sheet = make(module, given, memory_tokens=["m", "n"])
    assert sheet["A_2"].cols.labels == ("m", "n")
    np.testing.assert_allclose(sheet.output.values, module(query, memory)[0].detach(), atol=1e-6)


def test_titles_and_notes() -> None:
    module = nn.LatentAttention(2, 4, num_heads=2, num_reads=3, share_reads=True, ffn_dim=6)
    sheet = make(module, x(3, 4), title="Mine, " * 30)
    assert sheet.title == ("Mine, " * 30)[:99] + "…"
    assert [note for note in sheet.notes if "share their weights" in note]
    assert {step.part for step in sheet} == {"", "Read 1", "Read 2", "Read 3"}
    assert make(nn.MultiHeadAttention(4, 2), x(3, 4)).notes == ()
