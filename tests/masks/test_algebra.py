"""&, |, ~, equality, repr, and the same predicate on ints, NumPy arrays and tensors."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import masks
from headwise.errors import DtypeError, HeadwiseError, MaskError
from tests.mask_zoo import ZOO, compositions, fits

SIZES = (2, 3, 12, 12)


@given(st.data())
def test_operators_mean_what_they_say_cell_by_cell(data: st.DataObject) -> None:
    a, b = data.draw(compositions(SIZES)), data.draw(compositions(SIZES))
    x, y = a.to_bool(12), b.to_bool(12)
    assert torch.equal((a & b).to_bool(12), x & y)
    assert torch.equal((a | b).to_bool(12), x | y)
    assert torch.equal((~a).to_bool(12), ~x)
    assert ~~a == a


@pytest.mark.parametrize("name", ZOO)
def test_ints_arrays_and_tensors_get_the_same_answer(name: str) -> None:
    lengths = (10, 12) if fits(name, 10, 12) else (12, 12)
    mask = ZOO[name](2, 3, *lengths).aligned(*lengths)
    dense = mask.to_bool(*lengths).expand(2, 3, *lengths)
    if name.startswith("predicate"):
        return  # the function is the user's; it is promised tensors
    b, h, q, k = (index.numpy() for index in torch.meshgrid(*(torch.arange(n) for n in dense.shape), indexing="ij"))
    assert np.array_equal(mask.allows(b, h, q, k), dense.numpy())
    for cell in [(0, 0, 0, 0), (1, 2, 9, 3), (1, 1, 4, 11)]:
        allowed = mask.allows(*cell)
        assert allowed in (True, False)
        assert (~mask).allows(*cell) is not allowed
        assert bool(allowed) == bool(dense[cell])


@pytest.mark.parametrize("name", ZOO)
def test_equal_masks_are_equal_and_hash_alike(name: str) -> None:
    a, b = ZOO[name](*SIZES), ZOO[name](*SIZES)
    assert a == b
    assert hash(a) == hash(b)
    assert a != masks.window(1, 7)
    assert a.aligned(12, 12) == b.aligned(12, 12)


def test_the_last_query_stands_at_the_last_key() -> None:
    assert masks.causal().draw(2, 4) == "■ ■ ■ ·\n■ ■ ■ ■"
    assert masks.causal(offset=0).draw(2, 4) == "■ · · ·\n■ ■ · ·"
    assert masks.window(1, 0).draw(1, 4) == "· · ■ ■"
    assert masks.documents([0, 0, 1, 1]).draw(1, 4) == "· · ■ ■"
    assert masks.prefix(1).draw(2, 4) == "■ ■ ■ ·\n■ ■ ■ ■"


def test_joined_bands_are_one_band() -> None:
    assert (masks.causal() & masks.window(256, 3)).aligned(9, 9).band() == (-256, 0)
    assert masks.window(2, 1).aligned(4, 6).band() == (0, 3)
    assert (masks.causal() | masks.window(2, 2)).band() is None


def test_a_drawing_in_the_terminal() -> None:
    from rich.console import Console

    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 (closed with the console)
    console.print(masks.documents([0, 0, 1]))
    console.print(masks.big_bird(4096))
    shown = console.export_text()
    console.file.close()
    assert "documents([0, 0, 1])" in shown
    assert "■ ■ ·" in shown
    assert "big_bird(4096, block_size=64" in shown


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: masks.window(-1, 0), MaskError, r"window: left must be at least 0. Received: left=-1"),
        (lambda: masks.window(1.5, 0), DtypeError, r"window: left must be an int or None. Received: left=1.5"),
        (lambda: masks.causal("a"), DtypeError, r"causal: offset must be an int or None. Received: offset='a'"),
        (lambda: masks.dilated(0), MaskError, r"dilated: step must be at least 1. Received: step=0"),
        (lambda: masks.lengths([3, -1]), MaskError, r"lengths: n: expected integers of at least 0"),
        (lambda: masks.padding(torch.tensor([0.5])), DtypeError, r"expected bool, or integers 0 and 1"),
        (lambda: masks.lengths([9]).to_bool(4), MaskError, r"must not exceed the 4 keys. Received: n=\[9\]"),
        (lambda: masks.padding(torch.ones(2, 3, dtype=torch.bool)).to_bool(4), MaskError, r"padding: the mask"),
        (lambda: masks.prefix(5).to_bool(4), MaskError, r"prefix: n must not exceed the 4 keys"),
        (lambda: masks.prefix(-1), MaskError, r"prefix: n: expected integers of at least 0"),
        (lambda: masks.documents([0, 1]).to_bool(3), MaskError, r"made for K = 2, the call has Q = 3 and K = 3"),
        (lambda: masks.documents([0.5, 1.0]), DtypeError, r"documents: ids: expected integers"),
        (lambda: masks.global_tokens([]), MaskError, r"indices: expected at least one position"),
        (lambda: masks.global_tokens([7]).to_bool(4), MaskError, r"positions from 0 to 3. Received: indices=\[7\]"),
        (lambda: masks.global_tokens([-1]), MaskError, r"expected integers of at least 0. Received: \[-1\]"),
        (lambda: masks.block_sparse(torch.ones(2, 2), 8), DtypeError, r"layout: expected a bool tensor"),
        (
            lambda: masks.block_sparse(torch.ones(2, 2, dtype=torch.bool), 8).to_bool(32),
            MaskError,
            r"32 queries and 32 keys in blocks of 8 need a layout of \[4, 4\] blocks. Received: layout=\[2, 2\]",
        ),
        (lambda: masks.big_bird(20).to_bool(10), MaskError, r"big_bird: the mask was made for Q = 20 and K = 20"),
        (lambda: masks.big_bird(64, window_blocks=2), MaskError, r"window_blocks must be odd"),
        (lambda: masks.from_tensor(torch.zeros(2, 2)), DtypeError, r"torch.float32. An additive mask goes in bias="),
        (lambda: masks.from_tensor(torch.ones(2, 2, dtype=torch.int64)), DtypeError, r"pass mask.bool\(\)"),
        (lambda: masks.from_tensor(torch.ones(2, dtype=torch.bool)), MaskError, r"expected \[Q, K\].*Received: \[2\]"),
        (lambda: masks.from_tensor(torch.ones(2, 3, dtype=torch.bool)).to_bool(4), MaskError, r"Q = 2 and K = 3"),
        (lambda: masks.from_predicate(3), DtypeError, r"expected a function \(b, h, q, k\) -> bool. Received: fn=int"),
        (lambda: masks.from_predicate(lambda b, h, q, k: q - k).to_bool(3), DtypeError, r"must return bool"),
        (lambda: (masks.lengths([1, 2]) & masks.lengths([1, 2, 3])).batch, MaskError, r"numbers of examples.*\[2, 3\]"),
    ],
)
def test_bad_input_is_named(make: object, kind: type[HeadwiseError], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()  # type: ignore[operator]


def test_masks_can_be_pickled_and_copied_without_what_they_remember() -> None:
    mask = masks.documents([0, 0, 1]) & masks.causal()
    mask.to_block_mask(3)
    mask.blocks(3, 3, 1)
    for copied in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert copied == mask
        assert "_memo" not in copied.__dict__


def test_only_masks_combine() -> None:
    allowed = torch.ones(2, 2, dtype=torch.bool)
    for combine in (
        lambda: masks.causal() & allowed,  # type: ignore[operator]
        lambda: allowed | masks.causal(),
        lambda: masks.causal() | None,  # type: ignore[operator]
    ):
        with pytest.raises(DtypeError, match=r"expected a mask on both sides. Received: .*masks.from_tensor\(x\)"):
            combine()
    assert (masks.causal() & masks.from_tensor(allowed)).to_bool(2).tolist() == [[[[True, False], [True, True]]]]


def test_a_mask_has_no_truth_value() -> None:
    causal, real = masks.causal(), masks.padding([1, 1, 0])
    for use in (lambda: causal and real, lambda: causal or real, lambda: not causal, lambda: bool(causal & real)):
        with pytest.raises(DtypeError, match=r"has no truth value: expected `&`.*Received: mask=causal\(\)"):
            use()
