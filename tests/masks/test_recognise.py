"""A dense mask is recognised as what it is, cell by cell the same, and in linear size where it is of a known kind."""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise import masks
from headwise.errors import DtypeError, HeadwiseError, MaskError
from headwise.masks import (
    Mask,
    causal,
    documents,
    lengths,
    padding,
    prefix,
    recognise,
    recognise_additive,
    runs,
    window,
)
from headwise.masks.bits import Bits, row_blocks
from headwise.masks.cellwise import Dense
from headwise.masks.prefix import Prefix
from tests.mask_zoo import ZOO, compositions, fits
from tests.versions import since


def drawn(text: str) -> Tensor:
    """A drawing as a bool tensor [Q, K]."""
    return torch.tensor([[cell == "■" for cell in line.split()] for line in text.strip().splitlines()])


def dense(mask: Mask | None, shape: tuple[int, ...]) -> Tensor:
    cells = torch.ones(shape, dtype=torch.bool) if mask is None else mask.to_bool(*shape[-2:])
    return cells.expand((1,) * (4 - len(shape)) + shape)


def in_bytes(mask: Mask | None) -> int:
    """The size of the tensors of a mask."""
    if mask is None:
        return 0
    values = [getattr(mask, field.name) for field in dataclasses.fields(mask)]
    parts = [x for value in values for x in (value if isinstance(value, tuple) else [value])]
    return sum(
        in_bytes(x) if isinstance(x, Mask) else x.numel() * x.element_size() if isinstance(x, Tensor) else 0
        for x in parts
    )


def kinds(mask: Mask | None) -> set[type[Mask]]:
    if mask is None:
        return set()
    parts = getattr(mask, "parts", None)
    return {type(mask)} if parts is None else set().union(*map(kinds, parts))


