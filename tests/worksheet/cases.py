"""Modules of every kind and with every option that a worksheet shows, with what they are called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise import masks
from headwise.models import Bert, BertConfig
from headwise.nn import DecoderLayer, EncoderLayer, LatentAttention, MultiHeadAttention, MultiHeadLatentAttention
from headwise.nn import positions as p
from headwise.nn.cross import CrossLayer
from headwise.worksheet import Worksheet, make

MLA = {"q_rank": 4, "kv_rank": 3, "nope_dim": 2, "rope_dim": 4, "value_head_dim": 3}


@dataclass
class Case:
    """A module and what it is called with: the inputs, and what else `forward` takes."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.module.double().eval()
        for name, parameter in self.module.named_parameters():
            gain = name.endswith("norm.weight")
            nn.init.normal_(parameter, mean=float(gain), std=0.6 if parameter.ndim > 1 else 0.3)

    def make(self, **options: Any) -> Worksheet:
        return make(self.module, self.inputs, **self.given, **options)

    def forward(self, **options: Any) -> Any:
        """What PyTorch computes, of a batch of one."""
        with torch.no_grad():
            return self.module(*self.inputs, **self.given, **options)


def x(length: int = 5, width: int = 8) -> Tensor:
    return torch.randn(1, length, width, dtype=torch.float64)


def heads(**options: Any) -> Case:
    """Self-attention, 8 wide, of two heads or as the options say."""
    given = options.pop("given", {})
    length = options.pop("length", 5)
    return Case(MultiHeadAttention(8, options.pop("num_heads", 2), **options), (x(length),), given)


def bert(**config: Any) -> Bert:
    small = {"dim": 8, "num_heads": 2, "ffn_dim": 12, "max_positions": 16}
    return Bert(BertConfig(**{"vocab_size": 20, "num_layers": 1, **small, **config}))


real = torch.tensor([[True, True, True, False, False]])
left = torch.tensor([[False, True, True, True, True]])

