"""With a cache, each token's output is that of the full forward, whatever came in which steps.

The oracle is the layer itself, without a cache: each row's tokens so far, alone and without padding. It says what a
step must give in a batch whose rows have different lengths, in chunks, after beams were reordered and tokens cropped.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise import masks
from headwise.masks import Mask
from headwise.nn import Cache, MultiHeadAttention
from headwise.nn.positions import (
    Alibi,
    DynamicNTK,
    Linear,
    Llama3,
    Positions,
    Rope,
    Rope2D,
    ShawRelative,
    T5Buckets,
    Yarn,
)

M, H, D, WINDOW = 16, 4, 6, 4

SCHEMES: dict[str, Any] = {
    "none": lambda: None,
    "RoPE": lambda: Rope(D),
    "RoPE interleaved, in part": lambda: Rope(D, interleaved=True, rotary_dim=4),
    "RoPE linear": lambda: Rope(D, scaling=Linear(2.0)),
    "RoPE YaRN": lambda: Rope(D, scaling=Yarn(4.0, 8)),
    "RoPE Llama 3": lambda: Rope(D, scaling=Llama3(4.0, 1.0, 4.0, 8)),
    "ALiBi": lambda: Alibi(H),
    "T5": lambda: T5Buckets(H, 8, 6, bidirectional=False),
    "Shaw": lambda: ShawRelative(D, 3),
    "Shaw with values": lambda: ShawRelative(D, 3, values=True),
}
CACHES: dict[str, tuple[dict[str, int], Mask]] = {
    "growing": ({}, masks.causal()),
    "capacity": ({"capacity": 32}, masks.causal()),
    "growing under a window": ({}, masks.window(WINDOW, 0)),
    "window": ({"window": WINDOW}, masks.window(WINDOW, 0)),
}


@dataclasses.dataclass
class Decoding:
    """A layer with a cache, and what each row of the batch has seen: `rows[b]` is [S_b, M]."""

    layer: MultiHeadAttention
    cache: Cache
    mask: Mask
    rows: list[Tensor]

    def step(self, counts: list[int]) -> None:
        """Append counts[b] new tokens to row b, padded on the left, and compare their outputs with the oracle's."""
        width = max(counts)
        x = torch.randn(len(counts), width, M, dtype=torch.float64)
        real = torch.arange(width) >= width - torch.tensor(counts)[:, None]
        x = x.masked_fill(~real[..., None], torch.nan)  # padding may hold anything
        y = self.layer(x, mask=self.mask, cache=self.cache, real=None if bool(real.all()) else real)
        self.rows = [torch.cat((row, new[own])) for row, new, own in zip(self.rows, x, real, strict=True)]
        for row, out, count in zip(self.rows, y, counts, strict=True):
            expected = self.layer(row[None], mask=self.mask)[0, len(row) - count :]
            torch.testing.assert_close(out[width - count :], expected, atol=1e-9, rtol=1e-7)

    def reorder(self, order: list[int]) -> None:
        self.cache.reorder(torch.tensor(order))
        self.rows = [self.rows[row] for row in order]

    def crop(self, count: int) -> None:
        """Forget the last `count` tokens of each row."""
        self.cache.crop(self.cache.length - count)
        self.rows = [row[: len(row) - count] for row in self.rows]


@st.composite
def layers(draw: st.DrawFn) -> MultiHeadAttention:
    """A layer with any options that fit a decoder."""

    def any_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    scheme = any_of(*SCHEMES)
    options = {"num_kv_heads": any_of(4, 2, 1), "bias": any_of(True, False), "qk_norm": any_of(None, "rms", "layer")}
    options |= {"softcap": any_of(None, 2.0), "sinks": any_of(True, False), "gate": any_of(True, False)}
    if "values" not in scheme:
        options["value_head_dim"] = any_of(None, 5)
    if scheme == "none" and any_of(True, False):
        options = {"projection": "shared", "qk_norm": options["qk_norm"]}
    else:
        options["head_dim"] = D
    return made(SCHEMES[scheme](), **options)


def made(scheme: Positions | None, **options: Any) -> MultiHeadAttention:
    """In float64, every parameter random."""
    layer = MultiHeadAttention(M, H, positions=scheme, **options).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.4)
    return layer


