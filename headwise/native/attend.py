"""Attention by the native kernels: forward, gradients, statistics.

Only this module knows the layout of `headwise.h`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection, Mapping
from ctypes import CDLL
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack

from headwise.call import AttentionCall, Scores
from headwise.errors import ArgumentError
from headwise.native.library import instruction_set, library, missing, share_threads
from headwise.native.sight import Sight, find_sight
from headwise.tracing import is_forward_mode

OPTIONS = frozenset({"bias", "slopes", "softcap", "sinks", "dropout"})
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in headwise.h
INT8 = 3
FEW = 16  # for up to so many queries that share a key head, keys and values are read where they are, and may be int8
MOST = 64  # the limit of the largest weights per row

# Statistics of weights by their names in headwise.h: dimensions (T: largest weights, O: offsets, Y, X: picture), dtype.
ANSWERS = {
    **dict.fromkeys(("highest", "log_sum", "entropy", "distance", "at_keys"), ("BHQ", torch.float32)),
    "received": ("BHK", torch.float32),
    "needed": ("BHQ", torch.int64),
    "top_weights": ("BHQT", torch.float32),
    "top_keys": ("BHQT", torch.int64),
    "at_offsets": ("BHQO", torch.float32),
    "mean": ("BHYX", torch.float32),
    "greatest": ("BHYX", torch.float32),
}

# The statistics that can be computed together with the output; of the largest weights of a row, only one.
BESIDE = frozenset({"highest", "log_sum", "entropy", "distance", "at_keys", "received", "top_weights", "top_keys"})

# torch.compile does not trace these. torch.compiler.assume_constant_result does the same, but imports the compiler,
# which takes seconds.
for each in (instruction_set, missing):
    each._dynamo_marked_constant = True  # type: ignore[attr-defined]

# hw_attention: every field has 8 bytes.
_TENSOR = "Q4q"
_INPUTS = "11q" + 4 * _TENSOR + "2d2Q" + 3 * _TENSOR + "dq"
_MASK = "3q" + "Q2q" + "3Q3q"
_FOUND = "5Q" + "QdQ" + "q2Q" + 2 * "q2Q" + "2q2Q"
_LAYOUT = struct.Struct("=" + _INPUTS + _MASK + _FOUND + 5 * _TENSOR + "2Q")
_NONE = (0, 0, 0, 0, 0)


def refuse(call: Scores) -> str | None:
    """Return why the native kernels cannot compute a call, as a phrase for a message; None if they can."""
    if not call.q.is_cpu:
        return f"they run on the CPU (the call is on {call.q.device})"
    if call.q.dtype not in DTYPES:
        return f"they have no {str(call.q.dtype).removeprefix('torch.')}"
    if call.k.dtype == torch.int8 and (rows := call.heads_per_key_head * call.shape[2]) > FEW:
        return f"it reads int8 for up to {FEW} queries that share a key head (the call has {rows})"
    if (unknown := call.beyond(OPTIONS)) is not None:
        return f"they have no {unknown}"
    if not call.q.numel() or not call.k.numel():
        return "there are no queries or no keys"
    if (why := missing()) is not None:
        return why
    if not torch.compiler.is_compiling() and (why := watcher(call)) is not None:
        return f"{why} would not see what they do"
    return None


def is_few(call: Scores) -> bool:
    """Whether a call has so few queries that keys and values are read in place, not packed first: src/decode.hpp."""
    tiles = call.k.dtype == torch.bfloat16 and instruction_set() == "amx"
    return call.heads_per_key_head * call.shape[2] <= (FEW // 4 if tiles else FEW)


def watcher(call: Scores) -> str | None:
    """Return the part of torch that records operators and would miss a native call, such as "torch.func"; else None."""
    return watching(call.q, call.k, getattr(call, "v", call.q), *call.option_tensors().values())


def watching(*given: Tensor) -> str | None:
    """Return the part of torch that records operators on these tensors and would miss a native kernel; else None."""
    if _is_tracing():
        return "torch.jit.trace"
    if _are_functorch_transforms_active():
        return "torch.func"
    if is_forward_mode():
        return "forward-mode differentiation"
    if _len_torch_dispatch_stack():  # it counts operations, makes fake tensors, and more
        return "a TorchDispatchMode"
    for x in given:
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            return f"{type(x).__name__}, a subclass of Tensor,"
    return None


def forward(call: Scores, out: Tensor | None, *, sight: Sight | None = None, seed: int = 0, **answers: Tensor) -> bool:
    """Compute a call, and write its results to `out` and `answers`. Return whether all numbers of `out` are finite.

    Args:
        call: a call that `refuse` does not refuse; with values (an `AttentionCall`) if there is an `out`.
        out: the output [B, H, Q, E], which is written here; None = only `answers`.
        sight: the allowed blocks of the call's mask (`find_sight`); None = found from the mask.
        seed: the seed of the dropout.
        answers: name -> contiguous tensor to write to, for statistics in both `ANSWERS` and `BESIDE`. See headwise.h.
    """
    odd = torch.zeros(1, dtype=torch.int64, device="cpu")
    _call("hw_attention_forward", call, out, {**answers, "odd": odd}, sight=sight, seed=seed)
    return not odd.item()


def backward(
    call: AttentionCall,
    out: Tensor,
    highest: Tensor,
    log_sum: Tensor,
    d_out: Tensor,
    *,
    sight: Sight | None = None,
    seed: int = 0,
    with_bias: bool = False,
    with_slopes: bool = False,
    with_sinks: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Compute (dq, dk, dv, d_bias, d_slopes, d_sinks); the last three are None unless `with_…` requests them.

    The inputs are the results of `forward`, the `sight` and `seed` that it used, and the output's gradient `d_out`.
    """
    dq, dk, dv = (x.new_empty(x.shape) for x in (call.q, call.k, call.v))
    d_bias = call.q.new_zeros(call.shape, dtype=torch.float32) if with_bias else None
    wanted = {"d_slopes": with_slopes, "d_sinks": with_sinks}
    of_heads = {name: call.q.new_empty(call.shape[1], dtype=torch.float32) for name in wanted if wanted[name]}
    answers = {"highest": highest, "log_sum": log_sum, **of_heads}
    _call("hw_attention_backward", call, out, answers, (d_out, dq, dk, dv, d_bias), sight=sight, seed=seed)
    if d_bias is not None and call.bias is not None:
        d_bias = d_bias.sum_to_size(call.bias.shape).to(call.bias.dtype)
    d_slopes, d_sinks = (
        found.to(given.dtype) if (found := of_heads.get(name)) is not None and given is not None else None
        for name, given in (("d_slopes", call.slopes), ("d_sinks", call.sinks))
    )
    return dq, dk, dv, d_bias, d_slopes, d_sinks


