"""How a module is called, found out with no adapter: which argument is what, how wide, in which layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise.nn as hw
from headwise.doctor.calling.interface import Interface, Spec, discover
from headwise.errors import ArgumentError, DoctorError
from tests.doctor.calling.callees import (
    Configured,
    FixedLength,
    Lazy,
    Named,
    OneQuery,
    OneState,
    OptionalContext,
    Packed,
    Picture,
    Pixels,
    Projected,
    SplitAlready,
    ToItself,
    Unbatched,
    UnknownNames,
)

# module, takes, widths, heads, layout, what else holds
CASES: list[tuple[Callable[[], nn.Module], str, tuple[int, int, int], int | None, str, dict[str, Any]]] = [
    (UnknownNames, "qkv", (24, 24, 24), 4, "BNM", {"roles": {"a": "value", "b": "key", "c": "query"}}),
    (OptionalContext, "self", (24, 24, 24), 4, "BNM", {"also": ("memory",)}),
    (ToItself, "self", (24, 24, 24), 4, "BNM", {}),
    (Packed, "qkv", (24, 24, 24), 4, "BNM", {}),
    (Unbatched, "self", (6, 6, 6), None, "NM", {"batched": False}),
    (SplitAlready, "qkv", (64, 64, 64), None, "BHND", {}),
    (Pixels, "self", (12, 12, 12), None, "BMHW", {}),
    (OneQuery, "memory", (20, 20, 20), None, "BM", {"length": 1}),
    (OneState, "memory", (20, 20, 20), None, "NBM,BNM", {"length": 1}),
    (FixedLength, "self", (24, 24, 24), 4, "BNM", {"length": 6}),
    (Configured, "self", (32, 32, 32), 4, "BNM", {"kv_heads": 2}),
    (Named, "self", (24, 24, 24), 4, "BNM", {}),
    (Lazy, "self", (32, 32, 32), 4, "BNM", {}),
    (Picture, "self", (24, 24, 24), 4, "BNM", {"roles": {"x": "query", "H": "other", "W": "other"}}),
    (lambda: Named().bfloat16(), "self", (24, 24, 24), 4, "BNM", {}),
    (lambda: nn.MultiheadAttention(32, 4, kdim=24, vdim=20), "qkv", (32, 24, 20), 4, "NBM", {}),
    (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), "self", (32, 32, 32), 4, "BNM", {}),
    (lambda: nn.TransformerDecoderLayer(32, 4, 64), "memory", (32, 32, 32), 4, "NBM", {}),
    (lambda: hw.MultiHeadAttention(32, 4, num_kv_heads=2), "qkv", (32, 32, 32), 4, "BNM", {"kv_heads": 2}),
    (lambda: hw.LatentAttention(4, 32, read_out=True), "memory", (32, 32, 32), 8, "BNM", {"also": ("self",)}),
    (lambda: hw.Decoder(32, num_layers=2, num_heads=4), "qkv", (32, 32, 32), 4, "BNM", {}),
    (lambda: hw.FeedForward(32), "self", (32, 32, 32), None, "BNM", {}),
]


@pytest.mark.parametrize(("make", "takes", "widths", "heads", "layout", "more"), CASES)
def test_how_it_is_called(
    make: Callable[[], nn.Module],
    takes: str,
    widths: tuple[int, int, int],
    heads: int | None,
    layout: str,
    more: dict[str, Any],
) -> None:
    found = discover(make())
    assert (found.takes, found.heads, found.way.layout) == (takes, heads, layout), found.describe()
    assert (found.width, found.key_width, found.value_width) == widths
    for name, value in more.items():
        assert getattr(found, name) == value
    result = found.run(found.inputs(batch=2))
    assert result.output.shape[0] == 2
    assert result.output.isfinite().all()
    assert all(m.works for m in found.masks)


def test_the_output_is_what_the_module_makes() -> None:
    module = nn.MultiheadAttention(32, 4)
    found = discover(module)
    inputs = found.inputs(key_length=9)
    assert (tuple(inputs.query.shape), tuple(inputs.key.shape)) == ((3, 5, 32), (3, 9, 32))  # type: ignore[union-attr]
    output, weights = module(*(x.transpose(0, 1) for x in inputs.tensors().values()))
    result = found.run(inputs)
    torch.testing.assert_close(result.output, output.transpose(0, 1))
    torch.testing.assert_close(result.weights, weights)
    assert not result.output.requires_grad
    assert found.run(inputs, grad=True).output.requires_grad
    assert found.run(inputs, average_attn_weights=False).weights.shape == (3, 4, 5, 9)  # type: ignore[union-attr]


def test_an_unbatched_module_goes_through_a_batch_one_by_one() -> None:
    module = Unbatched()
    found = discover(module)
    inputs = found.inputs()
    result = found.run(inputs)
    torch.testing.assert_close(result.output, torch.stack([module(x)[0] for x in inputs.query]))
    torch.testing.assert_close(result.weights, torch.stack([module(x)[1] for x in inputs.query]))


@pytest.mark.parametrize("training", [True, False])
def test_nothing_about_the_module_changes(training: bool) -> None:
    class Counting(Projected):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.kept = self.dropout(self.attend(x, x, x))
            return self.kept

    module = Counting().train(training)
    module.o.eval()
    before = copy.deepcopy(module.state_dict())
    random_state = torch.random.get_rng_state()
    discover(module)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert (module.training, module.o.training, module.dropout.training) == (training, False, training)
    assert not hasattr(module, "kept")
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert all(p.grad is None for p in module.parameters())


def test_a_spec_states_what_trial_cannot_tell() -> None:
    class Odd(nn.Module):
        """It takes anything, so nothing tells its width."""

        def forward(self, left: Tensor, right: Tensor, mode: str) -> Tensor:
            if mode != "strange":
                raise ValueError(f"mode must be strange, not {mode}")
            return (right @ left.mT).softmax(-1) @ left

    roles = {"left": "memory", "right": "query"}
    with pytest.raises(DoctorError, match="mode must be strange"):
        discover(Odd(), spec=Spec(roles=roles))
    spec = Spec(roles=roles, width=10, heads=5, causal=True, arguments={"mode": "strange"})
    found = discover(Odd(), spec=spec)
    assert (found.takes, found.width, found.heads, found.causal_claim) == ("memory", 10, 5, "stated")
    assert found.roles == {**roles, "mode": "unknown"}


def test_a_spec_from_a_mapping() -> None:
    assert Spec.of({"width": 64, "heads": 8}) == Spec(width=64, heads=8)
    with pytest.raises(ArgumentError, match=r"every name must be one of takes, roles.*colour"):
        Spec.of({"colour": "red"})
    with pytest.raises(ArgumentError, match="takes must be one of self, memory, qkv"):
        Spec(takes="everything")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="heads must be a whole number"):
        Spec(heads=0)
    with pytest.raises(DoctorError, match=r"must name arguments of forward \(x.*Received: z"):
        discover(Named(), spec=Spec(roles={"z": "query"}))


def test_an_example_is_a_template_for_what_cannot_be_made() -> None:
    class Needs(Projected):
        def forward(self, x: Tensor, table: dict[str, Tensor]) -> Tensor:
            return self.attend(x, x, x) + table["shift"].sum()

    def call() -> Interface:
        return discover(Needs(), example=((torch.randn(2, 11, 24),), {"table": {"shift": torch.ones(3)}}))

    with pytest.raises(DoctorError, match="no way to call it was found"):
        discover(Needs())
    assert call().run(call().inputs()).output.shape == (3, 5, 24)


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.q(x)
        raise ValueError("the flux capacitor is empty")


class Text(nn.Module):
    def forward(self, x: Tensor) -> str:
        return "hello"


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (
            Raises(),
            r"Raises.forward\(x\): no way .* farthest, forward\(x=\[3, 5, 8\]\).*the flux capacitor is empty.*spec=",
        ),
        (Text(), r"forward returned a str, and nothing in it is an output"),
    ],
)
def test_what_cannot_be_called_gets_its_sentence(module: nn.Module, sentence: str) -> None:
    with pytest.raises(DoctorError, match=sentence):
        discover(module)


def test_no_memory_left_ends_the_search_at_once() -> None:
    class Huge(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Huge.calls += 1
            raise MemoryError

    with pytest.raises(MemoryError):
        discover(Huge())
    assert Huge.calls == 1