CASES: dict[str, Callable[[], Case]] = {
    "multi-head": heads,
    "causal": lambda: heads(given={"mask": masks.causal()}),
    "a window and padding": lambda: heads(given={"mask": masks.window(2, 1), "real": real}),
    "a mask for each head, and empty rows": lambda: heads(given={"mask": torch.rand(2, 5, 5) < 0.4}),
    "one token": lambda: heads(length=1),
    "sixteen tokens": lambda: heads(length=16, given={"mask": masks.prefix(3)}),
    "grouped queries": lambda: heads(
        num_heads=4, num_kv_heads=2, head_dim=3, value_head_dim=2, given={"mask": masks.causal()}
    ),
    "one key head": lambda: heads(num_heads=4, num_kv_heads=1, bias=False),
    "shared projection": lambda: heads(projection="shared"),
    "everything": lambda: heads(qk_norm="rms", softcap=2.0, sinks=True, gate=True, scale=0.7, output_bias=False),
    "sinks and empty rows": lambda: heads(sinks=True, given={"mask": torch.rand(2, 5, 5) < 0.3}),
    "layer norm of queries and keys": lambda: heads(qk_norm="layer"),
    "rope": lambda: heads(positions=p.Rope(4), given={"mask": masks.causal()}),
    "rope of neighbours, in part": lambda: heads(head_dim=6, positions=p.Rope(6, interleaved=True, rotary_dim=4)),
    "rope after padding": lambda: heads(positions=p.Rope(4), given={"real": left}),
    "rope at other positions": lambda: heads(
        positions=p.Rope(4, base=100.0), given={"position_ids": torch.tensor([[3, 1, 4, 1, 5]])}
    ),
    "rope, linear": lambda: heads(positions=p.Rope(4, scaling=p.Linear(2.0))),
    "rope, dynamic ntk": lambda: heads(positions=p.Rope(4, scaling=p.DynamicNTK(2.0, 3))),
    "rope, yarn": lambda: heads(num_heads=1, positions=p.Rope(8, scaling=p.Yarn(4.0, 64))),
    "rope, yarn not truncated": lambda: heads(
        num_heads=1, positions=p.Rope(8, scaling=p.Yarn(4.0, 64, truncate=False))
    ),
    "rope, llama 3": lambda: heads(num_heads=1, positions=p.Rope(8, scaling=p.Llama3(8.0, 1.0, 4.0, 64))),
    "rope in two dimensions": lambda: heads(
        num_heads=1,
        length=6,
        positions=p.Rope2D(8),
        given={"position_ids": torch.cartesian_prod(torch.arange(2), torch.arange(3))},
    ),
    "alibi": lambda: heads(num_heads=4, positions=p.Alibi(4), given={"mask": masks.causal()}),
    "alibi of three heads": lambda: heads(num_heads=3, head_dim=2, positions=p.Alibi(3)),
    "t5": lambda: heads(positions=p.T5Buckets(2, 8, 16), scale=1.0),
    "t5 of a decoder": lambda: heads(
        length=16, positions=p.T5Buckets(2, bidirectional=False), scale=1.0, given={"mask": masks.causal()}
    ),
    "shaw": lambda: heads(positions=p.ShawRelative(4, (2, 1), values=True)),
    "shaw of keys alone, scaled": lambda: heads(positions=p.ShawRelative(4, 2), scale=0.3),
    "cross": lambda: Case(MultiHeadAttention(8, 2, kdim=6), (x(), x(4, 6)), {"mask": masks.lengths(3)}),
    "cross with rope": lambda: Case(MultiHeadAttention(8, 2, kdim=6, positions=p.Rope(4)), (x(), x(4, 6))),
    "queries, keys and values": lambda: Case(MultiHeadAttention(8, 2, kdim=6, vdim=3), (x(), x(4, 6), x(4, 3))),
    "other values": lambda: Case(MultiHeadAttention(8, 2), (same := x(), same, x())),
    "mla": lambda: Case(MultiHeadLatentAttention(8, 2, **MLA), (x(),), {"mask": masks.causal()}),
    "mla of one rank, yarn": lambda: Case(
        MultiHeadLatentAttention(
            *(8, 2),
            **{**MLA, "q_rank": None},
            bias=True,
            positions=p.Rope(4, interleaved=True, scaling=p.Yarn(4.0, 64, mscale=1.0, mscale_all_dim=0.7)),
        ),
        (x(),),
    ),
    "latents": lambda: Case(LatentAttention(3, 8, 6, 2), (x(5, 6),), {"real": real}),
    "latents that look at each other": lambda: Case(
        LatentAttention(2, 8, num_heads=2, self_layers=1, ffn_dim=10), (x(),)
    ),
    "latents that read again and again": lambda: Case(
        LatentAttention(2, 8, num_heads=2, num_reads=3, share_reads=True, ffn_dim=10), (x(),)
    ),
    "inducing points": lambda: Case(
        LatentAttention(2, 8, num_heads=2, norm_first=False, read_out=True, activation="relu"), (x(),)
    ),
    "latents, read out": lambda: Case(
        LatentAttention(2, 8, 6, 2, read_out=True, output_dim=4, query_residual=False), (x(3, 4), x(5, 6))
    ),
    "encoder layer": lambda: Case(EncoderLayer(8, 2, ffn_dim=12), (x(),), {"mask": masks.causal()}),
    "encoder layer, norms after, tanh": lambda: Case(
        EncoderLayer(8, 2, ffn_dim=12, norm_first=False, activation="gelu_tanh"), (x(),)
    ),
    "encoder layer of mla, swiglu": lambda: Case(
        EncoderLayer(
            8, attention=MultiHeadLatentAttention(8, 2, **MLA), ffn_dim=12, norm="rms", activation="swiglu", bias=False
        ),
        (x(),),
    ),
    "decoder layer": lambda: Case(
        DecoderLayer(8, 2, memory_dim=6, ffn_dim=12, activation="silu"),
        (x(), x(4, 6)),
        {"mask": masks.causal(), "memory_real": torch.tensor([[True, True, False, True]])},
    ),
    "decoder layer with rope after padding": lambda: Case(
        DecoderLayer(
            8,
            self_attention=MultiHeadAttention(8, 2, positions=p.Rope(4)),
            cross_attention=MultiHeadAttention(8, 2, positions=p.Rope(4)),
            ffn_dim=12,
        ),
        (x(), x(4)),
        {"real": left, "memory_real": torch.tensor([[False, True, True, True]])},
    ),
    "rope far away": lambda: heads(positions=p.Rope(4), given={"position_ids": torch.tensor([5, 900, 1000, 20000, 7])}),
    "cross layer": lambda: Case(CrossLayer(8, 2, memory_dim=6, ffn_dim=12, activation="geglu"), (x(), x(4, 6))),
    "bert": lambda: Case(bert(), (torch.tensor([[1, 4, 5, 6, 2]]),), {"real": real}),
    "bert of two layers and two sentences": lambda: Case(
        bert(num_layers=2), (torch.tensor([[1, 4, 5, 6, 2]]),), {"token_type_ids": torch.tensor([[0, 0, 0, 1, 1]])}
    ),
}