def look(call: Scores, names: Collection[str], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute these statistics of a call's attention weights, before dropout: name -> tensor.

    Args:
        call: a call that `refuse` does not refuse.
        names: keys of `ANSWERS`; top_weights and top_keys go together.
        options: for needed, `share` of the weight; for top_…, `top`, at most 64; for mean and greatest (pictures),
            `size` (h, w); for at_offsets, `offsets`, a sequence; for at_keys, `keys`, int64 [B|1, H|1, n], -1 = none.
    """
    batch, heads, q_len, k_len = call.shape
    sizes = {"B": batch, "H": heads, "Q": q_len, "K": k_len, "T": options.get("top", 0)}
    sizes |= {"O": len(options.get("offsets", ())), **dict(zip("YX", options.get("size", (0, 0)), strict=True))}
    given: dict[str, Tensor] = {}
    if "offsets" in options:
        given["offsets"] = torch.tensor(options["offsets"], dtype=torch.int64, device="cpu")
    if "keys" in options:
        given["keys"] = options["keys"].expand(batch, heads, -1).contiguous()
    names = {*names, *(("highest", "log_sum") if "received" in names else ())}
    shapes = {name: ([sizes[dim] for dim in ANSWERS[name][0]], ANSWERS[name][1]) for name in names}
    found = {name: torch.empty(shape, dtype=dtype, device="cpu") for name, (shape, dtype) in shapes.items()}
    beside = BESIDE if sizes["T"] <= 1 else BESIDE - {"top_weights", "top_keys"}
    function = "hw_attention_forward" if names <= beside else "hw_attention_look"
    _call(function, call, None, {**given, **found}, share=options.get("share", 0.0))
    return found


def _call(
    function: str,
    call: Scores,
    out: Tensor | None,
    answers: dict[str, Tensor],
    gradients: tuple[Tensor | None, ...] = (None,) * 5,
    *,
    sight: Sight | None = None,
    seed: int = 0,
    share: float = 0.0,
) -> None:
    (batch, heads, q_len, k_len), (key_heads, width) = call.shape, (call.k.shape[1], call.q.shape[3])
    v = getattr(call, "v", None)
    bias = None if call.bias is None else call.bias.float().expand(batch, heads, q_len, k_len)
    of_heads = [None if x is None else x.float().contiguous() for x in (call.sinks, call.slopes)]
    if sight is None:
        sight = find_sight(call.mask, q_len, k_len)  # kept until the call is over, with all that it points to
    dtype = DTYPES[call.q.dtype]
    k_scale, v_scale = (_numbers(getattr(call, name, None)) for name in ("k_scale", "v_scale"))
    top, offsets, keys = (answers.get(name) for name in ("top_keys", "offsets", "keys"))
    picture = answers.get("mean", answers.get("greatest"))

    def at(*names: str) -> tuple[int, ...]:
        return tuple(x.data_ptr() if (x := answers.get(name)) is not None else 0 for name in names)

    given = _LAYOUT.pack(
        *(_LAYOUT.size, dtype, INT8 if call.k.dtype == torch.int8 else dtype, torch.get_num_threads()),
        *(batch, heads, key_heads, q_len, k_len, width, width if v is None else v.shape[3]),
        *(number for x in (call.q, call.k, v, out) for number in _tensor(x)),
        *(call.scale, call.softcap or 0.0, *(0 if x is None else x.data_ptr() for x in of_heads), *k_scale, *v_scale),
        *(*_tensor(bias), call.dropout, seed),
        *_mask(sight),
        *at("highest", "log_sum", "entropy", "distance", "odd"),
        *(*at("received"), share, *at("needed")),
        *(0 if top is None else top.shape[3], *at("top_weights", "top_keys")),
        *(0 if offsets is None else len(offsets), *at("offsets", "at_offsets")),
        *(0 if keys is None else keys.shape[2], *at("keys", "at_keys")),
        *((0, 0) if picture is None else picture.shape[2:]),
        *at("mean", "greatest"),
        *(number for x in gradients for number in _tensor(x)),
        *at("d_slopes", "d_sinks"),
    )
    called(function, given)


def called(function: str, given: bytes) -> None:
    """Call a function of the library with a C struct as bytes. Raises ArgumentError if it refuses the call."""
    loaded = the_library()
    code = getattr(loaded, function)(given)
    if code:
        raise ArgumentError(f"{function}: {loaded.hw_error(code).decode()}")


@functools.cache
def the_library() -> CDLL:
    """Return the loaded library, which must exist, set to as many threads as torch."""
    loaded = library()
    assert loaded is not None
    share_threads(Path(torch.__file__).parent)
    return loaded


def _tensor(x: Tensor | None) -> tuple[int, ...]:
    return _NONE if x is None else (x.data_ptr(), *x.stride())


def _numbers(x: Tensor | None) -> tuple[int, ...]:
    return _NONE if x is None else (x.data_ptr(), *x.stride(), 1)


def _mask(sight: Sight) -> tuple[Any, ...]:
    found = sight.runs
    if found is None:
        return (sight.kind, sight.low, sight.high, *(0,) * 9)
    batch, heads = found.matrix.shape
    strides = (heads if batch > 1 else 0, 1 if heads > 1 else 0)
    arrays = (found.tiles.ctypes.data, found.runs.ctypes.data, found.words.ctypes.data)
    counts = (len(found.tiles) - 1, len(found.runs) - 1, found.words.size)
    return (sight.kind, 0, 0, found.matrix.ctypes.data, *strides, *arrays, *counts)
