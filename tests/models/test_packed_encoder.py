"""A Bert whose layers run as native kernels: the same numbers, and the modules themselves where somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

import headwise
from headwise import edits
from headwise.call import AttentionCall
from headwise.errors import ArgumentError
from headwise.functional import listening
from headwise.models import Bert, BertConfig, unpadded
from headwise.models import packed as packing
from headwise.models.packed_encoder import pack_stack
from headwise.native.library import instruction_set
from headwise.native.linear import Dtype
from headwise.nn import Encoder, MultiHeadAttention
from headwise.nn.positions import Rope

pytestmark = pytest.mark.skipif(instruction_set() in (None, "portable"), reason="the modules are as fast")

LENGTHS = (3, 1, 70, 5, 5, 150, 2)


def small(positions: int) -> Bert:
    """Widths that are no multiples of what the kernels read at once."""
    torch.manual_seed(0)
    made = Bert(BertConfig(50, 24, 2, 2, 40, positions, initializer_range=0.3)).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return made


@pytest.fixture
def bert() -> Bert:
    return small(200)


@pytest.fixture
def ids() -> list[list[int]]:
    draws = torch.Generator().manual_seed(1)
    return [torch.randint(50, (length,), generator=draws).tolist() for length in LENGTHS]


class Kept:
    """Listens, and keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def __call__(self, call: AttentionCall, out: Tensor | None, used: Tensor | None = None) -> None:
        self.calls.append(call)


def plain(bert: Bert, ids: list[list[int]], types: list[list[int]] | None = None) -> list[Tensor]:
    """By the modules: gradients are on."""
    return [
        bert(torch.tensor([each]), None, None if types is None else torch.tensor([types[i]]))[0].detach()
        for i, each in enumerate(ids)
    ]


@torch.no_grad()
def packed(bert: Bert, ids: list[list[int]], **options: object) -> list[Tensor]:
    assert bert.encoder() is not None
    return unpadded.read(bert, ids, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_equals_the_modules(ids: list[list[int]], activation: str) -> None:
    torch.manual_seed(0)
    bert = Bert(BertConfig(50, 24, 2, 2, 40, 200, hidden_act=activation, initializer_range=0.3)).eval()
    types = [[i % 2 for i in range(length)] for length in LENGTHS]
    for found, expected in zip(packed(bert, ids, types=types, tokens=100), plain(bert, ids, types), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0.0)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.999999), ("bfloat16", 0.999), ("int8", 0.99)])
@torch.no_grad()
def test_gates_are_factors_of_heads(bert: Bert, dtype: Dtype, least: float) -> None:
    """A closed gate hides even what is not finite."""
    bert.get_submodule("layers.0.attention.qkv").bias[48:60] = torch.nan  # the values of head 0
    ids = torch.randint(50, (70,), generator=torch.Generator().manual_seed(1))
    encoder = bert.encoder(dtype)
    assert encoder is not None
    gates = torch.tensor([[0.0, 0.5], [1.0, 0.0]])
    given = ids, torch.zeros_like(ids), torch.arange(70), torch.tensor([0, 70])
    found = encoder.embed(*given, gates=gates)
    half = edits.head_mask("layers.0", 0.5, heads=[1])
    with headwise.edit(bert, [edits.ablate("layers.0", heads=[0]), half, edits.ablate("layers.1", heads=[1])]):
        expected = bert(ids[None])[0]
    assert torch.cosine_similarity(found, expected).min() > least
    if dtype == "float32":
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0.0)
    again = encoder(bert.embeddings(ids[None], given[1])[0].contiguous(), given[3], gates=gates)
    torch.testing.assert_close(again, found, atol=2e-5 if dtype == "float32" else 0.05, rtol=0.0)
    assert encoder.embed(*given).isnan().all()


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.999999), ("bfloat16", 0.9999), ("int8", 0.97)])
def test_real_weights_and_texts(minilm: Path, paragraphs: list[str], dtype: str, least: float) -> None:
    bert = Bert.from_pretrained(minilm)
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(text).ids for text in paragraphs[:20]]
    found, expected = packed(bert, ids, dtype=dtype), plain(bert, ids)
    if dtype == "float32":
        torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=2e-5, rtol=0.0)
    means, exact = (torch.stack([each.mean(0) for each in many]) for many in (found, expected))
    assert torch.cosine_similarity(means, exact).min() > least