# --- Small ones by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drawing", "mask"),
    [
        ("■ · ·\n■ ■ ·\n■ ■ ■", causal(offset=0)),
        ("■ ■ · ·\n■ ■ ■ ·", causal(offset=1)),  # a cache with room left
        ("■ ■ ■ ·\n■ ■ ■ ■", causal(offset=2)),
        ("■ · ·\n■ ■ ·\n■ ■ ■\n■ ■ ■", causal(offset=0)),
        ("· · ·\n■ · ·\n■ ■ ·", causal(offset=-1)),
        ("■ · · ·\n■ ■ · ·\n· ■ ■ ·\n· · ■ ■", window(1, 0, offset=0)),
        ("■ ■ · ·\n■ ■ ■ ·\n· ■ ■ ■\n· · ■ ■", window(1, 1, offset=0)),
        ("■ ■ ■\n· ■ ■\n· · ■", window(0, None, offset=0)),
        ("■ ■ ■ · ·", causal(offset=2)),  # a decoding step with a static cache
        ("· · ■ ■ ■", window(2, 0, offset=4)),  # and with a window
        ("· ■ ■ · ·", window(1, 0, offset=2)),
        ("■ · ■ ■", padding(torch.tensor([[True, False, True, True]]))),
        ("■ ■ ·\n■ ■ ·\n■ ■ ·", lengths([2])),
        ("· ■ ■\n· ■ ■", padding(torch.tensor([[False, True, True]]))),
        ("· · ·\n· · ·", lengths([0])),
        ("· · · ·", lengths([0])),
        (
            "· · · ·\n· ■ · ·\n· ■ ■ ·\n· ■ ■ ■",
            causal(offset=0) & padding(torch.tensor([[False, True, True, True]])),
        ),
        ("■ · · ·\n■ ■ · ·\n■ ■ · ·\n■ ■ · ·", causal(offset=0) & lengths([2])),
        (
            "■ · · ·\n■ · · ·\n■ · ■ ·\n· · ■ ■",
            window(2, 0, offset=0) & padding(torch.tensor([[True, False, True, True]])),
        ),
        ("· · ·\n· ■ ·\n· ■ ·", causal(offset=0) & padding(torch.tensor([[False, True, False]]))),
        ("· ■ ·\n· ■ ·\n· · ·", window(0, None, offset=0) & padding(torch.tensor([[False, True, False]]))),
        # Queries of padding that see nothing.
        ("■ · · ·\n■ ■ · ·\n· · · ·\n· · · ·", documents([0, 0, -1, -1]).aligned(4, 4) & causal(offset=0)),
        ("■ · ■ ·\n· · · ·\n■ · ■ ·\n· · · ·", documents([0, -1, 0, -1]).aligned(4, 4)),
        ("■ ■ · ·\n■ ■ · ·\n■ ■ ■ ·\n■ ■ ■ ■", prefix(2).aligned(4, 4)),
        ("■ ■ · · ·\n■ ■ · · ·\n■ ■ ■ · ·", Prefix(torch.tensor([2]), 0)),
        ("■ ■ · ·\n■ ■ · ·\n· · ■ ■\n· · ■ ■", documents([0, 0, 1, 1]).aligned(4, 4)),
        ("■ · · ·\n■ ■ · ·\n· · ■ ·\n· · ■ ■", documents([0, 0, 1, 1]).aligned(4, 4) & causal(offset=0)),
        ("■ ■ · ·\n■ ■ · ·\n· · ■ ·\n· · · ·", documents([0, 0, 1, -1]).aligned(4, 4)),
        ("■ · ■ ·\n· ■ · ■\n■ · ■ ·\n· ■ · ■", documents([0, 1, 0, 1]).aligned(4, 4)),
        ("■ ■ ■ ■\n■ ■ ■ ■\n· · ■ ·\n· · ■ ■", runs([0, 0, 2, 2], [4, 4, 3, 4])),  # rows of padding see everything
        ("■ ■ · · ·\n■ ■ ■ ■ ·\n■ ■ ■ ■ ·\n■ ■ ■ ■ ■", runs([0] * 4, [2, 4, 4, 5])),  # an image in the text
        (
            "■ ■ ■ ■\n· ■ · ·\n■ ■ ■ ■\n· ■ · ■",
            causal(offset=0) & padding(torch.tensor([[False, True, False, True]])) | runs([0, 0, 0, 0], [4, 0, 4, 0]),
        ),
        ("■ · ■\n· ■ ·\n■ ■ ·", masks.bits(drawn("■ · ■\n· ■ ·\n■ ■ ·"))),
    ],
)
def test_a_small_matrix_is_recognised(drawing: str, mask: Mask) -> None:
    cells = drawn(drawing)
    found = recognise(cells)
    assert torch.equal(dense(found, cells.shape)[0, 0], cells)
    assert found == mask, repr(found)


def test_everything_allowed_is_no_mask() -> None:
    assert recognise(torch.ones(3, 4, dtype=torch.bool)) is None
    assert recognise(torch.ones(1, 4, dtype=torch.bool)) is None
    assert recognise(torch.ones(2, 5, 300, 300, dtype=torch.bool)) is None
    assert recognise(torch.ones(1, 1, 1, 4, dtype=torch.bool).expand(2, 3, 5, 4)) is None


def test_examples_differ_in_padding_and_documents() -> None:
    by_length = (causal() & lengths([2, 4])).to_bool(4)
    assert recognise(by_length) == causal(offset=0) & lengths([2, 4])
    keys = torch.tensor([[True] * 4, [False, False, True, True]])
    assert recognise((causal() & padding(keys)).to_bool(4)) == causal(offset=0) & padding(keys)
    ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    assert recognise((causal() & documents(ids)).to_bool(4)) == documents(ids).aligned(4, 4) & causal(offset=0)
    assert recognise(prefix([1, 3]).to_bool(4)) == prefix([1, 3]).aligned(4, 4)
    assert recognise(padding(keys).to_bool(1, 4)) == padding(keys)


