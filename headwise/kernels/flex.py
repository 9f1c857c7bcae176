"""PyTorch's FlexAttention: any mask, bias, slopes, softcap and sinks in one kernel compiled for them. Meant for CUDA.

On the CPU it runs only when it is requested by name, uncompiled and forward only: there the other kernels are faster,
need no compiler, and train (FlexAttention on the CPU refuses gradients).
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily

from headwise.call import AttentionCall, capped
from headwise.kernels import reference
from headwise.kernels.kernel import Blocks, Cost, input_output_bytes, machine, matrix_flops, output_bytes, refused
from headwise.masks import Extent
from headwise.native.attend import watcher
from headwise.softmax import add_sinks

OPTIONS = frozenset({"bias", "slopes", "softcap", "sinks"})
BLOCK = 128
_AS_IT_IS = contextlib.nullcontext()
CALLS = 10  # calling a compiled function takes as long as calling 10 operators: Python checks its guards


def refuse(call: AttentionCall) -> str | None:
    """Return the reason to refuse gradients on the CPU, empty calls, or what torch traces or transforms; else None."""
    if call.q.device.type == "cpu" and call.trains:
        return "FlexAttention gives no gradients on the CPU"
    if (why := watcher(call)) is not None:
        return refused("{why} cannot follow FlexAttention", why=why)
    if 0 in call.shape:
        return "there are no queries or no keys"
    return None


def cost(call: AttentionCall) -> Cost:
    """Estimate the cost: on CUDA, of the non-empty blocks; on the CPU (uncompiled), 1.5 times that of `reference`."""
    if call.q.device.type == "cpu":
        dense = reference.cost(call)
        return Cost(dense.flops, dense.bytes, dense.peak, 1.5 * dense.time)
    blocks, share = None, 1.0
    if call.mask is not None:
        codes = call.mask.blocks(*call.shape[2:], BLOCK)
        full, partial, skipped = (int((codes == extent).sum()) for extent in (Extent.ALL, Extent.SOME, Extent.NONE))
        blocks = Blocks(BLOCK, BLOCK, full, partial, skipped)
        share = 1 - blocks.skipped / codes.numel()
    flops = int(share * matrix_flops(call, call.q.shape[:3].numel() * call.k.shape[2]))
    moved = input_output_bytes(call)
    time = machine(call).time(flops, moved, share=0.7, calls=CALLS)
    return Cost(flops, moved, output_bytes(call), time, blocks)


def run(call: AttentionCall) -> Tensor:
    """Compute the output: the mask becomes a BlockMask; bias, slopes and softcap a score_mod; sinks are added last."""
    return prepare(call)(call)


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """Return `run` for calls that differ from this one in the numbers of q, k and v alone: the mask is ready."""
    mask, device, lengths = call.mask, call.q.device, call.shape[2:]
    given: dict[str, Any] = {"score_mod": _score_mod(call), "scale": call.scale, "block_mask": None}
    given["enable_gqa"] = call.heads_per_key_head > 1
    if mask is not None:
        given["block_mask"] = mask.remember(
            ("flex", *lengths, device),
            lambda mask: mask.to_block_mask(*lengths, block_size=BLOCK, device=device),
        )
    if call.sinks is not None:
        given |= _with_lse()
    attend, on_cpu = _flex_attention(device.type), device.type == "cpu"

    def compute(call: AttentionCall) -> Tensor:
        q, k, v = call.q, call.k, call.v
        if on_cpu:
            # FlexAttention looks at requires_grad even under no_grad, and rounds scores and output to half precision.
            q, k, v = (x.detach().to(call.dtype) for x in (q, k, v))
        with _compiled() if _get_current_function_mode_stack() else _AS_IT_IS:
            out = attend(q, k, v, **given)
        if call.sinks is not None:
            out, more = out
            out, _ = add_sinks(out, getattr(more, "lse", more), call.sinks)
        return out if out.dtype == call.q.dtype else out.to(call.q.dtype)

    return compute


@contextlib.contextmanager
def _compiled() -> Iterator[None]:
    """Keep FlexAttention compiled under watch() and edit(): uncompiled it stores every score.

    Both contexts make torch.compile run the model eagerly, so that they see its operations, and torch.compile cannot
    trace their function modes. They have already seen this attention call, so FlexAttention itself may be compiled.
    """
    with contextlib.ExitStack() as stack:
        while _get_current_function_mode_stack():
            stack.enter_context(_pop_mode_temporarily())
        stack.enter_context(torch.compiler.set_stance("default"))
        yield


def _with_lse() -> dict[str, Any]:
    """Return the argument that requests the log-sum-exp too; torch 2.9 renamed it."""
    try:
        from torch.nn.attention.flex_attention import AuxRequest
    except ImportError:
        return {"return_lse": True}
    return {"return_aux": AuxRequest(lse=True)}


def _score_mod(call: AttentionCall) -> Callable[..., Tensor] | None:
    if call.softcap is None and not call.biases:
        return None
    softcap, slopes = call.softcap, call.slopes
    offset = call.shape[3] - call.shape[2]
    bias = None if call.bias is None else call.take_options({})["bias"]
    sizes = None if bias is None else bias.shape
    dtype = call.dtype

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if softcap is not None:
            score = capped(score, softcap)
        added = None
        if bias is not None and sizes is not None:
            index = [i if size > 1 else i * 0 for i, size in zip((b, h, q, k), sizes, strict=True)]
            added = bias[tuple(index)].to(dtype)
        if slopes is not None:
            more = -slopes[h].to(dtype) * (q + offset - k).abs()
            added = more if added is None else added + more
        return score if added is None else score + added

    return score_mod


@functools.cache
def _flex_attention(device_type: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    if device_type != "cpu":
        return torch.compile(flex_attention, dynamic=False)

    def uncompiled(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            # It warns that it is not compiled; on the CPU that is intended.
            warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
            return flex_attention(*args, **kwargs)

    return uncompiled