def exact_rope(self: p.Rope, x_BHSD: Tensor, position_ids: Tensor, length: Any = None) -> Tensor:
    """`Rope.rotate` in float64 throughout, out of the papers' formulas; headwise takes float32 for its angles."""
    theta = _frequencies(self.rotary_dim, self.base, self.scaling, length)
    phases = torch.tensor(np.asarray(position_ids, dtype=np.float64)[..., None] * theta)
    return _turned(x_BHSD, phases, self.amplitude, self.interleaved)


def exact_rope_2d(self: p.Rope2D, x_BHSD: Tensor, position_ids: Tensor, length: Any = None) -> Tensor:
    """`Rope2D.rotate`, likewise."""
    theta = _frequencies(self.head_dim, self.base, None, None)
    places = np.asarray(position_ids, dtype=np.float64)
    phases = np.concatenate([places[..., :1] * theta[0::2], places[..., 1:] * theta[1::2]], axis=-1)
    return _turned(x_BHSD, torch.tensor(phases), 1.0, False)


def _turned(x_BHSD: Tensor, phases: Tensor, amplitude: float, interleaved: bool) -> Tensor:
    """Each pair as a complex number, times amplitude · e^{iφ}."""
    count = phases.shape[-1]
    turned, rest = x_BHSD[..., : 2 * count], x_BHSD[..., 2 * count :]
    pairs = turned.unflatten(-1, (count, 2)) if interleaved else turned.unflatten(-1, (2, count)).mT
    phases = phases[:, None] if phases.ndim == 3 else phases
    found = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.full_like(phases, amplitude), phases)
    pairs = torch.view_as_real(found)
    return torch.cat([(pairs if interleaved else pairs.mT).flatten(-2), rest], -1)


def _frequencies(dim: int, base: float, scaling: Any, length: Any) -> np.ndarray:
    i = np.arange(0, dim, 2) / dim
    if isinstance(scaling, p.DynamicNTK) and length > scaling.original_length:
        grown = 1 + scaling.factor * (length - scaling.original_length) / scaling.original_length
        base *= grown ** (dim / (dim - 2))
    theta = base**-i
    if isinstance(scaling, p.Linear):
        return theta / scaling.factor
    if isinstance(scaling, p.Llama3):
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        stays = ((scaling.original_length * theta / (2 * np.pi) - low) / (high - low)).clip(0, 1)
    elif isinstance(scaling, p.Yarn):
        bounds = [
            dim * np.log(scaling.original_length / (beta * 2 * np.pi)) / (2 * np.log(base))
            for beta in (scaling.beta_fast, scaling.beta_slow)
        ]
        low, high = (np.floor(bounds[0]), np.ceil(bounds[1])) if scaling.truncate else bounds
        low, high = max(low, 0.0), min(high, dim - 1.0)
        stays = 1 - ((np.arange(dim // 2) - low) / (high - low)).clip(0, 1)
    else:
        return theta
    return (1 - stays) * theta / scaling.factor + stays * theta
