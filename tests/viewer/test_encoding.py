"""What the page carries is the record: queries and keys rounded no further than the weights can bear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import headwise
from headwise import masks
from headwise.errors import RecordError
from headwise.records import AttentionRecord
from headwise.viewer import encoding
from headwise.viewer.encoding import FEWEST, MOST, TOLERANCE, encode, packed

from .conftest import look, record, unpacked, write


def bits_of(seen: AttentionRecord) -> list[int]:
    return [group.bits for (example,) in encode({seen: ""}) for group in example]


def test_numbers_that_can_be_packed_by_eye() -> None:
    assert packed(np.array([1, -1]), 12).tolist() == [0x01, 0xF0, 0xFF]  # 001 fff: the first in the lowest bits
    assert packed(np.array([-(2**23), 2**23 - 1]), 24).tolist() == [0x00, 0x00, 0x80, 0xFF, 0xFF, 0x7F]
    assert packed(np.array([3]), 13).tolist() == [0x03, 0x00]  # filled up with zeros


@given(st.integers(FEWEST, MOST).flatmap(
    lambda bits: st.tuples(
        st.just(bits),
        arrays.arrays(np.int32, st.integers(0, 40), elements=st.integers(1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)),
    )
))  # fmt: skip
def test_numbers_come_back(given: tuple[int, np.ndarray]) -> None:
    bits, whole = given
    assert unpacked(packed(whole, bits).tobytes(), len(whole), bits).tolist() == whole.tolist()


def test_the_page_carries_the_weights(case: AttentionRecord, tmp_path: Path) -> None:
    page = write(tmp_path / "page.html", look(case))
    for example, expected in enumerate(case.weights()):
        drawn = page.weights(example)
        np.testing.assert_allclose(drawn, expected, rtol=0, atol=TOLERANCE)
        if case.sinks is None:
            rows = drawn.sum(-1)
            np.testing.assert_allclose(rows[rows > 0], 1, atol=TOLERANCE)


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 81).view(9, 9)], ids=["slopes", "slopes and a bias"])
def test_slopes_are_carried_once(bias: torch.Tensor | None, tmp_path: Path) -> None:
    q = torch.randn(1, 2, 9, 4)
    seen = headwise.attention(q, q, q, bias=bias, slopes=torch.tensor([0.5, 0.1]), record=True)[1]
    drawn = write(tmp_path / "page.html", look(seen)).weights()
    np.testing.assert_allclose(drawn, seen.weights()[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_carried_too(dtype: torch.dtype, tmp_path: Path) -> None:
    q = torch.randn(1, 2, 9, 4).to(dtype)
    seen = headwise.attention(q, q, q, bias=torch.randn(9, 9).to(dtype), record=True)[1]
    drawn = write(tmp_path / "page.html", look(seen)).weights()
    np.testing.assert_allclose(drawn, seen.weights()[0].float(), rtol=0, atol=TOLERANCE)


def test_very_large_scores_are_carried_with_more_digits(tmp_path: Path) -> None:
    # Scores of a few thousand have four digits behind the point in float32: their log-sum-exps need more.
    q, k = 40 * torch.randn(1, 1, 30, 8).double(), 40 * torch.randn(1, 1, 30, 8).double()
    k[:, :, 15:] = k[:, :, :15] + 0.01 * torch.randn(1, 1, 15, 8)  # so that many keys are nearly alike
    q, k = q.float().double(), k.float().double()
    exact = headwise.attention(q, k, k, scale=1.0, record=True)[1]
    assert exact.scores().abs().max() > 5000
    assert ((exact.weights() > 0.1) & (exact.weights() < 0.9)).sum() > 20
    single = headwise.attention(q.float(), k.float(), k.float(), scale=1.0, record=True)[1]
    assert (single.weights() - exact.weights()).abs().max() > TOLERANCE
    for seen in (exact, single):
        page = write(tmp_path / "page.html", look(seen))
        assert page.stack()["layers"][0]["groups"][0]["wide"]
        assert TOLERANCE < page.facts["tolerance"] <= 2e-3
        np.testing.assert_allclose(page.weights(), exact.weights()[0], rtol=0, atol=page.facts["tolerance"])
    capped = headwise.attention(q, k, k, scale=1.0, softcap=5.0, record=True)[1]
    assert not write(tmp_path / "page.html", look(capped)).stack()["layers"][0]["groups"][0]["wide"]


def test_each_head_gets_as_few_bits_as_its_weights_can_bear() -> None:
    flat, gentle, sharp = (record(1, 1, 64, 16, size=size) for size in (0.01, 1.0, 8.0))
    assert bits_of(flat) == [FEWEST]
    assert bits_of(flat)[0] < bits_of(gentle)[0] < bits_of(sharp)[0] <= MOST
    q, k = (torch.cat([each.q if x == "q" else each.k for each in (flat, gentle, sharp)], 1) for x in "qk")
    together = headwise.attention(q, k, k, record=True)[1]
    assert bits_of(together) == [bits_of(each)[0] for each in (flat, gentle, sharp)]


def test_one_bit_less_would_be_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record(1, 1, 256, 16, size=2.0)
    (bits,) = bits_of(seen)
    assert FEWEST < bits < MOST
    monkeypatch.setattr(encoding, "MOST", bits - 2)
    with pytest.raises(
        RecordError, match=r"layer: the page's weights would differ from the record's by .*, expected at most 1e-04"
    ):
        list(encode({seen: "layer"}))


Asked = list[tuple[list[int], list[int]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The rows and heads whose weights are compared: each time of what the page will compute, then of the record."""
    found: Asked = []
    weights = encoding._weights

    def listening(record: AttentionRecord, rows: torch.Tensor, cols: slice, heads: torch.Tensor) -> torch.Tensor:
        found.append((rows.tolist(), heads.tolist()))
        return weights(record, rows, cols, heads)

    monkeypatch.setattr(encoding, "_weights", listening)
    return found


def test_of_long_inputs_rows_are_compared_that_are_spread_evenly(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TRIED_ROWS", 5)
    monkeypatch.setattr(encoding, "CHECKED_ROWS", 12)
    list(encode({record(length=100): ""}))
    rows = [rows for rows, _ in asked]
    assert rows[:2] == [[0, 25, 50, 74, 99]] * 2
    assert rows[2:4] == [[0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99]] * 2


def test_heads_that_are_near_enough_are_not_compared_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TRIED_ROWS", 2)  # the first and the last: the bits of head 1 are guessed too low
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    q[:, 0], q[:, 1, 4] = 0.0, 30 * q[:, 1, 4]
    ((groups,),) = encode({headwise.attention(q, k, k, record=True)[1]: ""})
    heads = [heads for _, heads in asked]
    assert heads[:4] == [[0, 1]] * 4
    assert set(map(tuple, heads[4:])) == {(1,)}
    assert groups[1].bits > groups[0].bits


def test_rows_are_compared_in_blocks_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(encoding, "BLOCK_CELLS", 40)  # two rows of two heads
    seen = few = record(length=9, mask=masks.causal())
    drawn = write(tmp_path / "page.html", look(few)).weights()
    np.testing.assert_allclose(drawn, seen.weights()[0], rtol=0, atol=TOLERANCE)
