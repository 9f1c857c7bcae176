"""The cache of the attention modules: what it holds, what it returns, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise
from headwise.errors import ArgumentError, CacheError, DtypeError, RecordError, ShapeError
from headwise.nn.cache import Cache
from tests.nn.slots import CPU, numbers, rows, shown, tokens


class TestGrowing:
    def test_tensors_of_any_widths_grow_together(self) -> None:
        cache = Cache()  # a latent cache: R = 5 and 2 rotated dimensions a token, float32
        c_kv, k_rope = torch.randn(2, 1, 7, 5), torch.randn(2, 1, 7, 2)
        for i in range(7):
            got = cache.append(c_kv[:, :, i : i + 1], k_rope[:, :, i : i + 1])
        assert torch.equal(got[0], c_kv)
        assert torch.equal(got[1], k_rope)
        assert cache.bytes == 2 * 7 * (5 + 2) * 4

    def test_the_past_is_not_copied_at_each_step(self) -> None:
        cache = Cache()
        places = {cache.append(torch.randn(1, 2, 1, 4))[0].data_ptr() for _ in range(1000)}
        assert len(places) < 12
        assert cache.allocated < 2 * cache.bytes

    def test_what_is_given_is_not_changed_and_not_kept(self) -> None:
        cache, given_now = Cache(), tokens(1, 2)
        cache.append(given_now)
        given_now.zero_()
        assert shown(cache.append(tokens(3))[0]) == [[1, 2, 3]]

    def test_gradients_reach_the_tokens_of_every_step(self) -> None:
        cache, x = Cache(), torch.randn(1, 1, 3, 1, requires_grad=True)
        for i in range(3):
            (got,) = cache.append(2.0 * x[:, :, i : i + 1])
        (got * tokens(1, 10, 100)).sum().backward()
        assert x.grad is not None
        assert shown(x.grad) == [[2, 20, 200]]

    def test_gradients_survive_a_window_a_shift_and_a_reorder(self) -> None:
        cache, x = Cache(window=3), torch.randn(2, 1, 6, 1, requires_grad=True)
        cache.append(x[:, :, :4])
        cache.append(x[:, :, 4:5], real=torch.tensor([[True], [False]]))
        cache.reorder(torch.tensor([1, 1]))
        (got,) = cache.append(x[:, :, 5:])
        got.sum().backward()
        assert x.grad is not None
        assert shown(x.grad) == [[0, 0, 0, 0, 0, 1], [0, 2, 2, 2, 0, 1]]

    def test_under_no_grad_after_training_steps_it_goes_on_without_gradients(self) -> None:
        cache, x = Cache(), torch.randn(1, 1, 2, 1, requires_grad=True)
        cache.append(x)
        with torch.no_grad():
            (got,) = cache.append(tokens(3))
        assert not got.requires_grad
        assert torch.equal(got[:, :, :2], x.detach())


class TestCapacity:
    def test_the_buffers_are_allocated_once(self) -> None:
        cache = Cache(capacity=6)
        places = {cache.append(tokens(i))[0].data_ptr() for i in range(6)}
        assert len(places) == 1
        assert cache.allocated == 6 * 4

    def test_one_token_more_is_refused_and_changes_nothing(self) -> None:
        cache = Cache(capacity=3)
        cache.append(tokens(1, 2))
        with pytest.raises(CacheError, match=r"this cache holds 2 of capacity=3"):
            cache.append(tokens(3, 4))
        assert shown(cache.append(tokens(3))[0]) == [[1, 2, 3]]

    def test_it_holds_with_gradients_too(self) -> None:
        cache = Cache(capacity=1)
        with pytest.raises(CacheError, match=r"this cache holds 0 of capacity=1. Received: 2 more"):
            cache.append(tokens(1, 2).requires_grad_())


class TestWindow:
    def test_old_tokens_leave_after_they_were_returned(self) -> None:
        cache = Cache(window=2)
        assert shown(cache.append(tokens(0, 1, 2))[0]) == [[0, 1, 2]]
        assert (cache.length, cache.size) == (3, 2)
        assert numbers(cache.key_positions(device=CPU)) == [0, 1, 2]
        assert shown(cache.append(tokens(3))[0]) == [[1, 2, 3]]
        assert numbers(cache.key_positions(device=CPU)) == [1, 2, 3]
        assert numbers(cache.next_positions(2, device=CPU)) == [4, 5]
        assert cache.bytes == 2 * 4

    def test_memory_is_bounded_over_many_windows(self) -> None:
        window = 64
        cache, allocated = Cache(window=window), []
        for i in range(10 * window):
            (got,) = cache.append(torch.full((1, 2, 1, 4), float(i)))
            assert got[0, 0, :, 0].tolist() == [float(j) for j in range(max(0, i - window), i + 1)]
            allocated.append(cache.allocated)
        assert max(allocated) == min(allocated) == (64 + 32) * 2 * 4 * 4
        assert cache.bytes == 64 * 2 * 4 * 4

    def test_moving_costs_few_copies_a_token(self) -> None:
        cache = Cache(window=64)
        views = [cache.append(torch.zeros(1, 1, 1, 1))[0] for _ in range(640)]
        assert len({view.untyped_storage().data_ptr() for view in views}) <= 1 + 640 // 32

    def test_a_prompt_longer_than_the_window_is_returned_whole_and_not_kept(self) -> None:
        cache = Cache(window=4)
        (got,) = cache.append(torch.arange(1000.0).view(1, 1, -1, 1))
        assert got.shape[2] == 1000
        assert cache.allocated == (4 + 32) * 4
        assert shown(cache.append(tokens(1000))[0]) == [[996, 997, 998, 999, 1000]]

    def test_crop_to_where_tokens_are_missing_is_refused(self) -> None:
        cache = Cache(window=3)
        cache.append(tokens(0, 1, 2, 3, 4))
        with pytest.raises(CacheError, match=r"crop\(4\).*window = 3 has dropped all before 2"):
            cache.crop(4)
        assert shown(cache.append(tokens(5))[0]) == [[2, 3, 4, 5]]
        cache.crop(0)  # nothing is needed for that
        assert shown(cache.append(tokens(7))[0]) == [[7]]
        assert numbers(cache.key_positions(device=CPU)) == [0]


class TestPadding:
    def test_positions_count_real_tokens(self) -> None:
        cache, padding = Cache(), torch.tensor([[False, False, True], [True, True, True]])
        assert numbers(cache.next_positions(3, padding, device=CPU)) == [[0, 0, 0], [0, 1, 2]]
        cache.append(rows([0, 0, 7], [1, 2, 3]), real=padding)
        assert numbers(cache.real) == [[0, 0, 1], [1, 1, 1]]
        assert cache.length == 3
        assert numbers(cache.next_positions(2, device=CPU)) == [[1, 2], [3, 4]]
        cache.append(rows([8], [4]))
        assert numbers(cache.key_positions(device=CPU)) == [[0, 0, 0, 1], [0, 1, 2, 3]]

    def test_padding_without_any_is_none(self) -> None:
        cache, every = Cache(), torch.ones(1, 2, dtype=torch.bool)
        assert numbers(cache.next_positions(2, every, device=CPU)) == [0, 1]
        cache.append(tokens(1, 2), real=every)
        assert cache.real is None
        assert cache.key_real is None
        assert numbers(cache.key_positions(device=CPU)) == [0, 1]

    def test_padding_of_later_tokens_moves_the_row_to_the_right(self) -> None:
        cache = Cache()
        cache.append(rows([1, 2], [5, 6]))
        padding = torch.tensor([[True, True], [False, True]])
        assert numbers(cache.next_positions(2, padding, device=CPU)) == [[2, 3], [0, 2]]
        (got,) = cache.append(rows([3, 4], [0, 7]), real=padding)
        assert shown(got) == [[1, 2, 3, 4], [0, 5, 6, 7]]
        assert numbers(cache.real) == [[1, 1, 1, 1], [0, 1, 1, 1]]
        assert numbers(cache.key_positions(device=CPU)) == [[0, 1, 2, 3], [0, 0, 1, 2]]
        assert cache.length == 4

    @pytest.mark.parametrize(
        ("padding", "error", "message"),
        [
            (torch.tensor([[True, True], [True, False]]), ArgumentError, "on the left of each row only"),
            (torch.ones(2, 3, dtype=torch.bool), ShapeError, r"expected \[2, 2\], .* Received: real=\[2, 3\]"),
            (torch.ones(3, 2, dtype=torch.bool), ShapeError, r"expected \[2, 2\], .* Received: real=\[3, 2\]"),
            (torch.ones(2, 2), DtypeError, "bool or integers .* Received: real=torch.float32"),
        ],
    )
    def test_bad_padding_is_refused_and_changes_nothing(self, padding: Tensor, error: type, message: str) -> None:
        cache = Cache()
        cache.append(rows([1], [2]))
        with pytest.raises(error, match=message):
            cache.append(rows([1, 2], [3, 4]), real=padding)
        with pytest.raises(error, match=message):
            cache.next_positions(2, padding, device=CPU)
        assert cache.length == 1
        assert cache.real is None


class TestBeams:
    def test_one_row_becomes_many(self) -> None:
        cache = Cache(capacity=4)
        cache.append(tokens(1, 2))
        cache.reorder(torch.zeros(3, dtype=torch.int64))
        assert shown(cache.append(rows([3], [4], [5]))[0]) == [[1, 2, 3], [1, 2, 4], [1, 2, 5]]

    def test_memories_may_stay_where_rows_of_one_source_change_places(self) -> None:
        for memories, expected in ((True, [[12], [10]]), (False, [[10], [12]])):
            cache = Cache()
            cache.append(rows([1], [2]))
            source = rows([5], [6])
            cache.child("cross").memory(source, source, lambda k, v: (2 * k,))
            cache.reorder(torch.tensor([1, 0]), memories=memories)
            assert shown(cache.append(rows([3], [4]))[0]) == [[2, 3], [1, 4]]
            source = source if not memories else source.flip(0)
            assert shown(cache.child("cross").memory(source, source, lambda k, v: ())[0]) == expected

    def test_a_row_that_is_not_there_is_refused_before_anything_changes(self) -> None:
        cache = Cache()
        cache.child("a").append(rows([1], [2], [3]))
        cache.child("b").append(rows([1], [2]))
        with pytest.raises(CacheError, match=r"expected rows 0 … 1, this cache holds B = 2. Received: order=\[2, 0\]"):
            cache.reorder(torch.tensor([2, 0]))
        assert shown(cache.child("a").append(rows([0], [0], [0]))[0]) == [[1, 0], [2, 0], [3, 0]]
        with pytest.raises(DtypeError, match=r"expected an int64 tensor .* Received: order=list"):
            cache.reorder([0, 1])  # type: ignore[arg-type]


class TestEarlierViews:
    """Records keep what append returned, and refuse to answer once it was changed in place."""

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
    @pytest.mark.parametrize("options", [{}, {"capacity": 200}, {"window": 5}])
    def test_records_of_earlier_steps_stay_right(self, options: dict[str, int], mode: type) -> None:
        cache, records = Cache(**options), []

        def step(count: int, padding: Tensor | None = None) -> None:
            k, v = torch.randn(2, 2, 2, count, 4).unbind(0)
            keys, values = cache.append(k, v, real=padding)
            q = torch.randn(2, 2, count, 4)
            _, record = headwise.attention(q, keys, values, record=True)
            kept = cache.key_real
            assert kept is None or kept.shape == (2, keys.shape[2])
            records.append((record, torch.softmax(q @ keys.mT / 2, -1), keys, keys.clone(), values, values.clone()))

        with mode():
            step(4)
            if "window" not in options:
                cache.crop(2)  # what follows must not replace what the first record saw
            for _ in range(50):  # passes the end of a growing buffer and of a window's, more than once
                step(1)
            cache.reorder(torch.tensor([1, 0]))
            step(1)
            step(2, torch.tensor([[True, True], [False, True]]))  # shifts a row
            step(1)
            step(45)  # more than a window's buffer
            step(1)
            for record, weights, keys, keys_then, values, values_then in records:
                assert torch.equal(keys, keys_then)
                assert torch.equal(values, values_then)
                assert torch.allclose(record.weights(), weights, atol=1e-6)

    def test_a_change_by_somebody_else_is_still_noticed(self) -> None:
        cache = Cache()
        (keys,) = cache.append(torch.randn(1, 1, 3, 4))
        _, record = headwise.attention(torch.randn(1, 1, 1, 4), keys, keys, record=True)
        keys.zero_()
        with pytest.raises(RecordError, match="changed in place"):
            record.k  # noqa: B018


@dataclasses.dataclass
class Model:
    """A cache as plain lists: each row the (value, position) of its tokens, None for padding."""

    window: int | None
    rows: list[list[tuple[float, int] | None]] | None = None
    length: int = 0

    def append(self, new: list[list[float | None]]) -> list[list[tuple[float, int] | None]]:
        old = self.rows or [[] for _ in new]
        every = []
        for row, values in zip(old, new, strict=True):
            position = max((x[1] + 1 for x in row if x is not None), default=0)
            fresh = [(x, position + i) for i, x in enumerate(x for x in values if x is not None)]
            pads = len(values) - len(fresh)
            every.append([None] * pads + row + fresh)
        self.length += len(new[0])
        self.rows = [row if self.window is None else row[max(0, len(row) - self.window) :] for row in every]
        return every

    def crop(self, length: int) -> bool:
        if self.rows is None or length >= self.length:
            return True
        dropped = self.length - len(self.rows[0])
        if length and self.window is not None and max(0, length - self.window) < dropped:
            return False
        keep = max(0, length - dropped)
        self.rows, self.length = [row[:keep] for row in self.rows], length
        return True


class TestInt8:
    def test_a_step_reads_what_was_rounded(self) -> None:
        torch.manual_seed(0)
        layer = headwise.nn.MultiHeadAttention(64, 8, num_kv_heads=2, positions=headwise.nn.positions.Rope(8)).eval()
        x, cache, exact = torch.randn(2, 9, 64), Cache(dtype=torch.int8), Cache()
        with torch.no_grad():
            for part in (x[:, :6], x[:, 6:8], x[:, 8:]):
                found = layer(part, mask=headwise.masks.causal(), cache=cache)
                expected = layer(part, mask=headwise.masks.causal(), cache=exact)
                assert 0 < (found - expected).abs().max() < 0.05
        assert (cache.size, cache.bytes, exact.bytes) == (9, 2 * 2 * 9 * 2 * (8 + 4), 2 * 2 * 9 * 2 * 8 * 4)

    def test_it_returns_floats_or_what_it_holds(self) -> None:
        cache, x = Cache(dtype=torch.int8), torch.randn(2, 3, 5, 8).bfloat16()
        (held,) = cache.append_held(x)
        assert isinstance(held, headwise.Int8)
        assert torch.equal(held.values, headwise.Int8.of(x).values)
        (got,) = cache.append(x)
        assert got.dtype == torch.bfloat16
        assert torch.equal(got[:, :, 5:], headwise.Int8.of(x).dequantized())

    @pytest.mark.parametrize("kind", ["latent", "perceiver"])
    def test_other_modules_read_it_as_floats(self, kind: str) -> None:
        torch.manual_seed(0)
        if kind == "latent":
            sizes: dict[str, Any] = {"q_rank": None, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_head_dim": 8}
            module: nn.Module = headwise.nn.MultiHeadLatentAttention(32, 4, **sizes)
        else:
            module = headwise.nn.LatentAttention(4, 32, input_dim=32)
        x = torch.randn(1, 6, 32)
        with torch.no_grad():
            found, expected = module.eval()(x, cache=Cache(dtype=torch.int8)), module(x, cache=Cache())
        assert 0 < (found - expected).abs().max() < 0.05

    def test_a_copy_and_a_child_round_too(self) -> None:
        cache = Cache(dtype=torch.int8)
        cache.append(torch.randn(1, 1, 2, 4))
        assert pickle.loads(pickle.dumps(cache)).dtype == torch.int8
        assert cache.child("a").dtype == torch.int8
        assert "dtype=torch.int8" in repr(cache)
        with pytest.raises(ArgumentError, match=r"expected torch\.int8, or None"):
            Cache(dtype=torch.float16)


def compare(cache: Cache, got: Tensor, every: list[list[tuple[float, int] | None]]) -> None:
    positions, padding = cache.key_positions(device=CPU), cache.key_real
    for b, row in enumerate(every):
        assert got.shape[2] == len(row)
        for j, token in enumerate(row):
            assert (token is not None) == (padding is None or bool(padding[b, j]))
            position = int(positions[j] if positions.ndim == 1 else positions[b, j])
            if token is not None:
                assert (float(got[b, 0, j, 0]), position) == token
            else:
                assert position == 0


@given(data=st.data(), options=st.sampled_from([{}, {"capacity": 60}, {"window": 1}, {"window": 3}, {"window": 40}]))
def test_any_sequence_of_calls_agrees_with_plain_lists(data: st.DataObject, options: dict[str, int]) -> None:
    cache, model, batch, value = Cache(**options), Model(options.get("window")), data.draw(st.integers(1, 3)), 0.0
    views: list[tuple[Tensor, Tensor]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["append", "append", "padded", "crop", "reorder", "copy"]))
        if what in ("append", "padded"):
            count = data.draw(st.sampled_from([0, 1, 1, 2, 5, 50]))
            pads = [data.draw(st.integers(0, count)) if what == "padded" else 0 for _ in range(batch)]
            new: list[list[float | None]] = []
            for pad in pads:
                new.append([None] * pad + [value + i for i in range(1, count - pad + 1)])
                value += count
            x = torch.tensor([[-1.0 if v is None else v for v in row] for row in new]).view(batch, 1, count, 1)
            padding = torch.tensor([[v is not None for v in row] for row in new], dtype=torch.bool).view(batch, count)
            given_padding = padding if what == "padded" else None
            if model.length + count > options.get("capacity", 10_000):
                with pytest.raises(CacheError, match="not enough free slots"):
                    cache.append(x, real=given_padding)
                continue
            expected = cache.next_positions(count, given_padding, device=CPU).expand(batch, count)
            every = model.append(new)
            (got,) = cache.append(x, real=given_padding)
            compare(cache, got, every)
            for b, row in enumerate(every):
                fresh = [token[1] for token in row[len(row) - count + pads[b] :] if token is not None]
                assert expected[b, pads[b] :].tolist() == (fresh if count > pads[b] else [])
            views.append((got, got.clone()))
        elif what == "crop":
            length = data.draw(st.integers(0, model.length + 1))
            if model.crop(length):
                cache.crop(length)
            else:
                with pytest.raises(CacheError, match="has dropped"):
                    cache.crop(length)
        elif what == "reorder" and model.rows is not None:
            order = data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=3))
            cache.reorder(torch.tensor(order))
            model.rows, batch = [list(model.rows[i]) for i in order], len(order)
        elif what == "copy":
            cache = copy.deepcopy(cache)
        held = 0 if model.rows is None else len(model.rows[0])
        assert (cache.length, cache.size, cache.bytes) == (model.length, held, held * batch * 4)
        if cache.real is not None:
            assert cache.real.tolist() == [[token is not None for token in row] for row in model.rows or []]
    for view, then in views:
        assert torch.equal(view, then)


class Step(nn.Module):
    """One head that reads itself, to be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x_BSM: Tensor, cache: Cache, padding: Tensor | None = None) -> Tensor:
        cache.bind(self)
        own = cache.child("heads")
        x = x_BSM[:, None] + own.next_positions(x_BSM.shape[1], padding, device=x_BSM.device)[..., None, :, None]
        keys, values = own.append(self.k(x), self.v(x), real=padding)
        seen = own.key_real
        mask = None if seen is None else seen[:, None, None]
        return nn.functional.scaled_dot_product_attention(self.q(x), keys, values, mask)


