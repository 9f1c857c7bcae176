"""The masks of transformers' forwards, read as headwise's: the same cells, and blocks that are skipped."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import masking_utils as theirs

from headwise.masks import causal
from headwise.masks.block_runs import block_runs
from headwise.transformers import MaskTensor, make_mask
from headwise.transformers.mask_functions import BEFORE_5_4, Grid, MaskFunction, say_sizes

LEFT = torch.tensor([0, 3])


later = pytest.mark.skipif(BEFORE_5_4, reason="transformers before 5.4 has not all of these masks")


def pairs(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Even tokens see one another: a mask function as a user writes it."""
    return (q % 2 == 0) & (k % 2 == 0)


def packed() -> Callable[..., Any]:
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
    sequences = theirs.find_packed_sequence_indices(positions)
    return theirs.packed_sequence_compatibility_function(
        theirs.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)), positions, sequences
    )


FUNCTIONS = {
    "causal": theirs.causal_mask_function,
    "window": theirs.sliding_window_causal_mask_function(4),
    "chunks": theirs.chunked_causal_mask_function(5, LEFT),
    "a user's": theirs.or_masks(theirs.causal_mask_function, pairs),
    "a user's and": theirs.and_masks(theirs.causal_mask_function, pairs),
}
if not BEFORE_5_4:
    images = theirs.blockwise_overlay(torch.tensor([[-1] * 5 + [0] * 4 + [1] * 3] * 2))
    FUNCTIONS |= {
        "bidirectional": theirs.bidirectional_mask_function,
        "window on both sides": theirs.sliding_window_bidirectional_mask_function(2),
        "images": theirs.or_masks(theirs.causal_mask_function, images),
    }
SIZES = {  # queries, keys, position of the first query, position of the first key
    "whole": (12, 12, 0, 0),
    "a step": (1, 12, 11, 0),
    "some steps": (3, 12, 9, 0),
    "a static cache": (4, 12, 3, 0),
    "a sliding cache": (3, 6, 9, 6),
    "queries beyond the keys": (4, 6, 8, 0),
}


