"""The watch itself: its options, what it leaves behind (nothing), and what it does where models run unusually."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import headwise
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import Seen
from headwise.records.statistics.statistic import list_tensors
from tests.capture.parity import IDS, assert_projects, assert_weights

M, H, S = 16, 4, 6


class SelfAttention(nn.Module):
    """Hand-written, fused, or headwise's own."""

    def __init__(self, how: str = "fused") -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(M, 3 * M), nn.Linear(M, M)
        self.how, self.num_heads = how, H

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:-1], 3, H, M // H).permute(2, 0, 3, 1, 4).unbind()
        if self.how == "fused":
            out = functional.scaled_dot_product_attention(q, k, v)
        elif self.how == "headwise":
            out = headwise.attention(q, k, v)
        else:
            out = (q @ k.mT / 2).softmax(-1) @ v
        return self.out(out.transpose(1, 2).reshape(x.shape))


class Stack(nn.Module):
    def __init__(self, how: str = "fused", depth: int = 3, check: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SelfAttention(how) for _ in range(depth))
        self.check = check  # checkpointing: None = none, else use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + (layer(x) if self.check is None else checkpoint(layer, x, use_reentrant=self.check))
        return x


def inputs(seed: int = 0) -> Tensor:
    return torch.randn(2, S, M, generator=torch.Generator().manual_seed(seed))


def see(model: nn.Module, *args: Any, **options: Any) -> Seen:
    with headwise.watch(model, **options) as seen:
        model(*(args or (inputs(),)))
    return seen


