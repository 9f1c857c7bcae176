"""Random calls of `headwise.attention`, outputs and gradients on every kernel, against the definition in float64.

    python benchmarks/conformance.py                             # 5,000 calls, every kernel and "auto"; some minutes
    python benchmarks/conformance.py --calls 500 --seed 1 --kernel auto
    python benchmarks/conformance.py --instruction-sets all      # the same calls on each that this machine has
    python benchmarks/conformance.py --kernel native --instruction-sets portable avx2
    python benchmarks/conformance.py --only 137                  # one call again, with what it is made of

Each call is drawn from the seed and its index alone. It runs as in training, with gradients of q, k, v, bias, slopes
and sinks where they require one, and as in inference, on each kernel that does not refuse it; and some calls further:

- with dropout, from a fixed seed: the weights that are kept are read off an output whose values are the unit matrix;
- with what it was given changed between forward and backward: the tables of its mask, its bias, slopes or sinks, or
  q, k or v. The gradients are those of what forward saw, or an error names the argument (of q, k and v it is torch's);
- in two threads at once, which share everything.

The definition is tests/oracle.py. Some calls have scores of 1e9 and more, or a scale near 0.

A result matches if NaN and inf stand where the definition has them, and elsewhere the largest error is at most
2 · e + 1e-6 · m. Here e is the largest error of the math path of scaled_dot_product_attention in the dtype of the call,
and m the largest true number, at least 1: both of the output, or of all gradients together. (Together because those of
q and k are differences whose terms are as large as the gradient of v; with one key they are 0, which the math path
meets exactly.) "In the dtype" means with every product rounded to it, as torch does under
`allow_fp16_bf16_reduction_math_sdp`; without that it computes bfloat16 and float16 in float32. The path is written out
here, because torch's has no softcap and no bias of another dtype. Bias, sinks and softmax stand in float32 or better.
NaN would leave nothing to measure: e is measured before NaN and inf are put in. Values hold both. Keys that somebody
may attend to hold NaN only: scores of inf, or inf - inf, differ between fused kernels. A single key holds neither:
where all scores of a row are NaN, torch's fused kernel gives 0 if it is given no mask.

An error that is too large may be that of torch's fused kernels: then scaled_dot_product_attention computes the same
inputs as it chooses, with a dense mask, and the report says how far off it is itself. Sinks become one more key, whose
value is 0; it has no softcap, and no fused kernel for a bias or sinks that get gradients, which therefore get none.
The table counts the mismatches that it shares apart, but all of them are mismatches. Not counted as mismatches, but
beside them, are those where kernel="reference", autograd through the definition in float32, is as far off itself: there
the inputs decide, as where scores differ by less than their own rounding.

The native kernels run on the instruction set that HEADWISE_NATIVE names, else the best of this machine. With
--instruction-sets each is forced in a process of its own, and the last lines say which of them matched.

The exit status is 1 if anything does not match.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `tests`, when run as a program

import headwise
from headwise import masks
from headwise.errors import KernelRefused, MaskError
from headwise.kernels import KERNELS
from headwise.masks import Mask
from headwise.native.library import VARIABLE, instruction_set, instruction_sets, missing
from tests import oracle

Sizes = tuple[int, int, int, int]  # B, H, Q, K
DTYPES = {torch.float64: 0.15, torch.float32: 0.45, torch.bfloat16: 0.2, torch.float16: 0.2}


class Draw(random.Random):
    """Python's random choices, and tensors."""

    def __new__(cls, seed: int, index: int) -> Draw:  # that of Python 3.10 takes one argument
        return super().__new__(cls)

    def __init__(self, seed: int, index: int) -> None:
        super().__init__(f"{seed} {index}")
        self.generator = torch.Generator().manual_seed(self.getrandbits(60))

    def happens(self, probability: float) -> bool:
        return self.random() < probability

    def one(self, weighted: dict[Any, float]) -> Any:
        return self.choices(list(weighted), list(weighted.values()))[0]

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def flags(self, *shape: int, share: float = 0.5) -> Tensor:
        return torch.rand(shape, generator=self.generator) < share

    def integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(0, most + 1, shape, generator=self.generator)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: what `attention` is given, the same before NaN was put in, and the gradient of the output."""

    index: int
    inputs: dict[str, Tensor]  # q, k, v and perhaps bias, slopes, sinks
    healthy: dict[str, Tensor]  # contiguous, without NaN and inf
    options: dict[str, Any]  # mask, scale, softcap
    d_out: Tensor
    story: dict[str, str]  # what was drawn, for people
    also: tuple[str, ...] = ()  # of MODES, beside inference and training
    dropout: float = 0.0  # of "dropout"
    changes: str = ""  # of "changed": the argument

    @property
    def sizes(self) -> Sizes:
        q = self.inputs["q"]
        return (*q.shape[:3], self.inputs["k"].shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs["q"].dtype

    def measures(self, name: str) -> bool:
        """Whether the error of this gradient counts: of q, k and v always, so that it is measured by all three."""
        return name in "qkv" or self.inputs[name].requires_grad


# Every mask, by the function that makes it, for (B, H, Q, K). MaskError: it does not exist for these sizes.
MAKERS: dict[str, Callable[[Draw, int, int, int, int], Mask | None]] = {
    "causal": lambda draw, B, H, Q, K: masks.causal(draw.choice([None, None, 0, -3, 2])),
    "window": lambda draw, B, H, Q, K: masks.window(_reach(draw), _reach(draw), draw.choice([None, None, 0, -4, 3])),
    "padding": lambda draw, B, H, Q, K: masks.padding(draw.flags(B, K, share=0.7)),
    "lengths": lambda draw, B, H, Q, K: masks.lengths(draw.choice([draw.randint(0, K), draw.integers(K, B)])),
    "documents": lambda draw, B, H, Q, K: masks.documents(
        draw.choice([draw.integers(3, B, K) - 1, draw.integers(9, K).sort().values - draw.randint(0, 2)])
    ),
    "prefix": lambda draw, B, H, Q, K: masks.prefix(draw.choice([draw.randint(0, K), draw.integers(K, B)])),
    "global_tokens": lambda draw, B, H, Q, K: masks.global_tokens(draw.integers(max(0, K - 1), draw.randint(1, 3))),
    "knockout": lambda draw, B, H, Q, K: masks.knockout(
        draw.flags(draw.choice([1, B]), Q, share=0.6), draw.flags(K, share=0.4), draw.flags(H, share=0.6)
    ),
    "dilated": lambda draw, B, H, Q, K: masks.dilated(draw.randint(1, 7)),
    "strided": lambda draw, B, H, Q, K: masks.strided(draw.randint(1, 7)),
    "big_bird": lambda draw, B, H, Q, K: masks.big_bird(
        Q, block_size=draw.choice([1, 4, 16]), random_blocks=1, global_blocks=draw.randint(0, 2)
    ),
    "block_sparse": lambda draw, B, H, Q, K: _block_sparse(draw, B, H, Q, K),
    "from_predicate": lambda draw, B, H, Q, K: draw.choice(
        [masks.from_predicate(_near_and_even), masks.from_predicate(_by_example_and_head, batch=B, heads=H)]
    ),
    "from_tensor": lambda draw, B, H, Q, K: masks.from_tensor(_cells(draw, B, H, Q, K)),
    "bits": lambda draw, B, H, Q, K: masks.bits(_cells(draw, B, H, Q, K)),
    "runs": lambda draw, B, H, Q, K: masks.runs(*draw.integers(K, 2, draw.choice([1, B]), 1, Q).sort(0).values),
    "picked": lambda draw, B, H, Q, K: _picked(draw, Q, K),
    "recognise": lambda draw, B, H, Q, K: masks.recognise(_cells(draw, B, H, Q, K)),  # None: everything is allowed
    "recognise_additive": lambda draw, B, H, Q, K: masks.recognise_additive(
        torch.zeros(Q, K).masked_fill(~_cells(draw, 1, 1, Q, K)[0, 0], torch.finfo().min)
    )[0],
}


def _picked(draw: Draw, Q: int, K: int) -> Mask:
    """Some rows and keys of a longer sequence."""
    length = 2 * max(Q, K) + 1
    part = draw.choice([masks.causal(0), masks.window(5, 9, 0), masks.documents(torch.arange(length) // 7, 0)])
    rows, cols = (draw.normal(length).argsort()[:count].sort().values for count in (Q, K))
    return masks.picked(part, rows, cols)


def _reach(draw: Draw) -> int | None:
    return draw.choice([None, 0, 1, 5, 30])


def _near_and_even(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q - k).abs() < 6) & (k % 2 == 0)


def _by_example_and_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k <= q - h + 2 * b


def _cells(draw: Draw, B: int, H: int, Q: int, K: int) -> Tensor:
    """Any cells, with empty rows and unused keys."""
    cells = draw.flags(draw.choice([1, B]), draw.choice([1, H]), Q, K, share=draw.choice([0.2, 0.5, 0.95]))
    return cells & draw.flags(Q, 1, share=0.9) & draw.flags(K, share=0.9)


def _block_sparse(draw: Draw, B: int, H: int, Q: int, K: int) -> Mask:
    size = draw.choice([1, 8, 16, 64])
    return masks.block_sparse(draw.flags(draw.choice([1, B]), draw.choice([1, H]), -(-Q // size), -(-K // size)), size)


def draw_mask(draw: Draw, sizes: Sizes) -> Mask | Tensor | None:
    """No mask, a bool tensor, one mask, or two or three joined by & and |, some of them inverted."""
    if draw.happens(0.15):
        return None
    if draw.happens(0.2):  # those that most calls have, and that kernels know
        part = draw.choice(["", "", "padding", "documents"])
        return masks.causal() & _one_mask(draw, sizes, [part]) if part and sizes[2] <= sizes[3] else masks.causal()
    if draw.happens(0.12):
        cells = _cells(draw, *sizes)
        return draw.choice([cells, cells[0], cells[0, 0]])
    mask: Mask | None = None
    for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
        part = _one_mask(draw, sizes)
        part = ~part if draw.happens(0.2) else part
        mask = part if mask is None else mask & part if draw.happens(0.6) else mask | part
    return mask


def _one_mask(draw: Draw, sizes: Sizes, names: Sequence[str] = tuple(MAKERS)) -> Mask:
    while True:
        with contextlib.suppress(MaskError):
            mask = MAKERS[draw.choice(names)](draw, *sizes)
            if mask is not None:
                mask.aligned(*sizes[2:])
                return mask


def draw_bias(draw: Draw, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor | None, str]:
    """A bias of any shape that broadcasts, and what it holds."""
    if draw.happens(0.55):
        return None, "none"
    if draw.happens(0.4):
        dtype = draw.choice(list(DTYPES))
    shape = [size if draw.happens(0.6) else 1 for size in sizes]
    while shape and shape[0] == 1 and draw.happens(0.7):
        shape.pop(0)
    what = draw.one({"finite": 3, "-inf": 2, "finfo.min": 3, "-1e9": 1, "finite, -inf and finfo.min": 2})
    bias = draw.normal(*shape).to(dtype) if "finite" in what else torch.zeros(shape, dtype=dtype)
    lowest = {"-inf": -math.inf, "finfo.min": torch.finfo(dtype).min, "-1e9": max(-1e9, torch.finfo(dtype).min)}
    for name, value in lowest.items():
        if name in what:
            bias = bias.masked_fill(draw.flags(*shape, share=0.3), value)
            if len(shape) > 1:  # whole rows
                bias = bias.masked_fill(draw.flags(*shape[:-1], 1, share=0.1), value)
    return bias, f"{what}, {_kind(bias)}"


def draw_length(draw: Draw) -> int:
    low, high = draw.one({(0, 0): 2, (1, 1): 18, (2, 8): 15, (9, 70): 55, (130, 200): 7})
    return draw.randint(low, high)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strided rows": lambda x: x.mT.contiguous().mT,
    "every other row": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "a slice": lambda x: pad(x, (1, 2, 3, 1))[:, :, 3:-1, 1:-2],
    # These change what the tensor holds.
    "one example for all": lambda x: x[:1].expand_as(x),
    "one row for all": lambda x: x[:, :, :1].expand_as(x),
}


# Factors on queries and on keys, and the scale. float16 holds no large scores.
TINY = [(1.0, 1.0, 1e-40), (1.0, 1.0, -1e-40), (1.0, 1.0, 1e-20)]
EXTREMES = [*TINY, (3e4, 3e4, None), (1e10, 1.0, None), (1e10, 1.0, -1.0), (1.0, 1.0, 1e10), (1.0, 1.0, -1e10)]


def draw_call(seed: int, index: int) -> Call:
    """The call of this index."""
    draw = Draw(seed, index)
    dtype: torch.dtype = draw.one(DTYPES)
    q_len = draw_length(draw)
    sizes = (draw.randint(1, 3), draw.randint(1, 6), q_len, q_len if draw.happens(0.4) else draw_length(draw))
    if q_len * sizes[3] > 10_000:
        sizes = (draw.randint(1, 2), draw.randint(1, 2), *sizes[2:])
    batch, heads, q_len, k_len = sizes
    groups = draw.choice([g for g in range(1, heads + 1) if heads % g == 0])
    d = draw.choice([1, 2, 3, 8, 16, 40, draw.randint(1, 40)])
    e = d if draw.happens(0.6) else draw.randint(1, 40)
    size = (draw.choice([1.0, 1.0, 1.0, 3.0, 0.1]), 1.0)
    scale = draw.one({None: 6, 0.7: 1, 0.0: 1, -0.5: 1, -1.0: 1, 2.0: 0.5})
    if draw.happens(0.12):
        *size, scale = draw.choice(EXTREMES if dtype != torch.float16 else TINY)

    mask = draw_mask(draw, sizes)
    healthy = {
        "q": (size[0] * draw.normal(batch, heads, q_len, d)).to(dtype),
        "k": (size[1] * draw.normal(batch, groups, k_len, d)).to(dtype),
        "v": draw.normal(batch, groups, k_len, e).to(dtype),
    }
    shared = e <= d and draw.happens(0.05)  # as in a compressed cache
    if shared:
        healthy["v"] = healthy["k"][..., :e].contiguous()
    bias, bias_story = draw_bias(draw, sizes, dtype)
    if bias is not None:
        healthy["bias"] = bias
    if draw.happens(0.3):
        sinks = draw.normal(heads).masked_fill(draw.flags(heads, share=draw.choice([0, 0, 0.5, 1])), -math.inf)
        healthy["sinks"] = sinks.to(dtype if draw.happens(0.7) else draw.choice([torch.float32, torch.float64]))

    spoilt, spoilt_story = _spoil(draw, healthy, mask, sizes, shared)
    layouts = list(LAYOUTS) if spoilt_story == "none" else [name for name in LAYOUTS if not name.startswith("one ")]
    inputs, layout = dict(spoilt), {}
    for name in ("q", "k", "v"):
        layout[name] = "contiguous" if draw.happens(0.6) else draw.choice(layouts)
        inputs[name] = LAYOUTS[layout[name]](spoilt[name])
    if shared:
        layout["v"], inputs["v"] = "columns of k", inputs["k"][..., :e]
    if spoilt_story == "none":  # what the layout has made of it
        healthy |= {name: inputs[name].contiguous() for name in ("q", "k", "v")}
    if "bias" in inputs and draw.happens(0.2) and inputs["bias"].ndim > 1:
        inputs["bias"] = inputs["bias"].mT.contiguous().mT
    shares = {"q": 0.85, "k": 0.85, "v": 0.85, "bias": 0.4, "sinks": 0.7}
    wanted = [name for name in inputs if draw.happens(shares[name])]
    options = {
        "mask": mask,
        "scale": scale,
        "softcap": draw.one({None: 8, 3.0: 1, 30.0: 1}),
    }
    d_out = draw.normal(batch, heads, q_len, e).to(dtype)
    d_out = LAYOUTS[draw.choice(list(LAYOUTS))](d_out) if draw.happens(0.3) else d_out
    if draw.happens(0.25):
        slopes = draw.choice([0.01, 0.1, 1.0]) * draw.normal(heads).abs()
        healthy["slopes"] = inputs["slopes"] = slopes.to(draw.choice([dtype, torch.float32]))
        wanted += ["slopes"] if draw.happens(0.4) else []
    also = tuple(mode for mode in ("dropout", "changed", "two threads") if draw.happens(0.3))
    if spoilt_story != "none" or not k_len:  # NaN would hide what is kept
        also = tuple(mode for mode in also if mode != "dropout")
    dropout, changes = draw.choice([0.1, 0.5]), draw.choice([*inputs, "mask", "mask", "mask"])
    story = {
        "sizes": f"B {batch}, H {heads}, G {groups}, Q {q_len}, K {k_len}, D {d}, E {e}, {_kind(d_out, shape=False)}",
        "mask": f"bool {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask),
        "bias": bias_story,
        "slopes": _kind(inputs["slopes"]) + f" {inputs['slopes'].tolist()}" if "slopes" in inputs else "none",
        "sinks": _kind(inputs["sinks"]) + f" {inputs['sinks'].tolist()}" if "sinks" in inputs else "none",
        "scale": str(options["scale"]),
        "softcap": str(options["softcap"]),
        "not finite": spoilt_story,
        "layouts": ", ".join(f"{name} {layout[name]}" for name in layout),
        "gradients of": ", ".join(wanted) or "nothing",
        "size": f"q times {size[0]:g}, k times {size[1]:g}",
        "also": ", ".join({"dropout": f"dropout {dropout}", "changed": f"{changes} changed"}.get(x, x) for x in also),
    }
    inputs = {name: x.detach().requires_grad_(name in wanted) for name, x in inputs.items()}
    return Call(index, inputs, healthy, options, d_out, story, also, dropout, changes)


def _kind(x: Tensor, *, shape: bool = True) -> str:
    return str(x.dtype).removeprefix("torch.") + (f" {list(x.shape)}" if shape else "")


def _spoil(
    draw: Draw, healthy: dict[str, Tensor], mask: Mask | Tensor | None, sizes: Sizes, shared: bool
) -> tuple[dict[str, Tensor], str]:
    """NaN and inf in keys that nobody may attend to, in keys that some may, or in the bias of forbidden cells."""
    spoilt, stories = {name: x.clone() for name, x in healthy.items()}, []
    bias, dtype = healthy.get("bias"), torch.promote_types(healthy["q"].dtype, torch.float32)
    by_mask = oracle.cells(mask, sizes)
    allowed = by_mask if bias is None else oracle.cells(mask, sizes, bias.to(dtype))
    used = allowed.any(2).unflatten(1, (healthy["k"].shape[1], -1)).any(2)
    if not bool(used.all()) and draw.happens(0.5):
        for name in ("k", "v"):
            spoilt[name][~used] = math.nan if shared else draw.choice([math.nan, math.inf])
        stories.append("unused keys")
    if bool(used.any()) and not (shared and sizes[3] == 1) and draw.happens(0.15):
        where = used.nonzero()
        for _ in range(draw.choice([1, 1, 2])):
            name = "k" if shared else draw.choice(["k", "v"]) if sizes[3] > 1 else "v"
            b, g, key = where[draw.randrange(len(where))].tolist()
            value = math.nan if name == "k" else draw.choice([math.nan, math.nan, math.inf, -math.inf])
            column = draw.choice([slice(None), draw.randrange(healthy[name].shape[3])])
            spoilt[name][b, g, key, column] = value
            if shared:
                spoilt["v"] = spoilt["k"][..., : spoilt["v"].shape[3]].clone()
            stories.append(f"{name}[{b}, {g}, {key}, {':' if column == slice(None) else column}] = {value}")
    if bias is not None and list(bias.shape) == list(sizes) and draw.happens(0.3) and not bool(by_mask.all()):
        spoilt["bias"] = bias.masked_fill(~by_mask, draw.choice([math.nan, math.inf]))
        stories.append("bias of forbidden cells")
    return spoilt, ", ".join(stories) or "none"


def gradients(out: Tensor, inputs: dict[str, Tensor], d_out: Tensor) -> dict[str, Tensor]:
    """{"out": the output, "q": its gradient, ...} for all that require one."""
    wanted = {name: x for name, x in inputs.items() if x.requires_grad}
    found = tuple(torch.zeros_like(x) for x in wanted.values())
    if wanted and out.requires_grad:  # an output without queries need not
        found = torch.autograd.grad(out, list(wanted.values()), d_out.to(out.dtype), materialize_grads=True)
    return {"out": out.detach()} | dict(zip(wanted, found, strict=True))


def true_results(call: Call, inputs: dict[str, Tensor], kept: Tensor | None = None) -> dict[str, Tensor]:
    """By the definition, in float64; gradients of q, k and v, and of what else requires one. `kept`: by dropout."""
    exact = {name: x.detach().double().requires_grad_(call.measures(name)) for name, x in inputs.items()}
    given = exact if kept is None else exact | {"v": _unit_values(call).double()}
    out = oracle.attention(**given, **call.options, dtype=call.dtype)
    if kept is not None:
        v = exact["v"].repeat_interleave(call.sizes[1] // exact["v"].shape[1], dim=1)
        out = (out * kept / (1 - call.dropout)) @ v
    return gradients(out, exact, call.d_out)


def _unit_values(call: Call) -> Tensor:
    """Values [B, G, K, K] of which the output is the weights."""
    batch, groups, k_len, _ = call.inputs["k"].shape
    return torch.eye(k_len, dtype=call.dtype).expand(batch, groups, -1, -1)


def math_path(call: Call, inputs: dict[str, Tensor], kept: Tensor | None = None) -> dict[str, Tensor]:
    """By the steps of torch's math path, in the call's dtype; bias, sinks and softmax in float32 or better."""
    dtype, wide = call.dtype, torch.promote_types(call.dtype, torch.float32)
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scale, softcap = call.options["scale"], call.options["softcap"]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    half = abs(scale) ** 0.5
    s = q * math.copysign(half, scale) @ (k * half).mT
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    allowed = oracle.cells(call.options["mask"], call.sizes)
    bias = _added(call, inputs)
    empty = ~(allowed & (bias > -math.inf)).any(-1, keepdim=True)
    s = (s.to(wide) + bias).masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
    if "sinks" in inputs:
        s = torch.cat([s, inputs["sinks"][None, :, None, None].expand(*s.shape[:3], 1).to(wide)], dim=-1)
    weights = torch.softmax(s, dim=-1).to(dtype)[..., : call.sizes[3]]
    weights = weights if kept is None else weights * kept / (1 - call.dropout)
    return gradients((weights @ v).masked_fill(empty, 0.0), inputs, call.d_out)


def _added(call: Call, inputs: dict[str, Tensor]) -> Tensor:
    """What bias and slopes add to the scores, [B, H, Q, K]."""
    wide, (*_, q_len, k_len) = torch.promote_types(call.dtype, torch.float32), call.sizes
    bias = inputs["bias"].to(wide).expand(call.sizes) if "bias" in inputs else torch.zeros(call.sizes, dtype=wide)
    if "slopes" in inputs:
        apart = (torch.arange(k_len) - torch.arange(q_len)[:, None] - (k_len - q_len)).abs()
        bias = bias - inputs["slopes"].to(wide)[:, None, None] * apart
    return bias


def torchs_own(call: Call) -> dict[str, Tensor] | None:
    """By scaled_dot_product_attention, fused, of inputs that are finite; None if it cannot be said in its arguments."""
    if call.options["softcap"] is not None or call.sizes[3] == 0:
        return None
    wide = torch.promote_types(call.dtype, torch.float32)
    inputs = {name: x.detach().requires_grad_(name in "qkv" and x.requires_grad) for name, x in call.inputs.items()}
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    scale = q.shape[-1] ** -0.5 if call.options["scale"] is None else call.options["scale"]
    bias = _added(call, inputs)
    allowed = oracle.cells(call.options["mask"], call.sizes, bias)
    bias = bias.masked_fill(~allowed, -math.inf)
    if "sinks" in inputs:
        bias = torch.cat([bias, inputs["sinks"].to(wide)[None, :, None, None].expand(*bias.shape[:3], 1)], dim=-1)
        k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
    width = max(q.shape[-1], v.shape[-1])
    padded = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    out = scaled_dot_product_attention(*padded, attn_mask=bias, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    out = out[..., : v.shape[-1]].masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return gradients(out, inputs, call.d_out)


def allowed_errors(call: Call, true: dict[str, Tensor], kept: Tensor | None = None) -> dict[str, float]:
    """How far a result may be from the true one."""
    healthy = {name: x.detach().requires_grad_(call.measures(name)) for name, x in call.healthy.items()}
    if call.story["not finite"] != "none":
        true = true_results(call, healthy)
    theirs = math_path(call, healthy, kept)
    allowed = {}
    for names in (["out"], [name for name in true if name != "out"]):
        error = max((_largest(theirs[name] - true[name]) for name in names), default=0.0)
        size = max((_largest(true[name]) for name in names), default=0.0)
        allowed |= dict.fromkeys(names, 2 * error + 1e-6 * max(1.0, size))
    return allowed


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """What is wrong with an output or a gradient."""

    what: str
    torchs: float | None = None  # the error of torch's own over the allowed one, where only the error is too large

    @property
    def shared(self) -> bool:
        """Whether torch's own scaled_dot_product_attention is too far off as well."""
        return self.torchs is not None and self.torchs > 1

    def __str__(self) -> str:
        return self.what if self.torchs is None else f"{self.what}; torch's own SDPA: ratio {self.torchs:.2f}"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one kernel made of one call."""

    call: Call
    kernel: str
    ratio: float  # the largest error, over that which is allowed
    mismatches: tuple[Mismatch, ...]
    undecided: tuple[str, ...]  # where the definition in float32 is as far off

    @property
    def shared(self) -> bool:
        """Whether torch's own is too far off wherever this kernel is."""
        return bool(self.mismatches) and all(mismatch.shared for mismatch in self.mismatches)


