"""Bool tensors given as masks: recognised once, remembered by identity, and broadcast as PyTorch does it."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import masks
from headwise.call import fit_mask
from headwise.errors import MaskError, ShapeError
from headwise.masks import tensors
from headwise.masks.bits import Bits
from headwise.masks.cellwise import Dense
from headwise.masks.padding import PaddingKeys, PaddingLengths

LARGE = 256  # recognised when it is first seen


def fitted(mask: Tensor, q_len: int, k_len: int, batch: int = 1, heads: int = 2) -> masks.Mask:
    return fit_mask(mask, torch.empty(batch, heads, q_len, 4), heads, q_len, k_len)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a tensor is recognised."""
    looked: list[int] = []
    simple_parts = tensors.simple_parts

    def count(cells: object) -> object:
        looked.append(1)
        return simple_parts(cells)  # type: ignore[arg-type]

    monkeypatch.setattr(tensors, "simple_parts", count)
    return looked


def test_a_large_tensor_is_recognised_at_once_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = counted(monkeypatch)
    causal = torch.ones(LARGE, LARGE, dtype=torch.bool).tril()
    first = fitted(causal, LARGE, LARGE)
    assert first == masks.causal(offset=0)
    assert fitted(causal, LARGE, LARGE) is first
    assert fitted(causal[:], LARGE, LARGE) is first  # another view of the same cells
    assert fitted(causal[None], LARGE, LARGE) is fitted(causal[None], LARGE, LARGE)
    assert len(looked) <= 2


def test_a_small_tensor_is_recognised_when_it_comes_again() -> None:
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    assert isinstance(fitted(causal, 6, 6), Dense)
    assert fitted(causal, 6, 6) == masks.causal(offset=0)


def test_a_tensor_that_allows_everything_is_a_band_without_limits() -> None:
    everything = torch.ones(LARGE, LARGE, dtype=torch.bool)
    assert fitted(everything, LARGE, LARGE).band() == (-np.inf, np.inf)


def test_a_fresh_view_of_the_same_cells_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = counted(monkeypatch)
    whole = torch.ones(1, 1, 2 * LARGE, 2 * LARGE, dtype=torch.bool).tril()
    found = [fitted(whole[:, :, :LARGE], LARGE, 2 * LARGE) for _ in range(5)]
    assert all(each is found[0] for each in found)
    fitted(whole[:, :, 1 : LARGE + 1], LARGE, 2 * LARGE)  # other cells
    assert len(looked) == 2


def test_random_cells_are_kept_as_bits_and_keep_what_they_worked_out() -> None:
    allowed = torch.rand(LARGE, LARGE, generator=torch.Generator().manual_seed(0)) > 0.5
    first = fitted(allowed, LARGE, LARGE)
    assert isinstance(first, Bits)
    made: list[int] = []
    for _ in range(3):
        fitted(allowed, LARGE, LARGE).remember(("purpose",), lambda _: made.append(1))
    assert made == [1]


def test_memory_that_is_used_again_is_another_tensor() -> None:
    """One array under two storages: address, shape, strides and version are all the same, the cells are not."""
    array = np.tri(LARGE, dtype=bool)
    address, seen = array.ctypes.data, []
    for k in (0, 1, 2):
        array[:] = np.tri(LARGE, k=k, dtype=bool)
        allowed = torch.from_numpy(array)
        assert allowed.data_ptr() == address
        seen.append(fitted(allowed, LARGE, LARGE))
        del allowed
    assert seen == [masks.causal(offset=0), masks.causal(offset=1), masks.causal(offset=2)]


def test_the_memory_of_a_tensor_is_not_held() -> None:
    for make in (lambda: torch.ones(LARGE, LARGE).tril() > 0, lambda: torch.rand(LARGE, LARGE) > 0.5):
        allowed = make()
        q = torch.randn(1, 2, LARGE, 8)
        for _ in range(3):
            headwise.attention(q, q, q, mask=allowed)
        storage, gone = tensors.StorageWeakRef(allowed.untyped_storage()), weakref.ref(allowed)
        del allowed
        gc.collect()
        assert gone() is None
        assert storage.expired()