class TestModes:
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own look, hidden
    @pytest.mark.parametrize(
        ("options", "mode"),
        [
            pytest.param({"capacity": 50}, torch.no_grad, marks=pytest.mark.slow),
            ({"capacity": 50}, torch.inference_mode),
            pytest.param({}, torch.enable_grad, marks=pytest.mark.slow),
            pytest.param({"window": 4}, torch.no_grad, marks=pytest.mark.slow),
        ],
    )
    def test_a_compiled_step_appends_without_graph_breaks(self, options: dict[str, int], mode: type) -> None:
        torch._dynamo.reset()
        module = Step()
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        cache, eager = Cache(**options), Cache(**options)
        with mode():
            for i in range(40):  # past the ends of buffers
                x = torch.randn(2, 1 if i else 3, 8)
                assert torch.allclose(compiled(x, cache), module(x, eager), atol=1e-5)
            assert cache.length == eager.length == 42
            x = torch.randn(2, 1, 8)
            assert torch.allclose(module(x, cache), module(x, eager), atol=1e-5)  # and goes on without it

    @pytest.mark.slow
    def test_a_compiled_step_takes_padding(self) -> None:
        torch._dynamo.reset()
        module = Step()
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        cache, eager = Cache(capacity=8), Cache(capacity=8)
        padding = torch.tensor([[False, True], [True, True]])
        with torch.no_grad():
            for x, real in (
                (torch.randn(2, 2, 8), padding),
                (torch.randn(2, 2, 8), padding),
                (torch.randn(2, 1, 8), None),
            ):
                assert torch.allclose(compiled(x, cache, real), module(x, eager, real), atol=1e-5)
        assert torch.equal(cache.child("heads").key_real, eager.child("heads").key_real)  # type: ignore[arg-type]

    @pytest.mark.slow
    def test_a_compiled_step_may_reorder(self) -> None:
        torch._dynamo.reset()

        def step(x: Tensor, order: Tensor, cache: Cache) -> Tensor:
            cache.reorder(order)
            return cache.append(x)[0].sum(3)

        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        cache, eager = Cache(), Cache()
        for i in range(4):
            x, order = torch.randn(2, 1, 1, 4), torch.tensor([1, i % 2])
            assert torch.equal(compiled(x, order, cache), step(x, order, eager))

    def test_a_compiled_step_leaves_earlier_records_right(self) -> None:
        torch._dynamo.reset()
        step = torch.compile(lambda x, cache: cache.append(x)[0].sum(), fullgraph=True, backend="aot_eager")
        cache = Cache(capacity=8)
        (keys,) = cache.append(torch.randn(1, 1, 3, 4))
        _, record = headwise.attention(torch.randn(1, 1, 1, 4), keys, keys, record=True)
        before = record.weights().clone()
        for _ in range(3):
            step(torch.randn(1, 1, 1, 4), cache)
        assert cache.length == 6
        assert torch.equal(record.weights(), before)

    def test_inference_mode_may_begin_or_end_between_steps(self) -> None:
        for first, second in ((torch.inference_mode, torch.no_grad), (torch.no_grad, torch.inference_mode)):
            cache = Cache()
            with first():
                cache.append(tokens(1, 2))
            with second():
                cache.append(tokens(3))
            (got,) = cache.append(tokens(4).requires_grad_())
            assert shown(got.detach()) == [[1, 2, 3, 4]]
            got.square().sum().backward()

    def test_a_copy_of_what_was_made_in_inference_mode(self) -> None:
        cache = Cache()
        with torch.inference_mode():
            cache.append(rows([0, 1], [2, 3]), real=torch.tensor([[False, True], [True, True]]))
            cache.memory(tokens(5), tokens(5), lambda k, v: (2 * k,))
        for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
            assert shown(twin.append(rows([8], [9]))[0]) == [[0, 1, 8], [2, 3, 9]]
            assert shown(twin.memory(tokens(5), tokens(5), lambda k, v: ())[0]) == [[10]]

    def test_the_first_tokens_decide_the_dtype(self) -> None:
        cache, linear = Cache(), nn.Linear(4, 4)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            for _ in range(2):
                (got,) = cache.append(linear(torch.randn(1, 1, 1, 4)))
        assert got.dtype == torch.bfloat16
        with (
            torch.no_grad(),
            pytest.raises(CacheError, match=r"expected torch.bfloat16.*, as this cache holds. Received: torch.float32"),
        ):
            cache.append(linear(torch.randn(1, 1, 1, 4)))