def test_examples_and_heads_that_are_alike_are_kept_once() -> None:
    cells = torch.rand(5, 7) > 0.5
    assert recognise(cells.repeat(2, 3, 1, 1)) == masks.bits(cells)
    assert recognise(cells.expand(2, 3, 5, 7)) == masks.bits(cells)
    by_example = torch.rand(2, 1, 5, 7) > 0.5
    assert recognise(by_example.repeat(1, 3, 1, 1)) == masks.bits(by_example)
    by_head = torch.rand(3, 5, 7) > 0.5
    assert recognise(by_head.repeat(2, 1, 1, 1)) == masks.bits(by_head)
    wide = torch.rand(1, 1, 8, 16) > 0.5  # compared in words of eight cells
    assert recognise(wide.repeat(2, 2, 1, 1)) == masks.bits(wide)
    wide = wide.repeat(2, 1, 1, 1)
    wide[1, 0, 7, 15] ^= True
    assert recognise(wide) == masks.bits(wide)


def test_heads_with_windows_of_their_own_are_runs() -> None:
    cells = torch.cat([window(n, 0).to_bool(6)[0] for n in range(3)])
    found = recognise(cells)
    assert found == runs([[max(0, q - n) for q in range(6)] for n in range(3)], range(1, 7))
    assert torch.equal(dense(found, cells.shape)[0], cells)


def test_the_result_shares_no_memory_with_the_tensor() -> None:
    for cells in (torch.tensor([[True, False, True]]), torch.rand(6, 6) > 0.5):
        before = cells.clone()
        found = recognise(cells)
        cells.fill_(True)
        assert torch.equal(dense(found, cells.shape)[0, 0], before)


# --- Properties -------------------------------------------------------------------------------------------------------

SIZES = [(2, 3, 12, 12), (2, 1, 5, 12), (1, 2, 1, 9), (2, 2, 12, 5), (1, 1, 6, 300), (2, 1, 3, 513)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@given(data=st.data())
def test_whatever_it_is_no_cell_changes(sizes: tuple[int, int, int, int], data: st.DataObject) -> None:
    cells = data.draw(compositions(sizes)).to_bool(*sizes[2:])
    found = recognise(cells)
    assert torch.equal(dense(found, tuple(cells.shape)), cells)
    assert in_bytes(found) <= max(
        cells.numel() // 8 + cells.numel() // cells.shape[-1], 20 * sum(cells.shape) * sizes[0]
    )


LINEAR = [
    *(n for n in ZOO if n.startswith(("causal", "window", "padding", "documents", "prefix", "runs"))),
]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [(n, sizes) for sizes in [*SIZES, (2, 2, 200, 200)] for n in LINEAR if fits(n, *sizes[2:])],
    ids=str,
)
def test_the_linear_kinds_are_recognised(name: str, sizes: tuple[int, int, int, int]) -> None:
    cells = ZOO[name](*sizes).to_bool(*sizes[2:])
    found = recognise(cells)
    assert torch.equal(dense(found, tuple(cells.shape)), cells)
    assert not kinds(found) & {Bits, Dense}, repr(found)
    assert in_bytes(found) <= 8 * cells.shape[0] * cells.shape[1] * (sizes[2] + sizes[3])


