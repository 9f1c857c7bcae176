"""What a mask remembers is not used after one of its tensors was changed in place."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.masks import Mask
from headwise.masks.memo import KEPT, MISSING, Memo, version_of

N = 12


def changes() -> dict[str, tuple[Mask, Tensor, object]]:
    """name -> (mask, its tensor, what is written into all of the tensor)."""
    real, dense = torch.ones(1, N, dtype=torch.bool), torch.ones(N, N, dtype=torch.bool).tril()
    ids, n, layout = torch.arange(N) // 4, torch.tensor([5]), torch.ones(3, 3, dtype=torch.bool).tril()
    start, stop = torch.zeros(1, 1, N, dtype=torch.int32), torch.full((1, 1, N), 5, dtype=torch.int32)
    bits = masks.bits(dense)
    tokens = masks.global_tokens([1])
    return {
        "padding": (masks.padding(real), real, torch.arange(N) > 4),
        "lengths": (masks.lengths(n), n, 3),
        "dense": (masks.from_tensor(dense), dense, ~dense),
        "documents": (masks.documents(ids), ids, torch.arange(N) // 6),
        "prefix": (masks.prefix(p := n.clone()), p, 9),
        "block_sparse": (masks.block_sparse(layout, 4), layout, ~layout),
        "runs": (masks.mask.KINDS["runs"](start, stop), start, 4),  # type: ignore[call-arg]
        "bits": (bits, bits.packed, 255),  # type: ignore[attr-defined]
        "global_tokens": (tokens, tokens.indices, 7),  # type: ignore[attr-defined]
        "a composition": (masks.causal() & ~masks.padding(r := real.clone()), r, torch.arange(N) > 4),
    }


def answers(mask: Mask) -> list[Tensor | None]:
    return [
        mask.to_bool(N).clone(),  # of a dense mask it is a view
        mask.blocks(N, N, 4),
        mask.used_keys(N, N),
        mask.causal_rows(N, N),
        headwise.attention(*torch.eye(N).expand(3, 1, 2, N, N).unbind(), mask=mask),
    ]


def written(mask: Mask, tensor: Tensor, value: object, by: str) -> None:
    if by == "numpy":
        tensor.numpy()[...] = value.numpy() if isinstance(value, Tensor) else value
    elif by == "data":
        tensor.data.copy_(torch.as_tensor(value).expand(tensor.shape))
    else:
        tensor.copy_(torch.as_tensor(value).expand(tensor.shape))


@pytest.mark.parametrize("by", ["torch", "numpy", "data"])
@pytest.mark.parametrize("name", changes())
def test_a_mask_answers_for_its_tensor_as_it_is_now(name: str, by: str) -> None:
    mask, tensor, value = changes()[name]
    before, version = answers(mask), mask.version
    written(mask, tensor, value, by)
    assert mask.version != version
    fresh, fresh_tensor, _ = changes()[name]
    written(fresh, fresh_tensor, value, by)
    expected = answers(fresh)
    assert not torch.equal(before[0], expected[0])
    for now, then in zip(answers(mask), expected, strict=True):
        assert (now is None and then is None) or torch.equal(now, then)


def test_an_inference_tensor_has_no_version_and_is_sampled() -> None:
    with torch.inference_mode():
        allowed = torch.ones(N, N, dtype=torch.bool).tril()
        mask = masks.from_tensor(allowed)
        before = answers(mask)
        allowed.logical_not_()
        after = answers(mask)
    assert not torch.equal(before[0], after[0])
    assert not torch.equal(before[4], after[4])


def test_masks_without_tensors_have_an_empty_version() -> None:
    assert (masks.causal() & (masks.window(3, 1) | ~masks.dilated(2))).version == ()


def test_small_tensors_are_compared_whole_and_large_ones_by_a_sample() -> None:
    small = torch.zeros(11, 11, dtype=torch.bool)
    for i in range(121):
        before = version_of(small)
        small.numpy()[i // 11, i % 11] = True
        assert version_of(small) != before
    large = torch.zeros(1000, 1000, dtype=torch.bool)
    before = version_of(large)
    large.numpy()[1, 1] = True  # between the numbers that are compared: the documented limit
    assert version_of(large) == before
    large.numpy()[500:520] = True
    assert version_of(large) != before
    strided = large.T[::3]
    before = version_of(strided)
    large.numpy()[:] = False
    assert version_of(strided) != before


def test_four_kinds_of_call_at_several_lengths_are_remembered() -> None:
    made = []
    mask = masks.causal()
    for _ in range(10):
        for length in range(8):
            for kind in ("train", "evaluate", "last of train", "last of evaluate"):
                for purpose in ("kernel", "schedule"):
                    mask.remember((purpose, kind, length), lambda: made.append(1))
    assert len(made) == 2 * 4 * 8


def test_a_purpose_does_not_push_out_another_and_stays_bounded() -> None:
    memo, version = Memo(), ()
    memo.keep(version, ("aligned", 1), "one")
    for i in range(1000):
        memo.keep(version, ("blocks", i), i)
    assert memo.find(version, ("aligned", 1)) == "one"
    assert [memo.find(version, ("blocks", i)) is not MISSING for i in range(1000)].count(True) == KEPT
    oldest = 1000 - KEPT
    assert memo.find(version, ("blocks", oldest)) == oldest  # now the last used
    memo.keep(version, ("blocks", "new"), 0)
    assert memo.find(version, ("blocks", oldest)) == oldest
    assert memo.find(version, ("blocks", oldest + 1)) is MISSING


def test_a_decoding_loop_keeps_a_bounded_number_of_aligned_masks() -> None:
    mask = masks.window(8, 0) & masks.causal()
    kept = [weakref.ref(mask.aligned(1, length)) for length in range(1, 200)]
    gc.collect()
    assert sum(each() is not None for each in kept) == KEPT


def test_a_mask_is_freed_with_its_last_reference() -> None:
    mask = masks.lengths([3])
    mask.aligned(4, 4).blocks(4, 4, 2)
    gone = weakref.ref(mask)
    gc.disable()
    try:
        del mask
        assert gone() is None  # it does not keep itself
    finally:
        gc.enable()


def test_several_threads_may_ask_at_once() -> None:
    mask, wrong = masks.causal(), []

    def ask(seed: int) -> None:
        for i in range(2000):
            key = (i * 7 + seed) % 50
            if mask.remember(("number", key), lambda key=key: key * 2) != key * 2:  # type: ignore[misc]
                wrong.append(key)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