def check(call: Call, kernels: Iterable[str]) -> list[Result]:
    """The results of these kernels, without those that refuse."""
    true = true_results(call, call.inputs)
    allowed = allowed_errors(call, true)
    torchs: dict[str, float] | None = None
    results = []
    for kernel in kernels:
        found = list(run(call, kernel))
        ratio, mismatches, undecided = 0.0, [], []
        for mode, got, kept in found:
            if isinstance(got, str):
                mismatches.append(Mismatch(f"{mode}: {got}"))
                continue
            right, most = true, allowed
            if kept is not None:
                right = true_results(call, call.inputs, kept)
                most = allowed_errors(call, right, kept)
            for name, x in got.items():
                off, message = compare(x, right[name], most[name], call.inputs.get(name, call.inputs["q"]).dtype)
                what = f"{mode}, {'output' if name == 'out' else f'gradient of {name}'}: {message}"
                asked = message and off and kept is None and kernel != "reference"
                if asked and _of_definition(call, name, right, most) > 1:
                    undecided.append(what)
                    continue
                ratio = max(ratio, off)
                if not message:
                    continue
                if off and torchs is None:
                    torchs = _torchs_ratios(call, true, allowed)
                torchs_ratio = (torchs or {}).get("out" if name == "out" else "gradients") if off else None
                mismatches.append(Mismatch(what, torchs_ratio))
        if found:
            results.append(Result(call, kernel, ratio, tuple(mismatches), tuple(undecided)))
    return results