@st.composite
def products(draw: st.DrawFn, B: int, Q: int, K: int) -> Mask:
    """A band & padding & documents one after the other, each there or not."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    left = draw(st.sampled_from([None, 1, 3, 6]))
    band = window(left, draw(st.sampled_from([0, 0, 2])), draw(st.sampled_from([None, K - Q])))
    real = [
        torch.ones(B, K, dtype=torch.bool),
        torch.arange(K) < torch.randint(1, K + 1, (B, 1), generator=generator),
        torch.arange(K) >= torch.randint(0, K, (B, 1), generator=generator),
        torch.rand(B, K, generator=generator) > 0.3,
    ]
    ids = (torch.rand(B, K, generator=generator) > 0.8).cumsum(-1)
    parts = [band, padding(draw(st.sampled_from(real))), documents(ids)]
    chosen = draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3, unique_by=id))
    return functools.reduce(operator.and_, chosen)


@pytest.mark.parametrize(("B", "Q", "K"), [(1, 12, 12), (3, 12, 12), (2, 4, 12), (2, 1, 9), (2, 40, 300)])
@given(data=st.data())
def test_products_of_a_band_padding_and_documents_are_linear(B: int, Q: int, K: int, data: st.DataObject) -> None:
    cells = data.draw(products(B, Q, K)).to_bool(Q, K)
    found = recognise(cells)
    assert torch.equal(dense(found, tuple(cells.shape)), cells)
    assert not kinds(found) & {Bits, Dense}, repr(found)


@given(st.data())
def test_one_flipped_cell_is_never_overlooked(data: st.DataObject) -> None:
    Q, K = data.draw(st.sampled_from([(8, 8), (4, 8), (20, 300)]))
    cells = data.draw(products(2, Q, K)).to_bool(Q, K).expand(2, 1, Q, K).clone()
    cells[data.draw(st.integers(0, 1)), 0, data.draw(st.integers(0, Q - 1)), data.draw(st.integers(0, K - 1))] ^= True
    assert torch.equal(dense(recognise(cells), (2, 1, Q, K)), cells)


def test_the_first_query_to_see_a_key_tells_its_document() -> None:
    mask = documents(torch.arange(12) % 2) & window(4, 0)
    cells = mask.to_bool(7, 12)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            sys.modules["headwise.masks.recognise"], "row_blocks", lambda shape, size=0: row_blocks(shape, 24)
        )
        found = recognise(cells)
    assert torch.equal(dense(found, (7, 12)), cells)
    assert repr(found) == "documents([-1, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1], offset=5) & window(4, 0, offset=5)"


@pytest.mark.parametrize("name", ZOO)
def test_block_by_block_of_rows_it_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for Q, K in [(12, 12), (7, 12)]:
        if not fits(name, Q, K):
            continue
        cells = ZOO[name](2, 3, Q, K).to_bool(Q, K)
        cells = cells | (torch.arange(Q) == 5)[:, None] if name == "padding, keys" else cells
        bias = torch.where(cells, 0.0, -1e9)
        at_once, additive = recognise(cells), recognise_additive(bias)
        with monkeypatch.context() as patched:
            module = sys.modules["headwise.masks.recognise"]
            patched.setattr(module, "row_blocks", lambda shape, size=0: row_blocks(shape, 2 * shape[-1]))
            assert recognise(cells) == at_once
            mask, rows = recognise_additive(bias)
        assert mask == additive[0]
        assert (rows is None) == (additive[1] is None)
        assert rows is None or torch.equal(rows, additive[1])


@pytest.mark.parametrize(("Q", "K"), [(3, 3), (2, 5), (5, 2), (1, 6), pytest.param(3, 4, marks=pytest.mark.slow)])
def test_no_cell_of_any_small_matrix_changes(Q: int, K: int) -> None:
    for number in range(2 ** (Q * K)):
        cells = (torch.tensor(number) >> torch.arange(Q * K)).view(Q, K) % 2 == 1
        assert torch.equal(dense(recognise(cells), (Q, K))[0, 0], cells)


@pytest.mark.parametrize(
    "mask", [causal(), window(9, 0), documents(torch.arange(40) // 9), documents(torch.arange(40) % 3)]
)
def test_a_mask_with_a_wrong_cell_in_the_middle_is_packed(mask: Mask) -> None:
    cells = mask.to_bool(40).clone()
    cells[0, 0, 30, 28 if bool(cells[0, 0, 30, 28]) else 27] = False
    found = recognise(cells)
    assert found == masks.bits(cells)
    assert in_bytes(found) == 40 * 5


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 0, 5), (2, 1, 4, 0), (0, 1, 4, 4)])
def test_sizes_of_nothing_need_no_mask(shape: tuple[int, ...]) -> None:
    assert recognise(torch.zeros(shape, dtype=torch.bool)) is None
    assert recognise_additive(torch.full(shape, -torch.inf)) == (None, None)


def test_strides_do_not_matter() -> None:
    cells = (causal() & padding(torch.rand(1, 400) > 0.3)).to_bool(400)[0, 0]
    wide = torch.zeros(400, 403, dtype=torch.bool)
    wide[:, 3:] = cells
    for view in (wide[:, 3:], cells.T.contiguous().T, cells[None, None].expand(2, 2, 400, 400)):
        assert recognise(view) == recognise(cells)
    for K in (500, 512):
        odd = torch.ones(1 + 6 * K, dtype=torch.bool)[1:].view(2, 3, K)  # it begins in the middle of a word
        odd[1, 1, 7] = False
        assert torch.equal(dense(recognise(odd), (2, 3, K))[0], odd)
    expanded = torch.tensor([[[[True, False, True]]], [[[True, True, True]]]]).expand(2, 3, 9, 3)
    assert recognise(expanded) == padding(expanded[:, 0, 0])
    by_head = torch.tensor([[[True, False, True]], [[True, True, True]]]).expand(2, 9, 3)
    assert torch.equal(dense(recognise(by_head), (2, 9, 3))[0], by_head)


# --- Masks that models pass to attention ------------------------------------------------------------------------------


@pytest.fixture
def llama() -> object:
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, vocab_size=8)
    config.sliding_window, config.attention_chunk_size = 3, 4
    return config


LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9])
RIGHT = torch.tensor([[1] * 9, [1, 1, 1, 1, 1, 0, 0, 0, 0]])
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("make", "pad", "positions", "mask"),
    [
        ("create_causal_mask", LEFT, None, causal(0) & padding(LEFT.bool())),
        ("create_causal_mask", RIGHT, None, causal(0) & lengths([9, 5])),
        ("create_causal_mask", None, PACKED, documents([0] * 4 + [1] * 2 + [2] * 3).aligned(9, 9) & causal(0)),
        ("create_sliding_window_causal_mask", None, None, window(2, 0, 0)),
        ("create_sliding_window_causal_mask", LEFT, None, window(2, 0, 0) & padding(LEFT.bool())),
        ("create_sliding_window_causal_mask", RIGHT, None, window(2, 0, 0) & lengths([9, 5])),
        (
            "create_sliding_window_causal_mask",
            None,
            PACKED,
            documents([0] * 4 + [1] * 2 + [2] * 3).aligned(9, 9) & window(2, 0, 0),
        ),
        ("create_chunked_causal_mask", None, None, documents([0] * 4 + [1] * 4 + [2]).aligned(9, 9) & causal(0)),
        ("create_bidirectional_mask", LEFT, None, padding(LEFT.bool())),
        ("create_bidirectional_mask", RIGHT, None, lengths([9, 5])),
    ],
)
def test_the_masks_of_transformers(
    llama: object, implementation: str, make: str, pad: Tensor | None, positions: Tensor | None, mask: Mask
) -> None:
    from transformers import masking_utils

    since("transformers", "5.20")
    batch = 1 if pad is None else 2
    llama._attn_implementation = implementation  # type: ignore[attr-defined]
    given = getattr(masking_utils, make)(
        config=llama,
        inputs_embeds=torch.zeros(batch, 9, 8),
        attention_mask=pad,
        past_key_values=None,
        **({} if "bidirectional" in make else {"position_ids": positions}),
    )
    if implementation == "sdpa":
        assert recognise(given) == mask
        return
    found, rows = recognise_additive(given)
    whole = (given != 0).all(-1)
    if not whole.any():
        assert found == mask
        assert rows is None
    else:  # queries of padding, whose rows hold finfo.min throughout: they attend to everything alike
        assert torch.equal(dense(found, tuple(given.shape)), mask.to_bool(9) | whole[..., None])
        assert torch.equal(rows[..., 0], torch.where(whole, torch.finfo(torch.float32).min, 0.0))
        assert not kinds(found) & {Bits, Dense}


def test_chunks_that_begin_after_padding() -> None:
    chunk = torch.stack([torch.arange(9) // 4, (torch.arange(9) - 3) // 4])  # Llama 4 with left padding
    mask = documents(chunk - chunk.min()) & causal() & padding(LEFT.flip(0).bool())
    found = recognise(mask.to_bool(9))
    assert torch.equal(found.to_bool(9), mask.to_bool(9))
    assert not kinds(found) & {Bits, Dense}


# --- Additive ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("low", ["finfo", -torch.inf, -1e9, -1e4])
def test_zero_and_forbidden_are_a_mask(dtype: torch.dtype, low: float | str) -> None:
    if low == -1e9 and dtype == torch.float16:
        low = -torch.inf  # what it becomes there
    value = torch.finfo(dtype).min if low == "finfo" else low
    mask = causal(0) & lengths([4, 2])
    bias = torch.zeros(2, 1, 4, 4, dtype=dtype).masked_fill_(~mask.to_bool(4), value)
    assert recognise_additive(bias) == (mask, None)
    assert recognise_additive(bias[0, 0]) == (causal(0), None)
    assert recognise_additive(bias.float()) == (mask, None)
    assert recognise_additive(torch.zeros(3, 4, dtype=dtype)) == (None, None)
    assert recognise_additive(-torch.zeros(3, 4, dtype=dtype)) == (None, None)


@pytest.mark.parametrize(
    "bias",
    [
        torch.tensor([[0.0, -1.0], [0.0, 0.0]]),
        torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
        torch.tensor([[0.0, -9983.0], [0.0, 0.0]]),  # not so far below that it could not be seen
        torch.tensor([[1.0, 1.0], [0.0, 0.0]]),
        torch.tensor([[-5.0, -torch.inf], [0.0, 0.0]]),
        torch.tensor([[0.0, torch.nan], [0.0, 0.0]]),
        torch.tensor([[0.0, torch.inf], [0.0, 0.0]]),
        torch.tensor([[-10000.0, -10001.0], [0.0, 0.0]]),
        -torch.arange(4.0) * torch.tensor([0.5, 0.25])[:, None, None] + torch.zeros(2, 4, 1),  # ALiBi
        (-torch.arange(4.0)).masked_fill(torch.arange(4) > torch.arange(4)[:, None], -torch.inf),  # and causal
    ],
)
def test_anything_else_stays_the_bias_that_it_is(bias: Tensor) -> None:
    mask, left = recognise_additive(bias)
    assert mask is None
    assert left is bias
    assert recognise_additive(bias.clone().requires_grad_())[0] is None


def test_rows_forbidden_as_a_whole_still_attend() -> None:
    low = torch.finfo(torch.float32).min
    bias = torch.tensor([[low, low, low], [low, 0.0, low], [low, 0.0, 0.0]])
    mask, rows = recognise_additive(bias)
    assert mask.draw(3) == "■ ■ ■\n· ■ ·\n· ■ ■"
    assert rows.tolist() == [[[[low], [0.0], [0.0]]]]
    # The sum of two masks: -20000 where both forbid, -10000 where one does.
    mask, rows = recognise_additive(torch.tensor([[-1e4, -2e4, -2e4], [-1e4, 0.0, -1e4], [-1e4, 0.0, 0.0]]))
    assert mask.draw(3) == "■ · ·\n· ■ ·\n· ■ ■"
    assert rows.tolist() == [[[[-1e4], [0.0], [0.0]]]]
    # -inf throughout is a row that attends to nothing.
    mask, rows = recognise_additive(torch.tensor([[-torch.inf, -torch.inf], [low, 0.0]]))
    assert mask.draw(2) == "· ·\n· ■"
    assert rows is None
    # A whole row of finite values beside -inf.
    mask, rows = recognise_additive(torch.tensor([[low, -torch.inf], [0.0, 0.0]]))
    assert mask.draw(2) == "■ ·\n■ ■"
    assert rows.tolist() == [[[[low], [0.0]]]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("low", ["finfo", -1e4])
def test_the_weights_are_those_of_the_bias(dtype: torch.dtype, low: float | str) -> None:
    value = torch.finfo(dtype).min if low == "finfo" else low
    allowed = (causal() & padding(LEFT.bool())).to_bool(9)
    bias = torch.zeros(2, 1, 9, 9, dtype=dtype).masked_fill_(~allowed, value)
    mask, rows = recognise_additive(bias)
    assert rows.dtype == dtype
    assert rows.shape == (2, 1, 9, 1)
    scores = torch.randn(2, 4, 9, 9) * 50
    # The model's own arithmetic, and the same with what was recognised, both in float32.
    theirs = torch.softmax(scores + bias.float(), -1)
    ours = torch.softmax((scores + rows.float()).masked_fill(~mask.to_bool(9), -torch.inf), -1)
    assert torch.equal(ours, theirs)


def test_an_additive_mask_expanded_over_its_queries_is_padding() -> None:
    bias = torch.tensor([[[[0.0, -1e9, 0.0]]], [[[0.0, 0.0, 0.0]]]]).expand(2, 4, 5, 3)
    mask, rows = recognise_additive(bias)
    assert mask == padding(torch.tensor([[True, False, True], [True, True, True]]))
    assert rows is None
    mask, rows = recognise_additive(torch.full((1, 1, 1, 3), -1e9).expand(2, 4, 5, 3))
    assert mask is None
    assert rows.tolist() == [[[[-1e9]]]]


def test_examples_that_look_alike_in_bytes_only_are_told_apart() -> None:
    bias = torch.zeros(2, 1, 4, 4)
    bias[1] = -bias[1]  # -0.0
    bias[1, 0, 0, 3] = -torch.inf
    mask, _ = recognise_additive(bias)
    assert torch.equal(dense(mask, (2, 1, 4, 4)), bias == 0)


def test_a_bias_that_trains_is_recognised_without_its_graph() -> None:
    mask, rows = recognise_additive(torch.tensor([[-1e9, -1e9], [-1e9, 0.0]], requires_grad=True))
    assert mask is not None
    assert not rows.requires_grad


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: recognise(torch.zeros(2, 2)), DtypeError, r"recognise: expected a bool tensor.*recognise_additive"),
        (lambda: recognise([[True]]), DtypeError, r"Received: list"),
        (lambda: recognise(torch.ones(2, dtype=torch.bool)), MaskError, r"recognise: expected \[Q, K\].*\[2\]"),
        (lambda: recognise(torch.ones([1] * 5, dtype=torch.bool)), MaskError, r"Received: \[1, 1, 1, 1, 1\]"),
        (lambda: recognise_additive(torch.ones(2, 2, dtype=torch.bool)), DtypeError, r"expected a float tensor"),
        (lambda: recognise_additive(None), DtypeError, r"Received: NoneType"),
        (lambda: recognise_additive(torch.ones(2)), MaskError, r"recognise_additive: expected \[Q, K\]"),
    ],
)
def test_bad_input_is_named(make: object, kind: type[HeadwiseError], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ZOO)
def test_on_a_gpu_it_is_the_same(name: str) -> None:
    cells = ZOO[name](2, 3, 300, 300).to_bool(300)
    here, there = recognise(cells), recognise(cells.cuda())
    assert there is None if here is None else there.to("cpu") == here
    assert there is None or there.device in (None, torch.device("cuda", 0))
    bias = torch.zeros(cells.shape).masked_fill_(~cells, -1e9)
    mask, rows = recognise_additive(bias.cuda())
    assert (rows is None) == (recognise_additive(bias)[1] is None)
    assert mask is None if (alone := recognise_additive(bias)[0]) is None else mask.to("cpu") == alone