@given(st.data(), layers(), st.sampled_from([*CACHES]), st.booleans())
@settings(max_examples=120)
def test_every_step_gives_what_the_full_forward_gives(
    data: st.DataObject, layer: MultiHeadAttention, kind: str, grad: bool
) -> None:
    options, mask = CACHES[kind]
    batch = data.draw(st.integers(1, 3))
    decoding = Decoding(layer, Cache(**options), mask, [torch.empty(0, M, dtype=torch.float64)] * batch)
    with torch.set_grad_enabled(grad):
        prompts = st.lists(st.integers(1, 6), min_size=batch, max_size=batch)
        decoding.step(data.draw(prompts))
        for _ in range(data.draw(st.integers(2, 6))):
            act = data.draw(st.sampled_from(["token", "token", "chunk", "ragged chunk", "reorder", "crop"]))
            rows = len(decoding.rows)
            if act == "token":
                decoding.step([1] * rows)
            elif act == "chunk":
                decoding.step([data.draw(st.integers(2, 3))] * rows)
            elif act == "ragged chunk":
                some = [data.draw(st.integers(0, 3)) for _ in range(rows)]  # 0: nothing but padding
                decoding.step(some if any(some) else [1] * rows)
            elif act == "reorder":
                decoding.reorder(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=3)))
            elif kind != "window":  # what a window let go of cannot come back
                decoding.crop(data.draw(st.integers(1, min(len(row) for row in decoding.rows))) - 1)


@pytest.mark.parametrize("options", [{}, {"capacity": 32}])
def test_dynamic_ntk_gives_the_last_row_of_the_full_forward_of_each_prefix(options: dict[str, int]) -> None:
    """Its angles change with the length, for all tokens: a full forward of more tokens has other rows."""
    layer = made(Rope(D, scaling=DynamicNTK(4.0, 5)), head_dim=D)
    decoding = Decoding(layer, Cache(**options), masks.causal(), [torch.empty(0, M, dtype=torch.float64)] * 2)
    for count in (3, 1, 1, 1, 2, 1, 3):
        decoding.step([count, count])
    decoding.crop(4)
    decoding.reorder([1, 0, 0])
    for count in (1, 2, 1):
        decoding.step([count] * 3)
    x = decoding.rows[0][None]
    assert not torch.allclose(layer(x, mask=masks.causal())[:, :9], layer(x[:, :9], mask=masks.causal()))


@torch.no_grad()
def test_patches_decode_where_their_rows_and_columns_say() -> None:
    layer = made(Rope2D(8), head_dim=8)
    x, ids = torch.randn(2, 12, M, dtype=torch.float64), torch.cartesian_prod(torch.arange(3), torch.arange(4))
    full, cache = layer(x, mask=masks.causal(), position_ids=ids), Cache()
    parts = [(x[:, i : i + 3], ids[i : i + 3]) for i in range(0, 12, 3)]
    steps = [layer(part, mask=masks.causal(), cache=cache, position_ids=own) for part, own in parts]
    torch.testing.assert_close(torch.cat(steps, 1), full)


@given(layers(), st.booleans())
def test_cross_attention_reads_one_memory_at_every_step(layer: MultiHeadAttention, pads: bool) -> None:
    query, memory = (torch.randn(2, n, M, dtype=torch.float64) for n in (5, 7))
    padding = torch.arange(7) < torch.tensor([[7], [4]]) if pads else None
    full, cache = layer(query, memory, real=padding), Cache()
    for i in range(5):
        ids = None if layer.positions is None else torch.tensor([i])
        y = layer(query[:, i : i + 1], memory, cache=cache, real=padding, position_ids=ids)
        torch.testing.assert_close(y, full[:, i : i + 1], atol=1e-9, rtol=1e-7)


def test_gradients_reach_the_tokens_of_every_step() -> None:
    layer = made(Rope(D), head_dim=D)
    x = torch.randn(2, 6, M, dtype=torch.float64, requires_grad=True)
    cache = Cache()
    steps = torch.cat([layer(x[:, i : i + 2], mask=masks.causal(), cache=cache) for i in (0, 2, 4)], 1)
    found = torch.autograd.grad(steps.square().sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad(layer(x, mask=masks.causal()).square().sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_record_of_a_step_has_the_weights_over_all_that_the_cache_holds() -> None:
    layer = made(T5Buckets(H, 8, 6, bidirectional=False), head_dim=D)
    x = torch.randn(1, 6, M, dtype=torch.float64)
    _, full = layer(x, mask=masks.causal(), record=True)
    cache = Cache()
    layer(x[:, :5], mask=masks.causal(), cache=cache)
    _, step = layer(x[:, 5:], mask=masks.causal(), cache=cache, record=True)
    torch.testing.assert_close(step.weights(), full.weights(rows=slice(5, 6)))


@torch.no_grad()
def test_a_bool_mask_of_a_step_counts_what_the_cache_holds() -> None:
    layer, cache = made(None), Cache()
    x, allowed = torch.randn(2, 6, M, dtype=torch.float64), torch.rand(6, 6) < 0.6
    full = layer(x, mask=allowed & torch.ones(6, 6, dtype=torch.bool).tril())
    for i in range(6):
        step = layer(x[:, i : i + 1], mask=allowed[i : i + 1, : i + 1], cache=cache)
        torch.testing.assert_close(step, full[:, i : i + 1])