Found = dict[str, Tensor]


def run(call: Call, kernel: str) -> Iterator[tuple[str, Found | str, Tensor | None]]:
    """(the mode, output and gradients or what went wrong, what dropout kept); nothing where the kernel refuses."""
    trains = any(x.requires_grad for x in call.inputs.values())
    for mode in ("inference", *(["training", *call.also] if trains else [])):
        kept = None
        try:
            if mode == "dropout":
                kept = _kept(call, kernel)
            several = MODES[mode](call, kernel)
        except KernelRefused:
            continue
        except Exception as error:  # whatever it is, the call is a valid one
            yield mode, f"{type(error).__name__}: {str(error).splitlines()[0]}", None
            continue
        for found in several:
            yield mode, found, kept


def _infer(call: Call, kernel: str) -> list[Found]:
    inputs = {name: x.detach() for name, x in call.inputs.items()}
    return [{"out": headwise.attention(**inputs, **call.options, kernel=kernel)}]


def _train(call: Call, kernel: str) -> list[Found]:
    out = headwise.attention(**call.inputs, **call.options, kernel=kernel)
    return [gradients(out, call.inputs, call.d_out)]


def _drop(call: Call, kernel: str) -> list[Found]:
    torch.manual_seed(call.index)
    out = headwise.attention(**call.inputs, **call.options, dropout=call.dropout, kernel=kernel)
    return [gradients(out, call.inputs, call.d_out)]


