"""A mask answers for its tables as they are now; a call, its backward and its record for what they were then."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.masks import Mask
from headwise.masks.bits import Bits
from headwise.masks.memo import KEPT, MISSING, Memo

N = 20
LARGE = 300  # cells of so many rows and columns are kept at one bit each


def flipped(x: Tensor) -> Tensor:
    return ~x


# name -> a tensor, the mask that is made of it, and another number for each of its own
TABLES: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Mask], Callable[[Tensor], Tensor]]] = {
    "padding": (lambda: torch.arange(8 * N).view(8, N) % 3 > 0, masks.padding, flipped),
    "lengths": (lambda: torch.arange(1, N + 1).repeat(8), masks.lengths, lambda n: n - 1),
    "dense": (lambda: torch.ones(N, N, dtype=torch.bool).tril(), masks.from_tensor, flipped),
    "dense, by example": (lambda: torch.arange(8 * N).view(8, 1, 1, N) % 3 > 0, masks.from_tensor, flipped),
    "documents": (lambda: torch.arange(8 * N).view(8, N) // 4, masks.documents, lambda ids: -ids - 1),
    "prefix": (lambda: torch.arange(1, N + 1).repeat(8), masks.prefix, lambda n: n - 1),
    "block_sparse": (
        lambda: torch.ones(8, 3, 5, dtype=torch.bool).tril(),
        lambda x: masks.block_sparse(x[:, None], 4),
        flipped,
    ),
    "padding of integers": (lambda: (torch.arange(8 * N).view(8, N) % 3).clamp(max=1), masks.padding, lambda x: 1 - x),
    "documents of int32": (
        lambda: torch.arange(8 * N, dtype=torch.int32).view(8, N) // 4,
        masks.documents,
        lambda ids: -ids - 1,
    ),
    "documents of all": (lambda: torch.arange(N, dtype=torch.int16) // 4, masks.documents, lambda ids: -ids - 1),
    "lengths of int32": (lambda: torch.arange(1, N + 1).repeat(8).int(), masks.lengths, lambda n: n - 1),
    "prefix of uint8": (lambda: torch.arange(1, N + 1).repeat(8).byte(), masks.prefix, lambda n: n - 1),
    "knockout of integers": (
        lambda: torch.arange(N) % 2,
        lambda x: masks.knockout(x, torch.ones(N, dtype=torch.uint8)),
        lambda x: 1 - x,
    ),
    "runs": (
        lambda: torch.zeros(8, 1, N, dtype=torch.int32),
        lambda x: masks.mask.KINDS["runs"](x, torch.full_like(x, 5)),  # type: ignore[call-arg]
        lambda start: start + 2,
    ),
    "bits": (
        lambda: torch.arange(8 * N * 3, dtype=torch.uint8).view(8, 1, N, 3),
        lambda x: Bits(x, N),
        lambda byte: byte ^ 1,
    ),
    "a composition": (
        lambda: torch.arange(8 * N).view(8, N) % 3 > 0,
        lambda real: masks.causal() & ~masks.padding(real),
        flipped,
    ),
}
TABLES["block_sparse"] = (lambda: torch.ones(8, 5, 5, dtype=torch.bool).tril(), *TABLES["block_sparse"][1:])

WAYS: dict[str, Callable[[Tensor, int, Tensor], Any]] = {
    "torch": lambda x, at, value: x.view(-1)[at].copy_(value),
    "numpy": lambda x, at, value: x.numpy().reshape(-1).__setitem__(at, value.numpy()),
    "data": lambda x, at, value: x.data.view(-1)[at].copy_(value),
}


def answers(mask: Mask) -> list[Tensor | None]:
    q = torch.randn(mask.batch or 1, 2, N, 8, generator=torch.Generator().manual_seed(0))
    kept = [mask.to_bool(N), mask.blocks(N, N, 4), mask.used_keys(N, N), mask.causal_rows(N, N)]
    return [*kept, *(headwise.attention(q, q, q, mask=mask, kernel=kernel) for kernel in ("auto", "tiled"))]


def same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("name", TABLES)
def test_one_number_that_is_written_is_seen_however_it_is_written(name: str, by: str) -> None:
    table, make, other = TABLES[name]
    tensor = table()
    mask = make(tensor)
    for place in torch.randint(tensor.numel(), (3,), generator=torch.Generator().manual_seed(0)).tolist():
        before, value = answers(mask), other(tensor.view(-1)[place])
        WAYS[by](tensor, place, value)
        fresh = table().copy_(tensor)
        found = answers(mask)
        assert same(found, answers(make(fresh)))
        assert not same(found, before)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("wrap", [lambda x: x, masks.from_tensor], ids=["bool", "mask"])
def test_one_cell_of_a_large_tensor_is_seen(wrap: Any, by: str) -> None:
    for allowed in (torch.ones(LARGE, LARGE, dtype=torch.bool).tril(), torch.rand(LARGE, LARGE) > 0.5):
        given, q = wrap(allowed), torch.randn(1, 2, LARGE, 8, generator=torch.Generator().manual_seed(1))
        for place in (1, LARGE * LARGE - 2):
            for _ in range(2):  # the second time it is known
                headwise.attention(q, q, q, mask=given)
            WAYS[by](allowed, place, ~allowed.view(-1)[place])
            expected = headwise.attention(q, q, q, mask=allowed.clone(), kernel="reference")
            assert torch.allclose(headwise.attention(q, q, q, mask=given), expected, atol=1e-5)


def test_an_inference_tensor_counts_no_changes_and_is_compared() -> None:
    with torch.inference_mode():
        tensor = torch.ones(8, N, dtype=torch.bool)
        mask = masks.padding(tensor)
        before = answers(mask)
        tensor[3, 7] = False
        assert not same(answers(mask), before)
    x = torch.randn(8, 2, N, 8, requires_grad=True)  # what was copied in inference mode may be used out of it
    headwise.attention(x, x, x, mask=mask).sum().backward()


def test_transformed_code_looks_at_nothing_and_keeps_nothing() -> None:
    x, mask = torch.randn(1, 2, N, 8), masks.padding(torch.arange(N) % 3 > 0) & masks.causal()
    new, leaf = masks.padding(torch.arange(N) % 3 > 0) & masks.causal(), x.clone().requires_grad_()

    def loss(q: Tensor, mask: Mask) -> Tensor:
        return headwise.attention(q, x, x, mask=mask, kernel="reference").square().sum()

    (expected,) = torch.autograd.grad(loss(leaf, mask), leaf)
    assert torch.allclose(torch.func.grad(loss)(x, new), expected, atol=1e-5)
    assert not {"_owned", "_memo"} & vars(new).keys()


def test_an_owned_mask_is_the_same_until_a_table_holds_something_else() -> None:
    real = torch.ones(2, N, dtype=torch.bool)
    mask = masks.causal() & masks.padding(real)
    owned = mask.owned()
    assert owned == mask
    assert owned is mask.owned() is owned.owned()
    real.copy_(real.clone())  # the same again
    assert mask.owned() is owned
    real[1, 4] = False
    assert mask.owned() is not owned
    assert mask.owned() == mask
    assert owned != mask
    assert masks.causal().owned() == masks.causal()


@pytest.mark.parametrize("shape", [(N, N), (2, 1, 1, N), (LARGE, LARGE)], ids=str)
def test_what_a_call_made_is_not_changed_by_what_is_written_later(shape: tuple[int, ...]) -> None:
    length = shape[-1]
    x = torch.randn(2, 2, length, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.5
    expected = headwise.attention(x, x, x, mask=allowed.clone()).square().sum()
    (gradient,) = torch.autograd.grad(expected, x)
    out, record = headwise.attention(x, x, x, mask=allowed, record=True)
    weights = record.weights()
    allowed.logical_not_()
    assert torch.allclose(torch.autograd.grad(out.square().sum(), x)[0], gradient, atol=1e-5)
    assert torch.equal(record.weights(), weights)


def test_what_to_bool_gives_is_a_copy() -> None:
    for mask in (masks.from_tensor(torch.rand(N, N) > 0.5), masks.bits(torch.rand(N, N) > 0.5)):
        aligned = mask.aligned(N, N)
        before = aligned.to_bool(N)
        aligned.to_bool(N).fill_(False)
        assert torch.equal(mask.to_bool(N), before)
        assert torch.equal(aligned.to_bool(N), before)


def test_a_large_tensor_is_owned_at_one_bit_a_cell_and_written_as_it_was() -> None:
    allowed = torch.rand(2, 1, LARGE, LARGE) > 0.5
    owned = masks.from_tensor(allowed).owned()
    assert sum(x.numel() for x in owned.tensors) < allowed.numel() / 7
    assert repr(owned) == repr(masks.from_tensor(allowed))
    assert torch.equal(owned.to_bool(LARGE), allowed)
    expanded = masks.from_tensor(allowed[:1, :, :1].expand(2, 3, LARGE, -1)).owned()
    assert sum(x.untyped_storage().nbytes() for x in expanded.tensors) == LARGE  # expanded as before
    assert (expanded.batch, expanded.heads) == (2, 3)


def test_four_kinds_of_call_at_several_lengths_are_remembered() -> None:
    made = []
    mask = masks.causal()
    for _ in range(10):
        for length in range(8):
            for kind in ("train", "evaluate", "last of train", "last of evaluate"):
                for purpose in ("kernel", "schedule"):
                    mask.remember((purpose, kind, length), lambda _: made.append(1))
    assert len(made) == 2 * 4 * 8


def test_a_purpose_does_not_push_out_another_and_stays_bounded() -> None:
    memo = Memo()
    memo.keep(("aligned", 1), "one")
    for i in range(1000):
        memo.keep(("blocks", i), i)
    assert memo.find(("aligned", 1)) == "one"
    assert [memo.find(("blocks", i)) is not MISSING for i in range(1000)].count(True) == KEPT
    oldest = 1000 - KEPT
    assert memo.find(("blocks", oldest)) == oldest  # now the last used
    memo.keep(("blocks", "new"), 0)
    assert memo.find(("blocks", oldest)) == oldest
    assert memo.find(("blocks", oldest + 1)) is MISSING


def test_a_decoding_loop_keeps_a_bounded_number_of_aligned_masks() -> None:
    mask = masks.window(8, 0) & masks.causal()
    kept = [weakref.ref(mask.aligned(1, length)) for length in range(1, 200)]
    gc.collect()
    assert sum(each() is not None for each in kept) == KEPT


@pytest.mark.parametrize("make", [lambda: masks.lengths([3]), masks.causal], ids=["a table", "none"])
def test_a_mask_is_freed_with_its_last_reference(make: Callable[[], Mask]) -> None:
    mask, q = make(), torch.randn(1, 1, 4, 8)
    headwise.attention(q, q, q, mask=mask)
    mask.aligned(4, 4).blocks(4, 4, 2)
    gone = [weakref.ref(mask), weakref.ref(mask.owned())]
    gc.disable()
    try:
        del mask
        assert [each() for each in gone] == [None, None]  # it does not keep itself
    finally:
        gc.enable()


def test_several_threads_may_ask_at_once() -> None:
    """One table changes between two states, a number at a time: what each thread is told is one of these."""
    real, wrong = torch.ones(2, N, dtype=torch.bool), []
    mask, whole = masks.padding(real), real.clone()
    part = whole.clone()
    part[1, 7] = False

    def ask(seed: int) -> None:
        for i in range(300):
            owned = mask.owned()
            if not any(torch.equal(owned.to_bool(1, N)[:, 0, 0], each) for each in (whole, part)):
                wrong.append("torn")
            if not torch.equal(owned.seen_keys(1, N)[:, 0], owned.to_bool(1, N)[:, 0, 0]):
                wrong.append("two states")
            key = (i * 7 + seed) % 50
            if mask.remember(("number", key), lambda _, key=key: key * 2) != key * 2:  # type: ignore[misc]
                wrong.append(str(key))
            if seed == 0:
                real.numpy()[1, 7] ^= True

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_new_mask_may_be_copied_while_another_thread_asks_it() -> None:
    """The first questions add what a mask remembers to it."""

    def copy_and_ask(mask: Mask) -> None:
        copy.copy(mask)
        mask.to_bool(4, 4)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(300):
                mask = masks.documents(torch.arange(4)) & masks.causal()
                list(pool.map(copy_and_ask, [mask] * 4))
    finally:
        sys.setswitchinterval(interval)
