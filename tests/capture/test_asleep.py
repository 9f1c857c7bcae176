"""Passes of one token that run without the function mode: they are seen and edited as the others are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

import headwise
from headwise import edits
from headwise.capture import asleep
from headwise.capture.functions import Functions
from headwise.errors import EditRefused

torch.library.define("headwise_tests::mixed", "(Tensor q, Tensor k, Tensor v) -> Tensor")


@torch.library.impl("headwise_tests::mixed", "CompositeExplicitAutograd")
def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bhkd->bhqd", functional.softmax(scores, -1), v)


def by_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = ((q[:, :, :, None] * k[:, :, None]).sum(-1) / q.shape[-1] ** 0.5).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2)


def elsewhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.ops.headwise_tests.mixed(q / q.shape[-1] ** 0.5, k, v)


def inside_a_device(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.device("cpu"):  # a mode of its own
        return by_hand(q, k, v)


def failing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    raise KeyError("failing")


Way = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.past: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, way: Way) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if self.past is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(self.past, (k, v), strict=True))
        self.past = k, v
        return x + self.o(way(q, k, v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """Reads one token after the other; where its modes are, `modes` says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.modes: list[int] = []
        self.seen: Any = None

    def forward(self, x: Tensor, *, way: Way = fused, inside: Any = None) -> Tensor:
        turned = x @ torch.eye(8).expand(len(x), -1, -1)  # a product that is no attention, as of angles
        self.modes.append(len(_get_current_function_mode_stack()))
        with contextlib.nullcontext() if inside is None else inside as self.seen:
            for each in self.layers:
                turned = each(turned, way)
        return turned

    def read(self, ways: list[Way], batch: int = 3) -> Tensor:
        """The outputs of a prompt of three tokens, and of one more token for each way."""
        for each in self.layers:
            each.past = None  # type: ignore[assignment]
        x = torch.randn(batch, 3 + len(ways), 8, generator=torch.Generator().manual_seed(1))
        self.modes.clear()
        with torch.no_grad():
            found = [self(x[:, :3]), *(self(x[:, at : at + 1], way=way) for at, way in enumerate(ways, 3))]
        return torch.cat(found, 1)


@pytest.fixture
def model() -> Iterator[Decoder]:
    yield Decoder()
    assert not [each for each in _get_current_function_mode_stack() if isinstance(each, Functions)]
    key = getattr(torch._C.DispatchKey, "AutocastIPU")  # noqa: B009 - its stub has no such name
    assert not torch._C._dispatch_tls_is_dispatch_key_included(key)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::matmul", "AutocastIPU")
    assert asleep._thread.asleep is None
    assert "_waking" not in torch._ops.OpOverload.__call__.__qualname__


def check_records(model: Decoder, ways: list[Way]) -> headwise.Seen:
    """Each record has the weights of all steps, and the outputs are those without the watch."""
    plain = model.read(ways)
    with headwise.watch(model) as seen:
        assert torch.equal(model.read(ways), plain)
    assert len(seen) == 2, seen.coverage()
    for record, layer in zip(seen, model.layers, strict=True):
        k, v = layer.past  # type: ignore[misc]
        assert record.shape == (3, 2, 3 + len(ways), 3 + len(ways))
        assert torch.equal(record.call.k, k)
        torch.testing.assert_close(record.weights()[:, :, -1:] @ v, fused(record.call.q[:, :, -1:], k, v))
    return seen


def test_steps_run_without_the_mode(model: Decoder) -> None:
    with headwise.watch(model) as seen:
        model.read([fused] * 4)
    # The prompt, a step by which it is understood, and the others.
    assert model.modes == [1, 1, 0, 0, 0]
    assert [record.shape for record in seen] == [(3, 2, 7, 7)] * 2
    check_records(model, [fused] * 4)


@pytest.mark.parametrize("way", [by_hand, by_einsum, inside_a_device])
def test_a_step_that_goes_another_way_is_seen(model: Decoder, way: Way) -> None:
    check_records(model, [fused, fused, fused, way, fused, way, way, fused, fused, fused])
    with headwise.watch(model) as seen:
        model.read([fused, fused, fused, way, fused, fused])
    assert model.modes[3:] == [0, 0, 1, 0]  # that one wakes at its first product; the next is as others are
    assert len(seen) == 2


@pytest.mark.parametrize("way", [by_sums, elsewhere])
def test_what_cannot_be_followed_is_not_silent(model: Decoder, way: Way) -> None:
    with headwise.watch(model) as seen:
        model.read([fused, fused, fused, way, fused])
    assert {site.name for site in seen.coverage().missed} == {"layers.0", "layers.1"}, seen.coverage()
    with (
        pytest.raises(EditRefused, match=r"layers\.0 cannot be edited"),
        headwise.edit(model, edits.ablate("*", heads=0)),
    ):
        model.read([fused, fused, fused, way])