def _kept(call: Call, kernel: str) -> Tensor:
    """Which weights `_drop` keeps, bool [B, H, Q, K]; of those that are 0 it does not matter."""
    given: dict[str, Any] = {**call.inputs, **call.options, "dropout": call.dropout}
    if kernel == "auto":  # of other values it might take another one
        kernel = headwise.plan(**given).kernel
    torch.manual_seed(call.index)
    with torch.no_grad():
        return headwise.attention(**{**given, "v": _unit_values(call)}, kernel=kernel) != 0


def _change(call: Call, kernel: str) -> list[Found]:
    """Backward after an argument was overwritten; no result where an error says so."""
    inputs = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in call.inputs.items()}
    options = copy.deepcopy(call.options)
    out = headwise.attention(**inputs, **options, kernel=kernel)
    changed: Any = inputs.get(call.changes, options["mask"])
    with torch.no_grad():
        for x in changed.tensors if isinstance(changed, Mask) else [] if changed is None else [changed]:
            if not torch._debug_has_internal_overlap(x):
                x.copy_(_other(x))
    try:
        return [gradients(out, inputs, call.d_out)]
    except RuntimeError as error:
        by_torch = call.changes not in ("mask", "bias") and "modified by an inplace operation" in str(error)
        if by_torch or call.changes in str(error):
            return []
        raise


