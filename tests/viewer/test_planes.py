"""Masks as runs and biases in their smallest form: exact, and carried once however many layers share them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headwise import masks
from headwise.viewer import planes
from headwise.viewer.planes import encode_bias, encode_planes, encode_runs

from .conftest import alibi, learned_distances, look, random_mask, record, write


def test_runs_of_a_mask_that_can_be_checked_by_eye() -> None:
    allowed = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=bool)
    assert encode_runs(allowed).tolist() == [
        *(0, 1, 1, 3),  # row 0 owns run 0, row 1 none, row 2 runs 1 and 2
        *(0, 2),
        *(0, 1),
        *(2, 3),
    ]


def test_usual_masks_take_one_run_a_row() -> None:
    for mask in (masks.causal(), masks.window(3, 1), masks.lengths(torch.tensor([5]))):
        ((plane,),) = encode_planes(mask.aligned(8, 8), 8, 8)
        assert len(plane) == 4 * ((8 + 1) + 2 * 8)


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_runs_hold_every_allowed_cell_and_no_other(allowed: np.ndarray) -> None:
    assert (cells_of(encode_runs(allowed), *allowed.shape) == allowed).all()


def test_a_mask_is_gone_through_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = random_mask(2, 3, 7, 5)
    monkeypatch.setattr(planes, "BLOCK_CELLS", 60)  # two rows
    found = encode_planes(mask, 7, 5)
    assert [len(heads) for heads in found] == [3, 3]
    rebuilt = [[cells_of(np.frombuffer(plane, "<u4"), 7, 5) for plane in heads] for heads in found]
    assert (np.array(rebuilt) == mask.to_bool(7, 5).numpy()).all()


def cells_of(numbers: np.ndarray, rows: int, cols: int) -> np.ndarray:
    places, runs = numbers[: rows + 1], numbers[rows + 1 :].reshape(-1, 2)
    allowed = np.zeros((rows, cols), bool)
    for row in range(rows):
        for first, past in runs[places[row] : places[row + 1]]:
            allowed[row, first:past] = True
    return allowed


def test_what_is_shared_is_carried_once(tmp_path: Path) -> None:
    same, another = masks.causal(), random_mask(9, 9)
    layers = [record(heads=4, mask=same), record(mask=masks.causal()), record(mask=another), record()]
    page = write(tmp_path / "page.html", look(*layers))
    assert [name for name in page.blocks if "plane" in name] == ["plane0", "plane1"]
    assert [layer["planes"] for layer in page.stack()["layers"]] == [[0], [0], [1], None]
    assert [layer["masked"] for layer in page.stack()["layers"]] == [True, True, True, False]

    page = write(tmp_path / "page.html", look(record(batch=3, mask=masks.lengths(torch.tensor([9, 4, 9])))))
    assert [page.stack(example)["layers"][0]["planes"] for example in range(3)] == [[0], [1], [0]]


# --- Biases -----------------------------------------------------------------------------------------------------------


def test_a_bias_that_can_be_checked_by_eye() -> None:
    bias = torch.tensor([[10.0, 11.0, 12.0], [9.0, 10.0, 11.0]])  # 10 + j - i
    found = encode_bias(record(heads=1, kv_heads=1, length=2, keys=3, bias=bias), 0)
    assert (found.kind, found.shape) == ("relative", (1, 4))  # by j - i + Q - 1, from the bottom left to the top right
    assert np.frombuffer(found.data, "<f4").tolist() == [9, 10, 11, 12]


@pytest.mark.parametrize(("q_len", "k_len"), [(9, 9), (4, 11), (11, 4)])
def test_slopes_are_carried_as_the_bias_that_they_stand_for(q_len: int, k_len: int) -> None:
    slopes, bias = torch.tensor([0.5, 0.1]), torch.randn(2, q_len, k_len)
    apart = (torch.arange(k_len) - torch.arange(k_len - q_len, k_len)[:, None]).abs()
    dense = -slopes[:, None, None] * apart
    for options, expected in (({}, dense), ({"bias": bias}, bias + dense)):
        found = encode_bias(record(length=q_len, keys=k_len, slopes=slopes, **options), 0)
        assert found == encode_bias(record(length=q_len, keys=k_len, bias=expected), 0)


@pytest.mark.parametrize("make", [alibi, learned_distances])
@pytest.mark.parametrize(("q_len", "k_len"), [(9, 9), (4, 11), (11, 4), (1, 5), (5, 1)])
def test_a_bias_of_distances_is_carried_as_one_number_for_each(make: object, q_len: int, k_len: int) -> None:
    bias = make(2, q_len, k_len)  # type: ignore[operator]
    found = encode_bias(record(length=q_len, keys=k_len, bias=bias), 0)
    assert (found.kind, found.shape) == ("relative", (2, q_len + k_len - 1))
    numbers = np.frombuffer(found.data, "<f4").reshape(found.shape)
    assert (numbers[:, np.arange(k_len) - np.arange(q_len)[:, None] + q_len - 1] == bias.numpy()).all()


def test_what_stands_where_the_mask_forbids_does_not_matter() -> None:
    bias = learned_distances(2, 9, 9)
    for mask, example in ((masks.causal(), 0), (masks.lengths(torch.tensor([9, 4])), 1)):
        forbidden = ~mask.to_bool(9, 9)[example % len(mask.to_bool(9, 9))]
        spoilt = bias.masked_fill(forbidden, torch.nan)
        found = encode_bias(record(batch=2, bias=spoilt, mask=mask), example)
        assert found.kind == "relative"
        assert np.isfinite(np.frombuffer(found.data, "<f4")).all()


def test_one_mask_for_each_head_and_one_bias_for_all() -> None:
    mask = random_mask(1, 2, 9, 9)
    bias = learned_distances(1, 9, 9)
    found = encode_bias(record(bias=bias, mask=mask), 0)
    assert found.kind == "relative"
    seen_by_one = mask.to_bool(9, 9)[0, 1] & ~mask.to_bool(9, 9)[0, 0]
    row, col = seen_by_one.nonzero()[0].tolist()
    bias[0, row, col] += 1
    found = encode_bias(record(bias=bias, mask=mask), 0)
    assert found.kind == "dense"


def test_one_number_that_is_off_makes_it_dense() -> None:
    bias = alibi(2, 9, 9)
    bias[1, 7, 0] = torch.nextafter(bias[1, 7, 0], torch.tensor(0.0))
    found = encode_bias(record(bias=bias), 0)
    assert (found.kind, found.shape) == ("dense", (2, 9, 9))


def test_what_broadcasts_is_carried_once() -> None:
    sizes = {(9,): (1, 1, 9), (2, 1, 9): (2, 1, 9), (1, 1, 9, 9): (1, 9, 9)}
    for shape, carried in sizes.items():
        found = encode_bias(record(bias=torch.randn(shape)), 0)
        assert (found.kind, found.shape) == ("dense", carried)
    expanded = encode_bias(record(bias=torch.randn(1, 1, 1, 9).expand(1, 2, 9, 9)), 0)
    assert expanded.shape == (1, 1, 9)


def test_what_the_softmax_does_not_see_is_not_carried() -> None:
    rows = torch.randn(1, 2, 9, 1)
    assert encode_bias(record(bias=torch.zeros(9, 9)), 0) is None
    assert encode_bias(record(bias=rows), 0) is None
    assert encode_bias(record(bias=rows, sinks=torch.zeros(2)), 0) is not None  # the sink is not of the row
    rows[0, 1, 3] = -torch.inf
    found = encode_bias(record(bias=rows), 0)
    assert set(np.frombuffer(found.data, "<f4").tolist()) == {0.0, -np.inf}


def test_a_bias_is_carried_once_however_many_layers_share_it(tmp_path: Path) -> None:
    same = learned_distances(2, 9, 9)
    layers = [record(bias=same), record(bias=same), record(bias=same.clone()), record(bias=alibi(2, 9, 9)), record()]
    page = write(tmp_path / "page.html", look(*layers))
    assert [name for name in page.blocks if "bias" in name] == ["bias0", "bias1"]
    told = [layer["bias"] and layer["bias"]["block"] for layer in page.stack()["layers"]]
    assert told == ["bias0", "bias0", "bias0", "bias1", None]