@pytest.mark.parametrize(
    "edit", [edits.ablate("*", heads=0), edits.block("*", queries=-1, keys=0), edits.temperature("*", 2.0)]
)
@pytest.mark.parametrize("way", [fused, by_hand])
def test_edits_are_those_of_passes_with_the_mode(model: Decoder, edit: Any, way: Way, monkeypatch: Any) -> None:
    ways = [fused, fused, fused, way, fused, fused]
    with headwise.edit(model, edit):
        found = model.read(ways)
    assert model.modes[3] == 0
    monkeypatch.setattr(asleep, "_CAN", False)
    with headwise.edit(model, edit):
        torch.testing.assert_close(found, model.read(ways))
    assert model.modes[3] == 1


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(*(each.transpose(0, 1) for each in (q, k, v))).transpose(0, 1)


def test_as_many_examples_as_heads(model: Decoder) -> None:
    """Which are which is known by where queries come from, in each step."""
    with headwise.watch(model) as seen:
        model.read([heads_first] * 4, batch=2)
    for record, layer in zip(seen, model.layers, strict=True):
        assert torch.equal(record.call.k, layer.past[0])  # type: ignore[index]


def test_other_numbers_of_tokens_and_examples(model: Decoder) -> None:
    with headwise.watch(model) as seen:
        model.read([fused] * 3)
        model.read([fused] * 3, batch=1)
        assert model.modes == [1, 1, 0, 0]
        model.read([fused] * 3, batch=1)
    assert model.modes == [1, 0, 0, 0]
    assert [record.shape for record in seen] == [(3, 2, 6, 6)] * 2 + [(1, 2, 6, 6)] * 4


def test_values_and_gradients_need_the_mode(model: Decoder) -> None:
    with headwise.watch(model, values=True) as seen:
        model.read([fused] * 3)
    assert model.modes == [1] * 4
    assert seen[0].extras.output_weight is not None
    with headwise.watch(model), torch.enable_grad():
        for each in model.layers:
            each.past = None  # type: ignore[assignment]
        for _ in range(3):
            model(torch.ones(1, 1, 8))
    assert model.modes[-3:] == [1] * 3


def test_an_exception_leaves_nothing(model: Decoder) -> None:
    with headwise.watch(model) as seen:
        with pytest.raises(KeyError):
            model.read([fused, fused, fused, failing])
        assert len(_get_current_function_mode_stack()) == 1
        model.read([fused] * 3)
    assert len(seen) == 4


def test_a_context_that_opens_in_a_step(model: Decoder) -> None:
    with headwise.watch(model) as around, torch.no_grad():
        model.read([fused] * 3)
        model(torch.ones(3, 1, 8), inside=headwise.watch(model, values=True))
        seen = model.seen
        model(torch.ones(3, 1, 8))
    assert [record.extras.output_weight is not None for record in seen] == [True, True]
    assert [record.shape for record in around] == [(3, 2, 8, 8)] * 2


def test_each_thread_has_passes_of_its_own(model: Decoder) -> None:
    models, waiting = [Decoder(), Decoder()], threading.Barrier(2)
    failed: list[BaseException] = []

    def run(mine: Decoder) -> None:
        def together(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            waiting.wait(60)
            return fused(q, k, v)

        try:
            check_records(mine, [fused, fused, together, together, by_hand, fused])
        except BaseException as error:
            failed.append(error)
            waiting.abort()

    threads = [threading.Thread(target=run, args=(each,)) for each in models]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


def test_generate_of_a_model_with_rotary_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.arange(1, 11).view(2, 5)
    modes: list[int] = []
    model.model.layers[1].register_forward_pre_hook(lambda *_: modes.append(len(_get_current_function_mode_stack())))
    with headwise.watch(model) as seen:
        out = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    assert modes == [1, 1, 0, 0, 0, 0]
    with headwise.watch(model) as whole, torch.no_grad():
        model(out[:, :-1])
    for one, two in zip(seen, whole, strict=True):
        torch.testing.assert_close(one.weights(), two.weights(), atol=1e-5, rtol=1e-4)


def test_torch_func_in_a_step(model: Decoder) -> None:
    def mapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.func.vmap(fused)(q, k, v)

    plain = model.read([mapped] * 4)
    with headwise.watch(model) as seen:
        assert torch.allclose(model.read([mapped] * 4), plain)
    lines = seen.coverage()
    assert len(seen) == 2 or lines.refused or lines.missed, lines
