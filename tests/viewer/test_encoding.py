"""What the page carries is the record: masks as runs, queries and keys rounded no further than the weights can bear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import headwise
from headwise import masks
from headwise.records import AttentionRecord
from headwise.viewer import write_page
from headwise.viewer.encoding import TOLERANCE, encode_groups, runs_of

from .conftest import Page, look, random_mask, record


def test_runs_of_a_mask_that_can_be_checked_by_eye() -> None:
    allowed = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=bool)
    assert runs_of(allowed).tolist() == [
        *(0, 1, 1, 3),  # row 0 owns run 0, row 1 none, row 2 runs 1 and 2
        *(0, 2),
        *(0, 1),
        *(2, 3),
    ]


def test_usual_masks_take_one_run_a_row() -> None:
    for mask in (masks.causal(), masks.window(3, 1), masks.padding(torch.tensor([5]))):
        assert runs_of(mask.to_bool(8, 8)[0, 0].numpy()).size == (8 + 1) + 2 * 8


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_runs_hold_every_allowed_cell_and_no_other(allowed: np.ndarray) -> None:
    numbers = runs_of(allowed)
    places, runs = numbers[: len(allowed) + 1], numbers[len(allowed) + 1 :].reshape(-1, 2)
    rebuilt = np.zeros_like(allowed)
    for row in range(len(allowed)):
        for first, past in runs[places[row] : places[row + 1]]:
            rebuilt[row, first:past] = True
    assert (rebuilt == allowed).all()


def test_the_page_carries_the_weights(case: AttentionRecord, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", [look(case)], title="")
    drawn = Page.read(tmp_path / "page.html").weights(0, 0)
    np.testing.assert_allclose(drawn, case.weights()[0], rtol=0, atol=TOLERANCE)
    if case.sinks is None:
        rows = drawn.sum(-1)
        np.testing.assert_allclose(rows[rows > 0], 1, atol=TOLERANCE)


def test_other_dtypes_are_carried_too(tmp_path: Path) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        q = torch.randn(1, 2, 9, 4).to(dtype)
        seen = headwise.attention(q, q, q, record=True)[1]
        write_page(tmp_path / "page.html", [look(seen)], title="")
        drawn = Page.read(tmp_path / "page.html").weights(0, 0)
        np.testing.assert_allclose(drawn, seen.weights()[0].float(), rtol=0, atol=TOLERANCE)


def test_a_head_whose_weights_cannot_bear_int16_goes_with_24_bits() -> None:
    gentle, sharp = record(length=64, dim=16), record(length=64, dim=16, size=8.0)
    assert {group.bits for group in encode_groups(gentle, None, "")} == {16}
    assert {group.bits for group in encode_groups(sharp, None, "")} == {24}


def test_a_mask_is_carried_once_however_many_heads_and_layers_share_it(tmp_path: Path) -> None:
    same, another = masks.causal(), random_mask(9, 9)
    layers = [record(heads=4, mask=same), record(mask=same), record(mask=another), record()]
    write_page(tmp_path / "page.html", [look(*layers)], title="")
    page = Page.read(tmp_path / "page.html")
    assert [name for name in page.blocks if "plane" in name] == ["text0-plane0", "text0-plane1"]
    assert [layer["planes"] for layer in page.facts["texts"][0]["layers"]] == [[0], [0], [1], None]