def _other(x: Tensor) -> Tensor:
    """Other numbers that may stand in their place; in a table of places or documents, of those that there may be."""
    if x.dtype == torch.bool:
        return ~x
    return 2.0 * x + 1.0 if x.is_floating_point() else x // 2


def _in_threads(call: Call, kernel: str) -> list[Found]:
    """Two at once, on what no call has seen yet."""
    shared = dataclasses.replace(call, options=copy.deepcopy(call.options))
    with ThreadPoolExecutor(2) as threads:
        return [found for each in threads.map(_train, [shared] * 2, [kernel] * 2) for found in each]


# What a call is run as. Each gives results to be compared, or none; KernelRefused is none either.
MODES: dict[str, Callable[[Call, str], list[Found]]] = {
    "inference": _infer,
    "training": _train,
    "dropout": _drop,
    "changed": _change,
    "two threads": _in_threads,
}


def _of_definition(call: Call, name: str, true: Found, allowed: dict[str, float]) -> float:
    """The error of autograd through the definition in float32 over the allowed one."""
    (found,) = _train(call, "reference")
    return compare(found[name], true[name], allowed[name], found[name].dtype)[0]


def _torchs_ratios(call: Call, true: dict[str, Tensor], allowed: dict[str, float]) -> dict[str, float]:
    """The largest error of torch's own over the allowed one, of the output and of all gradients; empty if unknown."""
    ratios: dict[str, float] = {}
    for name, x in (torchs_own(call) or {}).items():
        group = "out" if name == "out" else "gradients"
        off, _ = compare(x, true[name], allowed[name], x.dtype)
        ratios[group] = max(ratios.get(group, 0.0), off)
    return ratios


