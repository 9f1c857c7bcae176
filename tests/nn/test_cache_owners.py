"""Whose a cache is: its children, the module it is bound to, the memory it holds, and what it refuses."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.errors import ArgumentError, CacheError, DtypeError, ShapeError
from headwise.nn.cache import Cache
from tests.nn.slots import CPU, numbers, rows, shown, tokens


class TestChildren:
    def test_a_child_is_made_once_with_the_same_options(self) -> None:
        cache = Cache(window=3)
        assert cache.child("0") is cache.child("0")
        assert cache.child("0").window == 3

    def test_calls_reach_all_children(self) -> None:
        cache = Cache()
        for name, values in (("0", (1, 2, 3)), ("1", (4, 5, 6))):
            cache.child(name).child("self").append(rows([*values], [*values]))
        assert cache.bytes == 2 * 2 * 3 * 4
        cache.crop(2)
        cache.reorder(torch.tensor([0]))
        assert shown(cache.child("1").child("self").append(tokens(9))[0]) == [[4, 5, 9]]
        cache.reset()
        assert (cache.bytes, cache.allocated, cache.length) == (0, 0, 0)

    def test_a_stack_answers_for_its_longest_child(self) -> None:
        cache = Cache()
        cache.child("cross").memory(tokens(1), tokens(1), lambda k, v: (k, v))
        padding = torch.tensor([[False, True], [True, True]])
        cache.child("self").append(rows([0, 1], [2, 3]), real=padding)
        assert (cache.length, cache.size) == (2, 2)
        assert torch.equal(cache.real, padding)  # type: ignore[arg-type]
        assert numbers(cache.next_positions(1, device=CPU)) == [[1], [2]]
        assert numbers(cache.key_positions(device=CPU)) == [[0, 0], [0, 1]]

    def test_a_crop_that_one_child_refuses_changes_none(self) -> None:
        cache = Cache(window=2)
        cache.child("short").append(tokens(1, 2))
        cache.child("long").append(tokens(1, 2, 3))
        with pytest.raises(CacheError):
            cache.crop(1)
        assert cache.child("short").length == 2

    def test_repr_is_short(self) -> None:
        cache = Cache()
        cache.append(torch.zeros(2, 2, 12, 500), torch.zeros(2, 2, 12, 500))
        assert repr(cache) == "Cache(length=12, size=12, 192.0 kB)"
        assert repr(Cache(window=4)) == "Cache(length=0, size=0, 0 B, window=4)"
        stack = Cache(capacity=8)
        stack.child("0").append(tokens(1))
        assert repr(stack) == "Cache(length=1, size=1, 4 B, capacity=8, 1 child)"
        stack.child("1")
        assert repr(stack).endswith(", 2 children)")


class TestOwner:
    def test_another_module_is_refused(self) -> None:
        cache, owner = Cache(), nn.Linear(1, 1)
        cache.bind(owner)
        cache.bind(owner)
        with pytest.raises(CacheError, match=r"cache of this module, ReLU"):
            cache.bind(nn.ReLU())
        cache.reset()
        cache.bind(nn.ReLU())

    def test_the_owner_is_held_weakly(self) -> None:
        cache, owner = Cache(), nn.Linear(1, 1)
        cache.bind(owner)
        del owner
        gc.collect()
        with pytest.raises(CacheError, match="Received: a cache of a module that no longer exists"):
            cache.bind(nn.ReLU())

    def test_a_deep_copy_is_independent_and_has_the_same_owner(self) -> None:
        cache, owner = Cache(capacity=4), nn.Linear(1, 1)
        cache.bind(owner)
        cache.append(tokens(1, 2).requires_grad_())
        cache.child("a").append(tokens(7))
        twin = copy.deepcopy(cache)
        cache.append(tokens(3))
        cache.child("a").append(tokens(8))
        assert shown(twin.append(tokens(9))[0]) == [[1, 2, 9]]
        assert shown(twin.child("a").append(tokens(9))[0]) == [[7, 9]]
        assert shown(cache.append(tokens(4))[0]) == [[1, 2, 3, 4]]
        with pytest.raises(CacheError):
            twin.bind(nn.ReLU())
        twin.bind(owner)

    def test_pickle_keeps_all_but_the_owner(self) -> None:
        cache, memory = Cache(window=2), tokens(5, 6)
        cache.bind(nn.Linear(1, 1))
        cache.memory(memory, memory, lambda k, v: (2 * k,))
        cache.append(rows([0, 1, 2], [3, 4, 5]), real=torch.tensor([[False, True, True], [True, True, True]]))
        twin = pickle.loads(pickle.dumps(cache))
        assert shown(twin.append(rows([9], [9]))[0]) == [[1, 2, 9], [4, 5, 9]]
        assert numbers(twin.key_positions(device=CPU)) == [[0, 1, 2], [1, 2, 3]]
        assert shown(twin.memory(memory, memory, lambda k, v: ())[0]) == [[10, 12]]
        twin.bind(nn.ReLU())


class TestMemory:
    def test_projections_are_made_once(self) -> None:
        cache, key, calls = Cache(), tokens(1, 2), []

        def make(k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            calls.append(1)
            return 10 * k, 100 * v

        for given_key in (key, key, key.clone()):
            k, v = cache.memory(given_key, given_key, make)
            assert (shown(k), shown(v)) == ([[10, 20]], [[100, 200]])
        assert len(calls) == 1
        assert cache.bytes == cache.allocated == 2 * 2 * 4
        assert cache.length == 0

    @pytest.mark.parametrize(
        ("other", "message"),
        [(tokens(1, 3), "with the same values"), (tokens(1, 2, 3), r"Received: .*=\[1, 1, 3, 1\]")],
    )
    def test_another_memory_is_refused_until_reset(self, other: Tensor, message: str) -> None:
        cache, key = Cache(), tokens(1, 2)
        cache.memory(key, key, lambda k, v: (k,))
        with pytest.raises(CacheError, match=f"^key: .*{message}.*reset\\(\\) on the cache to read another memory"):
            cache.memory(other, other, lambda k, v: (k,))
        with pytest.raises(CacheError, match=r"^value: "):
            cache.memory(key, other, lambda k, v: (k,))
        cache.reset()
        assert cache.memory(other, other, lambda k, v: (k,))[0] is other

    def test_an_equal_memory_is_compared_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, key, equal = Cache(), tokens(1, 2), tokens(1, 2)
        cache.memory(key, key, lambda k, v: (k,))
        cache.memory(equal, equal, lambda k, v: (k,))
        monkeypatch.setattr(torch, "equal", lambda a, b: pytest.fail("compared again"))
        assert cache.memory(equal, equal, lambda k, v: (k,))[0] is key

    def test_a_memory_that_was_changed_in_place_is_refused(self) -> None:
        cache, key = Cache(), tokens(1, 2)
        cache.memory(key, key, lambda k, v: (k + 0,))
        key.zero_()
        with pytest.raises(CacheError, match="changed in place after this cache had read it"):
            cache.memory(key, key, lambda k, v: (k,))

    def test_beams_reorder_it(self) -> None:
        cache, key = Cache(), rows([1, 2], [3, 4])
        cache.memory(key, key, lambda k, v: (10 * k,))
        cache.reorder(torch.tensor([1, 1, 0]))
        again = rows([3, 4], [3, 4], [1, 2])
        assert shown(cache.memory(again, again, lambda k, v: ())[0]) == [[30, 40], [30, 40], [10, 20]]
        with pytest.raises(CacheError):
            cache.memory(key, key, lambda k, v: ())


class TestRefusals:
    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ((torch.zeros(3, 4, 1, 8),) * 2, r"expected B=2, as this cache holds"),
            ((torch.zeros(2, 2, 1, 8),) * 2, "4 heads of dimension 8 in tensor 0, as this cache holds"),
            ((torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 6)), "in tensor 1, as this cache holds"),
            ((torch.zeros(2, 4, 1, 8),), "expected 2 tensors, as this cache holds. Received: 1"),
            ((torch.zeros(2, 4, 1, 8, dtype=torch.bfloat16),) * 2, "expected torch.float32.*, as this cache holds"),
            ((torch.zeros(2, 4, 1, 8, device="meta"),) * 2, "on cpu.*, as this cache. Received: meta"),
        ],
    )
    def test_what_does_not_fit_what_is_held(self, tensors: tuple[Tensor, ...], message: str) -> None:
        cache = Cache()
        cache.append(*(torch.zeros(2, 4, 3, 8),) * 2)
        with pytest.raises(CacheError, match=message):
            cache.append(*tensors)
        assert cache.length == 3

    @pytest.mark.parametrize(
        ("tensors", "error", "message"),
        [
            ((), ArgumentError, "Received: none"),
            (([1.0],), DtypeError, "Received: list"),
            ((torch.zeros(2, 3, 4),), ShapeError, r"Received: \[2, 3, 4\]"),
            ((torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 2, 4)), ShapeError, "with one B and one S"),
            ((torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4, device="meta")), DtypeError, "one device"),
        ],
    )
    def test_what_does_not_belong_together(self, tensors: tuple[Tensor, ...], error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            Cache().append(*tensors)

    def test_options_that_make_no_sense(self) -> None:
        with pytest.raises(ArgumentError, match=r"capacity: expected an int of at least 1, or None"):
            Cache(capacity=0)
        with pytest.raises(ArgumentError, match=r"window: expected an int .* Received: window=2.5"):
            Cache(window=2.5)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="expected one of the two"):
            Cache(capacity=8, window=4)
        with pytest.raises(ArgumentError, match=r"at least 0. Received: length=-1"):
            Cache().crop(-1)


@pytest.mark.parametrize("cache", [3, "cache", {}])
def test_what_is_no_cache_is_refused_by_name(cache: Any) -> None:
    with pytest.raises(DtypeError, match=r"cache: expected a headwise\.nn\.Cache or None\. Received: cache="):
        headwise.nn.MultiHeadAttention(16, 2)(torch.randn(1, 3, 16), cache=cache)


def test_sizes_may_be_integers_of_numpy() -> None:
    module = headwise.nn.MultiHeadAttention(np.int64(16), np.int32(2))
    assert type(module.dim) is type(module.num_heads) is int