def truth(layer: SelfAttention, x: Tensor) -> Tensor:
    """The weights of a layer that is given x."""
    with torch.no_grad():
        q, k, _ = layer.qkv(x).view(*x.shape[:-1], 3, H, M // H).permute(2, 0, 3, 1, 4).unbind()
        return (q @ k.mT / 2).softmax(-1)


def bert(**options: Any) -> Any:
    config = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    return transformers.BertModel(transformers.BertConfig(**config, num_attention_heads=4, **options)).eval()


def llama(**options: Any) -> Any:
    config = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    made = transformers.LlamaConfig(**config, num_attention_heads=4, num_key_value_heads=2, **options)
    return transformers.LlamaForCausalLM(made).eval()


# Names and choosing.


def test_names_are_the_paths_of_the_modules() -> None:
    seen = see(Stack())
    assert seen.layers == ["layers.0", "layers.1", "layers.2"]
    assert [record.site.layer for record in seen if record.site] == [0, 1, 2]
    assert [site.name for site in seen.coverage()] == seen.layers


class Fused(nn.Module):
    """The queries [B, H, Q, D] are keys and values too."""

    def forward(self, q: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, q, q)


class TwoStacks(nn.Module):
    """Two stacks, of which the second runs before the first, and layers whose names are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.early = Stack(depth=2), nn.Sequential(SelfAttention(), SelfAttention("by hand"))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.late(self.early(x)))


CHOICES: list[Any] = [
    *(0, 1, 3, -1, -2, -4, [0, -1], [-1, "early"], [2, 2, "late.layers.0"]),
    *("early", "early.1", "1", "layers", "late", "*.[0-1]", "early.[0-1]", "*.layers.*", "early.[!0]", ["*.0", -1]),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_only_selects_what_seen_only_selects(choice: Any) -> None:
    every = see(TwoStacks())
    assert every.layers == ["early.0", "early.1", "late.layers.0", "late.layers.1"]
    expected = every.only(*choice) if isinstance(choice, list) else every.only(choice)
    seen = see(TwoStacks(), only=choice)
    assert seen.layers == expected.layers != []
    assert [site.name for site in seen.coverage()] == seen.layers
    assert seen.coverage().notes == ()


@pytest.mark.parametrize("choice", ["[0-1]", -1, ["1", 0]], ids=str)
def test_only_selects_the_same_in_a_sequential(choice: Any) -> None:
    model = nn.Sequential(SelfAttention(), SelfAttention())
    every = see(model)
    assert see(model, only=choice).layers == every[choice if isinstance(choice, list) else [choice]].layers


def test_only_keeps_the_same_layers_in_every_pass_and_in_a_loop() -> None:
    model = TwoStacks()
    with headwise.watch(model, only=[-1, 0], every=2) as seen:
        for i in range(4):
            model(inputs(i))
    assert seen.layers == ["early.0", "late.layers.1"]
    assert [record.site.call for record in seen if record.site] == [0, 0, 2, 2]


def test_a_layer_that_a_negative_number_no_longer_means_takes_no_memory() -> None:
    """Each layer keeps q and k in one storage of 2 · S · 3M floats: never two of them."""
    with headwise.watch(model := Stack(depth=20), only=-1, max_bytes=3 * 2 * S * 3 * M * 4) as seen:
        model(inputs())
    assert seen.layers == ["layers.19"]


def test_keys_that_two_layers_share_count_until_both_are_dropped() -> None:
    class Layer(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, k)

    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(3))

        def forward(self, x: Tensor, first: Tensor, other: Tensor) -> None:
            for layer, q, k in zip(self.layers, x, (first, first, other), strict=True):
                layer(q.clone(), k)

    given = torch.randn(3, 1, 2, 3, 4), torch.randn(1, 2, 50, 4), torch.randn(1, 2, 60, 4)
    size = 4 * 2 * 4 * (3 + 3 + 50 + 60)  # of the last two layers, q and k
    for room, fits in ((size, contextlib.nullcontext()), (size - 1, pytest.raises(RecordError, match="max_bytes"))):
        with fits, headwise.watch(model := Sharing(), only=[-1, -2], max_bytes=room):
            model(*given)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("nothing", "only='nothing': no attention was seen at 'nothing'. There is: layers.0, layers.1, layers.2"),
        ("layers.3", "only='layers.3': no attention was seen at 'layers.3'. The nearest: layers.2, layers.1, layers.0"),
        (3, "only=3: layers are numbered 0 … 2. Received: 3"),
        (-4, "only=-4: layers are numbered 0 … 2. Received: -4"),
    ],
    ids=str,
)
def test_what_only_does_not_match_is_said(only: Any, message: str) -> None:
    seen = see(Stack(), only=only)
    assert seen.coverage().notes == (message,)
    assert repr(seen) == f"Seen(empty: {message})"
    with pytest.raises(RecordError) as error:
        seen["layers.0"]
    assert message in str(error.value)
    both = see(Stack(), only=[1, only])
    assert both.layers == ["layers.1"]
    assert both.coverage().notes == (message,)


def test_only_of_another_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"expected a layer's number.*Received: layers=1\.5"):
        see(Stack(), only=1.5)
    with pytest.raises(ArgumentError, match=r"at least one layer. Received: layers=\[\]. To take all"):
        see(Stack(), only=[])


def test_every() -> None:
    model = Stack()
    with headwise.watch(model, every=3) as seen:
        for i in range(7):
            model(inputs(i))
    assert [record.site.call for record in seen.only(0) if record.site] == [0, 3, 6]
    for i in (0, 3, 6):
        assert_weights(seen.call(i)[0], truth(model.layers[0], inputs(i)))


def test_what_is_seen_so_far_can_be_asked_inside() -> None:
    model = Stack()
    with headwise.watch(model) as seen:
        assert len(seen) == 0
        model(inputs())
        assert len(seen) == 3
        assert_weights(seen[0], truth(model.layers[0], inputs()))
        model(inputs())
        assert len(seen) == 6
    assert len(seen) == 6


def test_slopes_count_from_the_last_key_of_a_static_cache() -> None:
    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 6, 4)
    k[:, :, 4:] = 0.0  # not filled yet
    slopes, mask = torch.tensor([0.5, 0.1]), headwise.masks.lengths(4)

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return headwise.attention(q, k, k, slopes=slopes, mask=mask)

    layer = Layer()
    with headwise.watch(layer) as seen:
        layer(q, k)
    torch.testing.assert_close(seen[0].lse, headwise.attention(q, k, k, slopes=slopes, mask=mask, record=True)[1].lse)
    assert seen[0].slopes.equal(slopes)


def test_what_runs_outside_the_model_is_not_seen() -> None:
    model, other = Stack(), Stack()
    with headwise.watch(model) as seen:
        other(inputs())
        functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 3, 4))
    assert len(seen) == 0
    assert len(seen.coverage()) == 0


def test_coverage_has_seen_missed_and_refused() -> None:
    class LinearAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1) @ (x.softmax(-2).mT @ x)

    class TalkingAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).roll(1, -1).softmax(-1) @ x

    model = nn.Sequential(SelfAttention(), LinearAttention(), TalkingAttention())
    seen = see(model)
    assert [(site.name, site.status) for site in seen.coverage()] == [("0", "seen"), ("2", "refused"), ("1", "missed")]
    for layer, status in (("1", "missed"), ("2", "refused")):
        with pytest.raises(RecordError, match=f"{layer} was {status}"):
            seen[layer]


# Values and gradients.


@pytest.mark.parametrize("how", ["fused", "by hand", "headwise"])
def test_values_and_projection(how: str) -> None:
    model = Stack(how)
    with torch.no_grad():
        seen, x = see(model, values=True), inputs()
        for i, layer in enumerate(model.layers):
            assert_projects(seen[i], layer(x) - layer.out.bias)
            torch.testing.assert_close(seen[i].output_weight.flatten(0, 1), layer.out.weight.T, rtol=0, atol=0)
            x = x + layer(x)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_values_and_projection_of_transformers(name: str, how: str) -> None:
    gpt2 = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)
    make: dict[str, Callable[[], Any]] = {
        "bert": bert,
        "llama": llama,
        "gpt2": lambda: transformers.GPT2Model(gpt2).eval(),
    }
    model = make[name]()
    model.set_attn_implementation(how)
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        model(IDS)
    for i in range(2):
        weight = {
            "bert": lambda i=i: model.encoder.layer[i].attention.output.dense.weight.T,
            "gpt2": lambda i=i: model.h[i].attn.c_proj.weight,
            "llama": lambda i=i: model.model.layers[i].self_attn.o_proj.weight.T,
        }[name]()
        assert torch.equal(seen[i].output_weight, weight.view(4, 8, 32))
        assert seen[i].v.shape == (2, 2 if name == "llama" else 4, 7, 8)


def test_queries_without_values_or_gradients_name_the_option() -> None:
    record = see(Stack())[0]
    with pytest.raises(RecordError, match="values=True"):
        _ = record.v
    with pytest.raises(RecordError, match="values=True"):
        _ = record.output_weight
    with pytest.raises(RecordError, match="gradients=True"):
        _ = record.grad
    with pytest.raises(RecordError, match="backward"):
        _ = see(Stack(), gradients=True)[0].grad


@pytest.mark.parametrize("how", ["fused", "by hand", "headwise"])
@pytest.mark.parametrize("check", [None, False, True], ids=["", "checkpoint", "reentrant"])
def test_gradients(how: str, check: bool | None) -> None:
    model = Stack(how, check=check)
    expected = _gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = truth(model.layers[0], inputs())
    with headwise.watch(model, gradients=True) as seen:
        x = inputs().requires_grad_()
        model(x).pow(2).sum().backward()
        optimizer.step()
    assert len(seen) == 3
    assert [site.calls for site in seen.coverage()] == [1, 1, 1]
    for record, gradient in zip(seen, expected, strict=True):
        torch.testing.assert_close(record.grad, gradient, rtol=0, atol=1e-6)
    assert_weights(seen[0], weights)  # those before the step


def _gradients(model: Stack) -> list[Tensor]:
    """dL/dO of each layer, by autograd: the gradient at the projection's input, by heads."""
    kept: dict[int, Tensor] = {}

    def keep(i: int) -> Callable[..., None]:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            if given[0].requires_grad:
                given[0].register_hook(lambda g: kept.__setitem__(i, g))

        return hook

    handles = [layer.out.register_forward_pre_hook(keep(i)) for i, layer in enumerate(model.layers)]
    x = inputs().requires_grad_()
    model(x).pow(2).sum().backward()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    return [kept[i].view(2, S, H, M // H).transpose(1, 2) for i in range(len(kept))]


@pytest.mark.parametrize("need", [False, True])
def test_gradients_of_multihead_attention(need: bool) -> None:
    module = nn.MultiheadAttention(M, H, batch_first=True)
    x = inputs().requires_grad_()
    with headwise.watch(module, gradients=True) as seen:
        out, _ = module(x, x, x, need_weights=need)
        out.sum().backward()
    # d(sum)/dO of each head is W_O's column sums, the same for every row.
    expected = module.out_proj.weight.sum(0).view(H, 1, M // H).expand(2, H, S, M // H)
    torch.testing.assert_close(seen.records[0].grad, expected)


def test_gradients_of_several_passes() -> None:
    model = Stack(depth=1)
    with headwise.watch(model, gradients=True) as seen:
        for scale in (1.0, 3.0):
            (model(inputs()).sum() * scale).backward()
    torch.testing.assert_close(seen.call(1)[0].grad, 3 * seen.call(0)[0].grad)


# Where and how it is kept.


@pytest.mark.parametrize("offload", ["cpu", "disk"])
def test_offload(offload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    model = Stack()
    with headwise.watch(model, offload=offload, values=True, gradients=True) as seen:
        model(inputs()).sum().backward()
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert_weights(seen[0], truth(model.layers[0], inputs()))
    assert seen[0].v.shape == seen[0].grad.shape
    del seen
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_offload_to_a_folder(tmp_path: Path) -> None:
    """The files have no names, so nothing is left in the folder; the record is that of memory, to the bit."""
    model, size = Stack(), 2 * 3 * S * M * 4
    with headwise.watch(model, values=True) as seen:
        model(inputs())
    with headwise.watch(model, offload=tmp_path, values=True, max_bytes=size // 8) as mapped:  # they are not in memory
        model(inputs())
        assert not list(tmp_path.iterdir())
    for kept, of_memory in zip(mapped, seen, strict=True):
        for name in ("q", "k", "v"):
            assert torch.equal(getattr(kept, name), getattr(of_memory, name))
        assert torch.equal(kept.weights(), of_memory.weights())
        for name, answer in kept.statistics():
            expected = getattr(of_memory.statistics(name), name)
            for a, b in zip(list_tensors(answer), list_tensors(expected), strict=True):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    mapped.save(tmp_path / "run.hw")
    assert torch.equal(headwise.load(tmp_path / "run.hw")[0].q, seen[0].q)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    model = Stack()
    said = r"no room for [\d,]+ bytes in .*no space left on device.*offload="
    with pytest.raises(RecordError, match=said), headwise.watch(model, offload=tmp_path):
        model(inputs())
    assert not list(tmp_path.iterdir())


def test_a_bound_on_bytes() -> None:
    model = Stack()
    size = 2 * 3 * S * M * 4  # q, k and v are views of one tensor, which is what is kept
    with headwise.watch(model, max_bytes=3 * size) as seen:
        model(inputs())
    assert len(seen) == 3
    with pytest.raises(RecordError, match=r"passed the limit of .* \(max_bytes\).*only=.*every=.*dtype=.*offload="):
        see(model, max_bytes=3 * size - 1)
    with headwise.watch(model, max_bytes=None) as seen:
        model(inputs())
    assert len(seen) == 3


@pytest.mark.parametrize("gradients", [False, True])
def test_values_that_are_not_asked_for_take_no_memory(gradients: bool) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            v = x + 1
            self.values = StorageWeakRef(v.untyped_storage())
            return functional.scaled_dot_product_attention(x, x, v)

    model = Attention()
    with headwise.watch(model) as seen:
        model(torch.randn(1, 2, 3, 4, requires_grad=gradients))
        assert model.values.expired()
    assert len(seen) == 1


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"every": 0}, ArgumentError, "every must be an int of at least 1. Received: every=0"),
    ({"every": 1.5}, ArgumentError, "every must be an int of at least 1. Received: every=1.5"),
    ({"every": True}, ArgumentError, "every must be"),
    ({"dtype": torch.int8}, DtypeError, "dtype must be float16, .* Received: dtype=torch.int8"),
    ({"offload": "cloud"}, ArgumentError, "offload must be"),
    ({"offload": Path("nowhere")}, ArgumentError, "offload must be a folder that exists"),
    ({"max_bytes": 0}, ArgumentError, "max_bytes must be positive"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=str)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        headwise.watch(Stack(), **options)


def test_what_is_no_module() -> None:
    class Pipeline:
        model = Stack()

    with pytest.raises(DtypeError, match=r"expected a torch.nn.Module. Received: Pipeline: pass its .model"):
        headwise.watch(Pipeline())  # type: ignore[arg-type]


# What it leaves behind.


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a watch could have left in a model or in torch."""
    modules: dict[str, Any] = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in module.__dict__.items() if not key.startswith("_")}
        hooks = {key: dict(value) for key, value in module.__dict__.items() if key.endswith("_hooks") and value}
        modules[name] = (sorted(module.__dict__), {key: id(value) for key, value in own.items()}, hooks)
    return {
        "modules": modules,
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "modes": _get_current_function_mode_stack(),
        "registry": dict(transformers.AttentionInterface._global_mapping),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "sdpa": functional.scaled_dot_product_attention,
        "mha": functional.multi_head_attention_forward,
        "generate": getattr(model, "generate", None),
    }


@pytest.mark.parametrize(
    "make", [Stack, llama, bert, lambda: nn.TransformerEncoderLayer(M, H)], ids=["Stack", "llama", "bert", "layer"]
)
def test_the_model_is_as_it_was(make: Callable[[], nn.Module]) -> None:
    model = make()
    given = IDS if hasattr(model, "config") else inputs()
    before = state(model)
    with headwise.watch(model, values=True):
        model(given)
    assert state(model) == before
    with contextlib.suppress(ZeroDivisionError), headwise.watch(model):
        model(given)
        raise ZeroDivisionError
    assert state(model) == before


def test_after_an_exception_in_the_model() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    model = nn.Sequential(Stack(), Fails())
    before = state(model)
    with pytest.raises(ZeroDivisionError), headwise.watch(model) as seen:
        model(inputs())
    assert state(model) == before
    assert len(seen) == 3
    assert_weights(seen[0], truth(model[0].layers[0], inputs()))  # type: ignore[index,union-attr,arg-type]


@pytest.mark.parametrize("where", [("context", "listening"), ("huggingface", "_generating")], ids=str)
def test_after_an_exception_while_entering(where: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    model = llama()
    before = state(model)
    monkeypatch.setattr(sys.modules[f"headwise.capture.{where[0]}"], where[1], fail)
    watch = headwise.watch(model)
    with pytest.raises(ZeroDivisionError):
        watch.__enter__()
    assert state(model) == before
    monkeypatch.undo()
    with watch as seen, torch.no_grad():
        model(IDS)
    assert len(seen) == 2


def test_functions_registered_inside_stay() -> None:
    mapping = transformers.AttentionInterface._global_mapping
    before = mapping["sdpa"]

    def mine() -> None: ...

    try:
        with headwise.watch(llama()):
            for name in ("mine", "sdpa"):  # a new one, and one in the place of another
                transformers.AttentionInterface.register(name, mine)
        assert mapping.pop("mine") is mapping["sdpa"] is mine
    finally:
        mapping["sdpa"] = before


# Several watches.


def test_entering_twice_fails_clearly() -> None:
    watch = headwise.watch(Stack())
    with watch, pytest.raises(ArgumentError, match="entered already; make another"):
        watch.__enter__()


@pytest.mark.parametrize("how", ["fused", "by hand", "headwise"])
def test_two_watches_of_one_model(how: str) -> None:
    model = Stack(how)
    with headwise.watch(model) as outer:
        with headwise.watch(model, only=1, values=True) as inner:
            model(inputs())
        model(inputs(1))
    assert len(outer) == 6
    assert inner.layers == ["layers.1"]
    for i in range(3):
        assert torch.equal(outer.call(0)[i].weights(), outer.call(0)[i].weights())
    assert torch.equal(inner.records[0].weights(), outer.call(0)[1].weights())
    assert_weights(outer.call(1)[0], truth(model.layers[0], inputs(1)))


@pytest.mark.parametrize("name", ["mha", "llama"])
def test_two_watches_of_models_with_ways_of_their_own(name: str) -> None:
    model = nn.TransformerEncoderLayer(M, H, batch_first=True).eval() if name == "mha" else llama()
    given = inputs() if name == "mha" else IDS
    with torch.no_grad(), headwise.watch(model) as outer, headwise.watch(model) as inner:
        model(given)
    assert len(outer) == len(inner) == (1 if name == "mha" else 2)
    assert torch.equal(outer[0].weights(), inner[0].weights())
    assert [site.status for site in outer.coverage()] == [site.status for site in inner.coverage()]


def test_a_model_within_a_model() -> None:
    model = nn.Sequential(Stack(), Stack(depth=1))
    with headwise.watch(model) as all_of_it, headwise.watch(model[1]) as part:
        model(inputs())
    assert all_of_it.layers == ["0.layers.0", "0.layers.1", "0.layers.2", "1.layers.0"]
    assert part.layers == ["layers.0"]


# Unusual ways to run.


@pytest.mark.parametrize("how", ["fused", "by hand"])
@pytest.mark.parametrize("before", [False, True], ids=["new", "ran before"])
@pytest.mark.parametrize("part", ["model", "in place", "layer"])
def test_compiled_models_run_eagerly(part: str, before: bool, how: str) -> None:
    torch.compiler.reset()
    plain = Stack(how)
    expected = truth(plain.layers[1], inputs() + plain.layers[0](inputs()))
    model: Any = plain
    if part == "model":
        model = torch.compile(plain, backend="eager")
    elif part == "in place":
        plain.compile(backend="eager")
    else:
        plain.layers[1] = torch.compile(plain.layers[1], backend="eager")
    with torch.no_grad():
        if before:
            model(inputs())
        seen = see(model)
        assert seen.layers == ["layers.0", "layers.1", "layers.2"]
        assert seen.coverage().notes == ("what torch.compile made ran eagerly",)
        assert_weights(seen[1], expected)
        model(inputs())  # compiled again


@pytest.mark.slow
def test_flex_attention_is_seen_in_a_process_that_never_compiled() -> None:
    """A fresh process: the compiler is imported by the model itself, inside the context."""
    code = """
import torch, transformers, headwise
from transformers import LlamaConfig, LlamaModel
size = dict(vocab_size=50, hidden_size=64, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4)
model = LlamaModel(LlamaConfig(**size, attn_implementation="flex_attention")).eval()
ids = torch.arange(14).view(2, 7)
with torch.no_grad(), headwise.watch(model) as seen:
    model(ids)
model.set_attn_implementation("eager")
with torch.no_grad():
    ref = model(ids, output_attentions=True).attentions
for record, weights in zip(seen, ref, strict=True):
    torch.testing.assert_close(record.weights(), weights, rtol=0, atol=1e-5)
print(*[site.status for site in seen.coverage()], *seen.coverage().notes)
"""
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, env=given, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("seen seen FlexAttention ran uncompiled")


@pytest.mark.parametrize("how", ["fused", "by hand", "headwise"])
def test_autocast(how: str) -> None:
    model = Stack(how)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(inputs())
        with headwise.watch(model, values=True) as seen:
            out = model(inputs())
        assert torch.equal(out, plain)
        weights = seen[0].weights()  # asked inside autocast
    assert len(seen) == 3
    assert seen[0].q.dtype == torch.bfloat16
    torch.testing.assert_close(weights, seen[0].weights())
    torch.testing.assert_close(weights, truth(model.layers[0], inputs()), rtol=0, atol=0.02)


@pytest.mark.parametrize("how", ["fused", "by hand", "headwise"])
def test_inference_mode(how: str) -> None:
    model = Stack(how)
    with torch.inference_mode(), headwise.watch(model, values=True) as seen:
        model(inputs())
        assert_weights(seen[0], truth(model.layers[0], inputs()))
    record = seen[0]  # and outside
    assert_weights(record, truth(model.layers[0], inputs()))
    assert torch.isfinite(record.entropy()).all()


@pytest.mark.parametrize(("inference", "offload"), [(True, None), (False, "disk")], ids=str)
def test_tensors_that_are_copied_may_change_without_the_record(inference: bool, offload: Any) -> None:
    model = Fused()
    with torch.inference_mode(inference):
        q = torch.randn(1, 2, 3, 4)
        with headwise.watch(model, offload=offload) as seen:
            model(q)
        before = seen.records[0].weights().clone()
        q.zero_()
        assert torch.equal(seen.records[0].weights(), before)


def test_quantised_linear_layers() -> None:
    model = Stack().eval()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        with torch.no_grad():
            plain = small(inputs())
            with headwise.watch(small, values=True) as seen:
                out = small(inputs())
    assert torch.equal(out, plain)
    assert len(seen) == 3
    assert_weights(seen[0], truth(model.layers[0], inputs()), atol=0.02)
    with pytest.raises(RecordError, match="output projection"):
        _ = seen[0].output_weight


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_tensors_without_numbers_are_refused(kind: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) if kind == "fake" else torch.device("meta"):
        seen = see(Stack(), torch.randn(2, S, M))
    assert len(seen) == 0
    assert [site.status for site in seen.coverage()] == ["refused"] * 3
    assert kind == "fake" or all("meta" in site.how for site in seen.coverage())


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_hides_what_it_does() -> None:
    model = nn.Sequential(SelfAttention(), torch.jit.trace(SelfAttention(), inputs()))
    model[1].__class__.__name__ = "TracedAttention"
    seen = see(model)
    assert [(site.name, site.status) for site in seen.coverage()] == [("0", "seen"), ("1", "missed")]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_nested_tensors_are_refused_or_seen_but_never_break_the_model() -> None:
    class Nested(Fused):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.unflatten(-1, (2, 2)).transpose(1, 2))

    x = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged)
    seen = see(Nested(), x)
    assert [site.status for site in seen.coverage()] == ["refused"]


def test_a_model_that_changes_queries_afterwards_is_noticed() -> None:
    class Attention(Fused):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            x.mul_(2)
            return out

    seen = see(Attention(), torch.randn(1, 2, 3, 4))
    with pytest.raises(RecordError, match="changed in place"):
        seen.records[0].weights()


def test_parameters_as_queries_are_copied_before_the_optimiser_changes_them() -> None:
    class Learned(nn.Module):
        """A learned query for pooling, as in the set transformer or perceiver."""

        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(1, 2, 3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(self.q, x, x)

    model = Learned()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with headwise.watch(model) as seen:
        model(torch.randn(1, 2, 5, 4)).sum().backward()
        before = seen.records[0].weights()
        optimizer.step()
    assert torch.equal(seen.records[0].weights(), before)


def test_a_loop_that_trains() -> None:
    """Hundreds of steps must not keep more than was asked for, nor hold the graph."""
    model = Stack()
    with headwise.watch(model, every=5, only=0) as seen:
        for i in range(10):
            model(inputs(i)).sum().backward()
    assert len(seen) == 2
    assert not any(record.q.requires_grad or record.q.grad_fn is not None for record in seen)


def test_the_watch_lets_go_of_the_model() -> None:
    import weakref

    model = Stack()
    seen = see(model)
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
    assert len(seen) == 3


def test_a_context_that_is_entered_again_begins_anew() -> None:
    model, x = nn.MultiheadAttention(M, H, batch_first=True).eval(), torch.randn(1, 4, M)
    with torch.no_grad(), headwise.watch(model) as once:
        model(x, x, x)
    storages = {y.data_ptr(): y.nbytes() for y in (z.untyped_storage() for z in (once[0].q, once[0].k))}
    watching = headwise.watch(model, max_bytes=sum(storages.values()))
    kept = []  # so that no address is used again
    for _ in range(3):
        with torch.no_grad(), watching as seen:
            model(x, x, x)
        assert len(seen) == 1
        kept.append(seen)