def compare(x: Tensor, true: Tensor, allowed: float, dtype: torch.dtype) -> tuple[float, str]:
    """(the largest error over the allowed one, what does not match)."""
    if x.shape != true.shape or x.dtype != dtype:
        return 0.0, f"{_kind(x)}, expected {_kind(true.to(dtype))}"
    finite = true.isfinite()
    spread, gone = int((finite & ~x.isfinite()).sum()), int((x.isfinite() & ~finite).sum())
    if spread or gone:
        return 0.0, f"of {x.numel()} numbers {spread} are not finite but should be, {gone} are but should not be"
    error = _largest((x.double() - true)[finite])
    return error / allowed, "" if error <= allowed else f"error {error:.3g}, allowed {allowed:.3g}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--calls", type=int, default=5000)
    arguments.add_argument("--start", type=int, default=0, help="the index of the first of them")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--kernel", choices=["all", "auto", *KERNELS], default="all", help='"all": and "auto" too')
    arguments.add_argument("--only", type=int, metavar="INDEX", help="this one call, described in full")
    sets = instruction_sets()
    arguments.add_argument("--instruction-sets", nargs="+", choices=["all", *sets], help="of the native kernels")
    chosen = arguments.parse_args()

    if chosen.instruction_sets and not sets:
        arguments.error(f"--instruction-sets: the native kernels are off: {missing()}")
    if chosen.instruction_sets:
        sys.exit(run_forced(sets if "all" in chosen.instruction_sets else chosen.instruction_sets, chosen))
    torch.set_num_threads(1)  # small matrices
    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # else it compiles for each shape, even on the CPU
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    kernels = ["auto", *KERNELS] if chosen.kernel == "all" else [chosen.kernel]
    start, results = time.perf_counter(), []
    for index in range(chosen.start, chosen.start + chosen.calls) if chosen.only is None else [chosen.only]:
        for result in check(draw_call(chosen.seed, index), kernels):
            results.append(result)
            if result.mismatches or chosen.only is not None:
                console.print(_told(result, chosen.seed), markup=False, soft_wrap=True)
                sys.stdout.flush()
    console.print(_table(results))
    console.print(f"native kernels: {instruction_set() or 'off'}")
    calls, bad = {r.call.index for r in results}, {r.call.index for r in results if r.mismatches}
    own = bad - {r.call.index for r in results if r.mismatches and not r.shared}
    console.print(
        f"{len(calls):,} calls, {len(bad):,} with a mismatch, of these also torch's own: {len(own):,}; "
        f"{time.perf_counter() - start:.0f} s"
    )
    sys.exit(len(bad) > 0)


