"""Masks as plain data and back: the whole zoo, and everything that a file may say instead."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise import masks
from headwise.errors import MaskError
from headwise.masks import Mask
from headwise.masks.bits import Bits
from headwise.masks.block_sparse import BigBird
from headwise.masks.cellwise import OfTensor, Predicate
from headwise.masks.description import MAX_DEPTH, describe, rebuild
from headwise.masks.mask import KINDS, Combined, _Joined
from tests.mask_zoo import ZOO, compositions, fits

SIZES = (2, 3, 12, 16)  # B, H, Q, K


def described(mask: Mask, q_len: int, k_len: int) -> tuple[Any, dict[str, Tensor]]:
    """The tree, as JSON gives it back, and its tensors."""
    tensors: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> str:
        tensors[f"{name} {len(tensors)}"] = x
        return f"{name} {len(tensors) - 1}"

    tree = describe(mask.aligned(q_len, k_len), q_len, k_len, keep)
    return json.loads(json.dumps(tree)), tensors


def there_and_back(mask: Mask, q_len: int, k_len: int) -> Mask:
    tree, tensors = described(mask, q_len, k_len)
    return rebuild(tree, q_len, k_len, tensors.__getitem__)


def test_a_tree_says_what_the_mask_is() -> None:
    tree, tensors = described(masks.causal() & ~masks.lengths([2, 4]), 3, 4)
    assert tree == {
        "kind": "and",
        "parts": [
            {"kind": "band", "left": None, "right": 0, "offset": 1},
            {"kind": "not", "part": {"kind": "padding_lengths", "lengths": "lengths 0"}},
        ],
    }
    assert {name: x.tolist() for name, x in tensors.items()} == {"lengths 0": [2, 4]}


@pytest.mark.parametrize(
    ("name", "lengths"), [(name, size) for name in ZOO for size in ((12, 16), (16, 16)) if fits(name, *size)], ids=str
)
def test_every_mask_comes_back(name: str, lengths: tuple[int, int]) -> None:
    mask = ZOO[name](2, 3, *lengths).aligned(*lengths)
    back = there_and_back(mask, *lengths)
    assert torch.equal(back.to_bool(*lengths), mask.to_bool(*lengths))
    if isinstance(mask, Predicate):
        assert isinstance(back, Bits)
    elif isinstance(mask, BigBird):
        assert back == masks.block_sparse(mask.layout, mask.block_size)
    else:
        assert back == mask


@given(compositions(SIZES))
def test_compositions_come_back(mask: Mask) -> None:
    assert torch.equal(there_and_back(mask, *SIZES[2:]).to_bool(*SIZES[2:]), mask.to_bool(*SIZES[2:]))


def test_a_predicate_becomes_its_answers_and_only_it() -> None:
    mask = masks.causal() & masks.from_predicate(lambda b, h, q, k: (q + k) % 3 != h, heads=2)
    tree, tensors = described(mask, 5, 9)
    assert [part["kind"] for part in tree["parts"]] == ["band", "bits"]
    (packed,) = tensors.values()
    assert packed.shape == (1, 2, 5, 2)  # nine keys need two bytes
    assert torch.equal(there_and_back(mask, 5, 9).to_bool(5, 9), mask.to_bool(5, 9))


def test_what_is_nested_too_deep_becomes_its_answers() -> None:
    mask = masks.causal()
    for step in range(2, 2 * MAX_DEPTH):
        mask = ~(mask | masks.dilated(step)) & masks.window(step, None)
    for each in (mask, ~mask, mask | masks.causal()):  # so that each of &, | and ~ comes to stand at the end
        assert torch.equal(there_and_back(each, 9, 9).to_bool(9), each.to_bool(9))


class Diagonal(Mask):
    """A mask that headwise does not know, with something that no file could hold."""

    def allows(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q == k


def test_a_mask_of_somebody_else_becomes_its_answers() -> None:
    back = there_and_back(~Diagonal(), 4, 4)
    assert torch.equal(back.to_bool(4), ~torch.eye(4, dtype=torch.bool)[None, None])


# What a file may say instead, for 4 queries and 6 keys -> words of the error.
BAND = {"kind": "band", "left": None, "right": 0, "offset": 2}
BAD: dict[str, tuple[Any, str]] = {
    "nothing": (None, "expected a description"),
    "a list": ([BAND], "expected a description"),
    "no kind": ({"left": 0}, "expected a description"),
    "a kind that there is not": ({"kind": "eval", "code": "exit()"}, "'eval'"),
    "a kind that is no text": ({"kind": ["band"]}, "list"),
    "a field too few": ({"kind": "band", "left": 0}, "'band'"),
    "a field too many": ({**BAND, "fn": "print"}, "'band'"),
    "a band of text": ({**BAND, "left": "5"}, "band: left: expected a whole number from 0 to"),
    "a negative band": ({**BAND, "left": -1}, "left"),
    "a band of half a key": ({**BAND, "left": 0.5}, "left"),
    "a band of True": ({**BAND, "left": True}, "left"),
    "an offset past counting": ({**BAND, "offset": 10**30}, "offset"),
    "no step": ({"kind": "dilated", "step": 0, "offset": 2}, "step"),
    "no parts": ({"kind": "and", "parts": []}, "at least one mask"),
    "parts that are none": ({"kind": "or", "parts": [BAND, 3]}, "Received: 3"),
    "a part too many": ({"kind": "not", "part": BAND, "more": BAND}, "'not'"),
    "a tensor that is a number": ({"kind": "padding_lengths", "lengths": 4}, "name of a tensor"),
    "a tensor of another rank": ({"kind": "padding_lengths", "lengths": "int 2 6"}, "[2, 6]"),
    "a tensor of another dtype": ({"kind": "padding_keys", "real": "int 2 6"}, "torch.int64"),
    "an empty table": ({"kind": "padding_lengths", "lengths": "int 0"}, "[0]"),
    "lengths past the keys": ({"kind": "padding_lengths", "lengths": "sevens"}, "must not exceed the 6 keys"),
    "keys of another length": ({"kind": "padding_keys", "real": "bool 2 5"}, "K = 6"),
    "documents that begin before": ({"kind": "documents", "ids": "int 2 6", "offset": -1}, "K - Q = 2"),
    "documents that end after": ({"kind": "documents", "ids": "int 2 6", "offset": 3}, "K - Q = 2"),
    "a prefix past the keys": ({"kind": "prefix", "n": "sevens", "offset": 2}, "must not exceed"),
    "global tokens past the keys": ({"kind": "global_tokens", "indices": "sevens", "offset": 2}, "from 0 to 5"),
    "a layout of other blocks": ({"kind": "block_sparse", "layout": "bool 1 1 2 2", "block_size": 4}, "[1, 2]"),
    "a dense mask of other sizes": ({"kind": "dense", "allowed": "bool 1 1 2 2"}, "Q = 4"),
    "bits of another length": ({"kind": "bits", "packed": "byte 1 1 4 2", "k_len": 6}, "do not fit"),
    "runs of two sizes": ({"kind": "runs", "start": "int 1 1 4", "stop": "int 2 1 4"}, "stop=[2, 1, 4]"),
    "runs that end before": ({"kind": "runs", "start": "ones", "stop": "int 1 1 4"}, "start <= stop"),
    "runs past the keys": ({"kind": "runs", "start": "int 1 1 4", "stop": "row of sevens"}, "within the 6 keys"),
}
TENSORS = {
    "sevens": torch.tensor([7, 7]),
    "row of sevens": torch.full((1, 1, 4), 7),
    "ones": torch.ones(1, 1, 4, dtype=torch.int64),
}


def find(name: str) -> Tensor:
    if name in TENSORS:
        return TENSORS[name]
    kind, *sizes = name.split()
    dtype = {"int": torch.int64, "bool": torch.bool, "byte": torch.uint8}[kind]
    return torch.zeros([int(size) for size in sizes], dtype=dtype)


@pytest.mark.parametrize("case", BAD)
def test_what_no_mask_would_say_is_refused(case: str) -> None:
    tree, words = BAD[case]
    with pytest.raises(MaskError) as error:
        rebuild(tree, 4, 6, find)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_tree_without_end_is_refused() -> None:
    tree: Any = BAND
    for _ in range(10_000):
        tree = {"kind": "not", "part": tree}
    with pytest.raises(MaskError, match="nested deeper than 32"):
        rebuild(tree, 4, 6, find)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda x: (
    st.lists(x, max_size=3)
    | st.dictionaries(st.sampled_from(["kind", "parts", "part", "left", "offset", "lengths"]), x)
    | st.fixed_dictionaries({"kind": st.sampled_from(["and", "not", "band", "bits"]), "parts": st.lists(x, max_size=2)})
)))  # fmt: skip
def test_whatever_a_tree_holds_the_error_is_a_mask_error(tree: Any) -> None:
    with contextlib.suppress(MaskError):
        rebuild(tree, 4, 6, find)


def test_only_predicates_are_described_by_their_answers() -> None:
    def kinds(of: type[Mask]) -> set[type[Mask]]:
        return {each for kind in of.__subclasses__() for each in (kind, *kinds(kind))}

    own = {kind for kind in kinds(Mask) if kind.__module__.startswith("headwise.")}
    known = {*KINDS.values(), Combined, _Joined, BigBird, OfTensor}
    assert own - known == {Predicate}