def test_training_is_seen(bert: Bert, ids: list[list[int]]) -> None:
    """Fused optimizers change no version counter."""
    before = packed(bert, ids)
    optimizer = torch.optim.AdamW(bert.train().parameters(), lr=0.1, fused=True)
    bert(torch.tensor([ids[2]])).sum().backward()
    optimizer.step()
    for found, old, expected in zip(packed(bert.eval(), ids), before, plain(bert, ids), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
        assert not torch.allclose(found, old, atol=1e-2)


def test_parameters_that_change_are_packed_again(bert: Bert, ids: list[list[int]]) -> None:
    for change in (
        lambda: bert.get_parameter("layers.0.mlp.up.weight").mul_(0.5),
        lambda: bert.embeddings.word.weight.add_(0.1),
        lambda: bert.load_state_dict({name: x + 0.01 for name, x in bert.state_dict().items()}, assign=True),
    ):
        packed(bert, ids)
        with torch.no_grad():
            change()
        torch.testing.assert_close(packed(bert, ids), plain(bert, ids), atol=2e-5, rtol=0.0)


@torch.no_grad()
def test_whoever_looks_sees_the_modules(bert: Bert, ids: list[list[int]]) -> None:
    first = torch.tensor([ids[2]])
    with headwise.watch(bert) as seen:
        watched = bert(first)
    assert len(seen) == 2
    torch.testing.assert_close(watched, bert(first), atol=2e-5, rtol=0.0)
    calls: list[nn.Module] = []
    handle = bert.get_submodule("layers.1.mlp").register_forward_hook(lambda module, *_: calls.append(module))
    unpadded.read(bert, ids)
    assert calls
    handle.remove()
    with headwise.edit(bert, [edits.ablate("layers.0", heads=[0])]):
        edited = bert(first)
    assert (edited - watched).abs().max() > 1e-3


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 0.02), ("int8", 0.05)])
@pytest.mark.parametrize("count", [1, len(LENGTHS)])
def test_calls_of_attention_are_told_to_whoever_needs_no_outputs(
    bert: Bert, ids: list[list[int]], count: int, dtype: Dtype, atol: float
) -> None:
    expected, found = Kept(), Kept()
    with torch.no_grad():
        with listening(expected):
            assert bert.encoder() is None
            plainly = unpadded.read(bert, ids[:count])
        with listening(found, outputs=False):
            assert bert.encoder() is not None
            natively = unpadded.read(bert, ids[:count], dtype=dtype)
    assert len(found.calls) == len(expected.calls) == len(bert.layers)
    for one, other in zip(found.calls, expected.calls, strict=True):
        torch.testing.assert_close(one.weights().float(), other.weights(), atol=atol, rtol=0.0)
        torch.testing.assert_close(one.v.float(), other.v, atol=20 * atol, rtol=0.0)
    for one_SM, other_SM in zip(natively, plainly, strict=True):
        torch.testing.assert_close(one_SM, other_SM, atol=20 * atol, rtol=0.0)


def test_what_is_left_to_the_modules(bert: Bert) -> None:
    cases: dict[str, Callable[[], object]] = {
        "training": lambda: bert.train(),
        "another class": lambda: setattr(bert.eval().layers[0], "mlp", nn.Identity()),
    }
    assert bert.encoder() is None, "gradients"
    with torch.no_grad():
        assert bert.encoder() is not None
        for name, change in cases.items():
            change()
            assert bert.encoder() is None, name


def test_ids_without_an_embedding_are_refused(bert: Bert) -> None:
    with pytest.raises(ArgumentError, match="from 0 to 49"):
        packed(bert, [[1, 50]])


def test_nothing_is_kept_of_a_model_that_is_gone(ids: list[list[int]]) -> None:
    before = len(packing._remembered)
    bert = Bert(BertConfig(50, 24, 1, 2, 40, 200)).eval()
    packed(bert, ids)
    assert len(packing._remembered) == before + 1
    del bert
    assert len(packing._remembered) == before


@pytest.mark.parametrize("positions", [None, Rope(16), Rope(16, rotary_dim=8)], ids=str)
def test_norms_before_the_branches_and_rotary_positions(positions: Rope | None) -> None:
    torch.manual_seed(0)
    stack = Encoder(
        32, num_layers=3, attention=lambda: MultiHeadAttention(32, 2, positions=positions), activation="gelu"
    ).eval()
    with torch.no_grad():
        for each in stack.parameters():
            each += 0.2 * torch.randn_like(each)
        packed = pack_stack(stack, "float32")
        assert packed is not None
        lengths = [70, 1, 90, 3]  # of several groups
        x_TM = torch.randn(sum(lengths), 32)
        expected = [stack(x[None].float())[0] for x in x_TM.split(lengths)]
        found = packed(x_TM.clone(), torch.tensor([0, *lengths]).cumsum(0))
    torch.testing.assert_close(found, torch.cat(expected), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "stack",
    [
        Encoder(32, num_heads=2, num_layers=1, norm_first=False),
        Encoder(32, num_heads=2, num_layers=1, norm="rms"),
        Encoder(32, num_layers=1, attention=lambda: MultiHeadAttention(32, 2, positions=Rope(16, interleaved=True))),
    ],
    ids=["norms behind", "RMSNorm", "interleaved"],
)
def test_stacks_that_the_kernels_do_not_have(stack: Encoder) -> None:
    assert pack_stack(stack, "float32") is None