def test_many_tensors_are_remembered_in_bounded_number() -> None:
    kept = [torch.ones(LARGE, LARGE, dtype=torch.bool).tril(i) for i in range(tensors.KEPT + 9)]
    for each in kept:
        fitted(each, LARGE, LARGE)
    assert len(tensors._known) == tensors.KEPT


def test_an_inference_tensor_is_remembered_too() -> None:
    with torch.inference_mode():
        allowed = torch.ones(LARGE, LARGE, dtype=torch.bool).tril()
        first = fitted(allowed, LARGE, LARGE)
        assert fitted(allowed, LARGE, LARGE) is first
        allowed.tril_(-1)
        assert fitted(allowed, LARGE, LARGE) == masks.causal(offset=-1)


def test_a_compiled_function_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = counted(monkeypatch)
    monkeypatch.setattr(sys.modules["torch.compiler"], "is_compiling", lambda: True)
    assert isinstance(fitted(torch.ones(LARGE, LARGE, dtype=torch.bool).tril(), LARGE, LARGE), Dense)
    assert not looked


@pytest.mark.parametrize(
    "shape", [(2, 1, 1, 7), (2, 3, 1, 7), (1, 1, 5, 1), (2, 1, 5, 1), (2, 3, 1, 1), (1, 7), (5, 1), (1, 1), (3, 5, 1)]
)
@pytest.mark.parametrize("q_len", [5, 1])
def test_sizes_of_one_are_broadcast_as_pytorch_does(shape: tuple[int, ...], q_len: int) -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 3, q_len, 4, generator=generator)
    k = torch.randn(2, 3, 7, 4, generator=generator)
    shape = tuple(q_len if size == 5 else size for size in shape)
    allowed = torch.rand(shape, generator=generator) > 0.4
    expected = scaled_dot_product_attention(q, k, k, attn_mask=allowed).nan_to_num(0.0)
    empty = ~allowed.expand(2, 3, q_len, 7).any(-1)
    for _ in range(3):  # first seen, recognised, remembered
        for mask in (allowed, masks.from_tensor(allowed)):
            out = headwise.attention(q, k, k, mask=mask)
            assert torch.allclose(out, expected.masked_fill(empty[..., None], 0.0), atol=1e-6)


def test_what_is_the_same_for_all_queries_is_padding() -> None:
    real = torch.tensor([[True, False, True], [True, True, False]])
    for _ in range(3):
        assert isinstance(fitted(real[:, None, None], 4, 3, batch=2), PaddingKeys)
    assert masks.from_tensor(real[:, None, None]).aligned(4, 3).key_only
    first = torch.tensor([[True, False, False], [True, True, False]])[:, None, None]
    assert [type(fitted(first, 4, 3, batch=2)) for _ in range(2)] == [PaddingKeys, PaddingLengths]


def test_a_tensor_of_another_batch_is_refused_even_if_its_examples_are_alike() -> None:
    allowed = torch.ones(3, 1, LARGE, LARGE, dtype=torch.bool)
    with pytest.raises(ShapeError):
        fitted(allowed, LARGE, LARGE, batch=2)
    with pytest.raises(MaskError, match="Q = 4 and K = 4"):
        fitted(torch.ones(3, 4, dtype=torch.bool), 4, 4)


def test_padding_takes_what_hugging_face_calls_attention_mask() -> None:
    ones = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert masks.padding(ones) == masks.padding(ones.bool()) == masks.padding([[1, 1, 0], [1, 0, 0]])
    assert masks.padding([1, 1, 0]).to_bool(2, 3).tolist() == [[[[True, True, False]] * 2]]
    assert masks.padding(ones).to_bool(1, 3).equal(masks.lengths([2, 1]).to_bool(1, 3))
    assert masks.padding(np.array([True, False])).to_bool(1, 2).tolist() == [[[[True, False]]]]


@pytest.mark.parametrize("given", [3, [3, 5], [[2, 1]], torch.tensor([4])])
def test_lengths_given_as_padding_are_told_their_name(given: object) -> None:
    with pytest.raises(MaskError, match=r"padding: expected .*masks.lengths"):
        masks.padding(given)  # type: ignore[arg-type]