def run_forced(sets: Iterable[str], chosen: argparse.Namespace) -> int:
    """Run the calls on each instruction set, in a process of its own; print a line for each, and return the status."""
    given = {name: value for name, value in vars(chosen).items() if name != "instruction_sets" and value is not None}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in given.items())]
    statuses = {name: subprocess.run(command, env=os.environ | {VARIABLE: name}).returncode for name in sets}
    for name, status in statuses.items():
        print(f"{name}: {f'does not match (exit status {status})' if status else 'matches'}", flush=True)
    return int(any(statuses.values()))


def _told(result: Result, seed: int) -> str:
    lines = [f"{result.kernel}: {mismatch}" for mismatch in result.mismatches or ["matches"]]
    lines += [f"{result.kernel}: not decided: {each}" for each in result.undecided]
    lines += [f"    {name:<14}{value}" for name, value in result.call.story.items() if value not in ("none", "None")]
    again = f"    {VARIABLE}={instruction_set() or 'off'} python benchmarks/conformance.py --seed {seed}"
    return "\n".join([*lines, f"{again} --only {result.call.index}", ""])


def _table(results: list[Result]) -> Table:
    dtypes = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    counts = ("mismatches", "of these also torch's own", "the definition as far off")
    table = Table("kernel", "calls", *dtypes, *counts, "largest error / allowed")
    for column in table.columns[1:]:
        column.justify = "right"
    for kernel in dict.fromkeys(result.kernel for result in results):
        mine = [result for result in results if result.kernel == kernel]
        by_dtype = Counter(_kind(result.call.inputs["q"], shape=False) for result in mine)
        bad, shared = sum(bool(result.mismatches) for result in mine), sum(result.shared for result in mine)
        undecided = sum(bool(result.undecided) for result in mine)
        row = [len(mine), *(by_dtype[dtype] for dtype in dtypes), bad, shared, undecided]
        table.add_row(kernel, *(f"{n:,}" for n in row), f"{max(result.ratio for result in mine):.2f}")
    return table


if __name__ == "__main__":
    main()