def allowed(found: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Which query may attend to which key, bool [B, 1, Q, K]."""
    assert isinstance(found, Tensor)
    cells = found.make_cells() if isinstance(found, MaskTensor) else found
    assert ((cells == 0) | (cells == torch.finfo(cells.dtype).min)).all()
    return (cells == 0).expand(shape)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_cells_are_those_of_transformers(name: str, size: str, padding: str) -> None:
    q_len, k_len, q_offset, k_offset = SIZES[size]
    given = {"mask_function": FUNCTIONS[name], **say_sizes(2, q_len, k_len, q_offset, k_offset, torch.device("cpu"))}
    if padding != "none":
        given["attention_mask"] = torch.ones(2, 12, dtype=torch.bool)
        given["attention_mask"][1, : 3 if padding == "left" else None] = False
        given["attention_mask"][1, 3 if padding == "left" else 0 : 9] = True
    shape, options = (2, 1, q_len, k_len), {} if BEFORE_5_4 else {"use_vmap": "user" in name}
    expected = theirs.sdpa_mask(**given, allow_is_causal_skip=False, **options)
    assert torch.equal(allowed(make_mask(**given), shape), expected.expand(shape))


@later
def test_packed_sequences_with_positions_of_their_own() -> None:
    function = packed()
    expected = theirs.sdpa_mask(2, 12, 12, mask_function=function, allow_is_causal_skip=False)
    found = make_mask(2, 12, 12, mask_function=function)
    assert isinstance(found, MaskTensor)
    assert torch.equal(allowed(found, (2, 1, 12, 12)), expected)


def test_a_mask_function_that_is_another_callable() -> None:
    near: MaskFunction = functools.partial(lambda b, h, q, k, by: (q - k).abs() <= by, by=2)
    given: dict[str, Any] = {"mask_function": near, **say_sizes(2, 5, 7, 0, 0, torch.device("cpu"))}
    places = torch.arange(5)[:, None] - torch.arange(7)
    assert torch.equal(allowed(make_mask(**given), (2, 1, 5, 7)), (places.abs() <= 2).expand(2, 1, 5, 7))


@later
def test_a_step_that_sees_every_key_needs_no_mask() -> None:
    sizes = say_sizes(2, 1, 7, 6, 0, torch.device("cpu"))
    assert make_mask(**sizes, allow_is_causal_skip=True) is None
    assert isinstance(make_mask(**sizes, allow_is_causal_skip=False), MaskTensor)  # the model works on its cells
    padded = torch.arange(7)[None].expand(2, -1) > 1
    assert isinstance(make_mask(**sizes, attention_mask=padded, allow_is_causal_skip=True), MaskTensor)


@later
@pytest.mark.parametrize("name", ["causal", "window", "chunks", "padding", "packed"])
def test_blocks_are_skipped(name: str) -> None:
    """Kernels skip the blocks of 64 × 64 in which nothing is allowed."""
    length, given = 512, {}
    positions = torch.arange(length)[None] % 128
    given["mask_function"] = {
        "causal": theirs.causal_mask_function,
        "window": theirs.sliding_window_causal_mask_function(64),
        "chunks": theirs.chunked_causal_mask_function(128, torch.zeros(1, dtype=torch.long)),
        "padding": theirs.bidirectional_mask_function,
        "packed": theirs.packed_sequence_compatibility_function(
            theirs.causal_mask_function, positions, theirs.find_packed_sequence_indices(positions)
        ),
    }[name]
    if name == "padding":
        given["attention_mask"] = torch.arange(length)[None] < 128
    found = make_mask(1, length, length, **given)
    assert isinstance(found, MaskTensor)
    _, _, skipped = block_runs(found.mask.aligned(length, length), length, length, 64, 64).counts()
    assert skipped == {"causal": 28, "window": 49, "chunks": 52, "padding": 48, "packed": 52}[name]


@later
def test_nothing_is_evaluated_for_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grid, "_evaluate", lambda *_: pytest.fail("a known mask function was evaluated"))
    for name, function in FUNCTIONS.items():
        if "user" not in name:
            make_mask(2, 12, 12, mask_function=function)
    make_mask(2, 12, 12, mask_function=packed())


def test_a_matrix_is_made_while_code_is_traced_and_for_a_step_of_a_static_cache() -> None:
    step = make_mask(2, 1, 12, q_offset=torch.tensor(5))
    assert type(step) is Tensor
    assert allowed(step, (2, 1, 1, 12))[0, 0, 0].tolist() == [True] * 6 + [False] * 6
    prefill = make_mask(2, 4, 12, q_offset=torch.tensor(0))
    assert isinstance(prefill, MaskTensor)

    def masked(x: Tensor) -> Any:
        return x + make_mask(1, 4, 4)  # type: ignore[operator]

    traced = torch.compile(masked, backend="eager", fullgraph=True)(torch.zeros(4, 4))
    assert torch.equal(traced == 0, torch.ones(1, 1, 4, 4).tril() == 1)


@pytest.fixture
def tensor() -> MaskTensor:
    return MaskTensor(causal(), (2, 1, 5, 5), torch.float32, torch.device("cpu"))


def test_what_changes_nothing_returns_the_same_tensor(tensor: MaskTensor) -> None:
    for same in (
        tensor[:, :, :, :5],
        tensor.detach(),
        tensor.to("cpu"),
        tensor.contiguous(),
        tensor.expand(2, 1, 5, 5),
    ):
        assert isinstance(same, MaskTensor)
        assert same.mask is tensor.mask


def test_what_reads_its_cells_gets_a_plain_tensor(tensor: MaskTensor) -> None:
    cells = torch.full((5, 5), torch.finfo(torch.float32).min).triu(1).expand(2, 1, 5, 5)
    for found, expected in (
        (tensor[:, :, 2:], cells[:, :, 2:]),
        (tensor + 1.0, cells + 1.0),
        (tensor == 0, cells == 0),
        (tensor.half(), cells.half()),
        (torch.where(tensor == 0, 1.0, tensor), torch.where(cells == 0, 1.0, cells)),
        (torch.cat([tensor, torch.zeros(2, 1, 5, 2)], -1), torch.cat([cells, torch.zeros(2, 1, 5, 2)], -1)),
    ):
        assert type(found) is Tensor
        assert torch.equal(found, expected)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)).make_cells(), cells)
    assert repr(tensor) == "MaskTensor(causal(), shape=[2, 1, 5, 5])"


@later
def test_a_step_that_sees_all_keys_has_no_mask() -> None:
    window = theirs.sliding_window_causal_mask_function(8)
    for mask_function, k_offset in ((theirs.causal_mask_function, 0), (window, 4)):
        found = make_mask(2, 1, 12 - k_offset, q_offset=11, kv_offset=k_offset, mask_function=mask_function)
        assert isinstance(found, MaskTensor)
        assert found.mask is None
        assert torch.equal(found + 0.0, torch.zeros(2, 1, 1, 12 - k_offset))


def test_nothing_is_masked() -> None:
    whole = make_mask(2, 3, 3, mask_function=theirs.bidirectional_mask_function)
    assert allowed(whole, (2, 1, 3, 3)).all()
    assert (
        make_mask(2, 3, 3, mask_function=theirs.bidirectional_mask_function, allow_is_bidirectional_skip=True) is None
    )
