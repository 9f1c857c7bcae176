"""`scaled_dot_product_attention`: attention by `keras.ops`, on TensorFlow, JAX and PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import torch
from keras import ops

from headwise.errors import ArgumentError, DtypeError, KernelRefused, ShapeError
from headwise.functional import attention
from headwise.keras import masking
from headwise.keras.call import Bias, Call, Tensor
from headwise.keras.kernels import KERNELS, choose, plain
from headwise.keras.saving import unwrapped
from headwise.masks import Mask
from headwise.masks.cellwise import Dense
from headwise.masks.mask import And, Not, Or
from headwise.masks.padding import PaddingKeys
from headwise.options import check_dropout, check_scale, check_softcap
from headwise.scope import Scope

Listener = Callable[[Call, Tensor], object]

ALL_KERNELS = ("auto", *KERNELS, "torch")

_LISTENERS: Scope[Listener] = Scope()


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
    kernel: str = "auto",
    return_attention_scores: bool = False,
) -> Any:
    """Compute softmax(scale · q kᵀ) v: `headwise.attention` for Keras tensors. Vaswani et al. 2017, equation 1.

    Args:
        q: queries [B, H, Q, D].
        k: keys [B, G, K, D]; H is a multiple of G, and query head h reads key head h // (H / G) (Ainslie et al. 2023).
        v: values [B, G, K, E].
        mask: which query may attend to which key, True or 1 = may: a mask of `headwise.masks`, or a tensor [Q, K],
            [B, Q, K] (as in Keras) or [B, H, Q, K], of which B, H and Q may be 1. Causal and window masks of
            `headwise.masks` align the last query with the last key.
        bias: a float tensor that is added to the scores; it broadcasts to [B, H, Q, K].
        scale: the factor on q kᵀ; None = 1/√D.
        softcap: a score s becomes softcap · tanh(s / softcap), before the bias is added (Gemma 2).
        sinks: [H], one logit per head, which acts as a further key with this score and the value 0 (gpt-oss).
        dropout: the probability of dropping a weight in this call: pass 0.0 for evaluation.
        seed: the seed of dropout, an int or a keras.random.SeedGenerator. Required with dropout.
        kernel: "auto"; "plain"; "chunked", whose memory is linear in the length, also in training; "banded" and
            "block_sparse", whose cost depends on the mask; "torch", which is headwise.attention, if Keras runs on
            PyTorch.
        return_attention_scores: also return the attention weights before dropout. Every kernel can do this.

    Returns:
        The output [B, H, Q, E] in v's dtype; with `return_attention_scores=True` (output, weights [B, H, Q, K], float32
        or better). The softmax is computed in float32 or better. A query that may attend to nothing gets output 0 and
        gradient 0. NaN in a key that no query may attend to has no effect.

    Raises:
        ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        KernelRefused: the requested kernel cannot compute this.
    """
    q, k, v = (ops.convert_to_tensor(x) for x in (q, k, v))
    _check(q, k, v, bias, sinks)
    check_scale(scale)
    check_softcap(softcap)
    check_dropout(dropout)
    sizes = (*q.shape[:3], k.shape[2])
    return attend(
        *(q, k, v),
        mask=masking.resolve([unwrapped(mask)], None, sizes),
        bias=None if bias is None else ops.convert_to_tensor(bias),
        scale=scale,
        softcap=softcap,
        sinks=None if sinks is None else ops.convert_to_tensor(sinks),
        dropout=dropout,
        seed=keras.random.SeedGenerator(seed) if isinstance(seed, int) else seed,
        kernel=kernel,
        return_attention_scores=return_attention_scores,
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: keras.random.SeedGenerator | None = None,
    kernel: str = "auto",
    return_attention_scores: bool = False,
) -> Any:
    """Compute attention for a layer: `mask` comes from `masking.resolve`, and `bias` may be a function."""
    if kernel not in ALL_KERNELS:
        raise ArgumentError(f"kernel: expected one of {', '.join(ALL_KERNELS)}. Received: kernel={kernel!r}")
    if dropout and seed is None:
        raise ArgumentError("seed: expected an int or a keras.random.SeedGenerator with dropout. Received: seed=None")
    drawn = seed.next() if dropout and seed is not None else None
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    call = Call(q, k, v, mask, bias, scale, softcap, sinks, dropout, drawn)
    on_torch = keras.backend.backend() == "torch"
    if kernel == "torch" and not on_torch:
        raise KernelRefused(
            'kernel: "torch" is headwise.attention, so it needs Keras on PyTorch (KERAS_BACKEND=torch). Received: '
            f"kernel='torch' on {keras.backend.backend()}"
        )
    if kernel == "torch" and dropout:
        raise KernelRefused(
            "kernel: \"torch\" uses PyTorch's own seed for dropout, not the layer's. Received: "
            f"dropout={dropout}. Use another kernel, or dropout=0.0"
        )
    weights = None
    if return_attention_scores and kernel in ("auto", "plain"):
        out, weights = plain.run(call, weights=True)
    else:
        by_torch = kernel == "torch" or (kernel == "auto" and on_torch and not dropout)
        out = _by_torch(call) if by_torch else choose(call, kernel)(call)
        if return_attention_scores:
            _, weights = plain.run(call, weights=True)
    for listener in _LISTENERS.here():
        listener(call, out)
    return (out, weights) if return_attention_scores else out


def listening(listener: Listener) -> contextlib.AbstractContextManager[None]:
    """Return a context. `listener(call, output)` is called for every attention computation that runs inside."""
    return _LISTENERS.open(listener)


def _by_torch(call: Call) -> torch.Tensor:
    """Compute the call by `headwise.attention` of PyTorch, which has its own kernels, and return the output."""
    bias = call.bias
    if callable(bias):
        rows, cols = (torch.arange(x.shape[2], device=call.q.device) for x in (call.q, call.k))
        bias = bias(call.q, rows, cols, whole=True)
    mask = None if call.mask is None else _torch_mask(call.mask, call.q.shape[2])
    given: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap, "sinks": call.sinks}
    return attention(call.q, call.k, call.v, mask=mask, bias=bias, **given)


def _torch_mask(mask: Mask, q_len: int) -> Mask:
    """Convert a mask of `masking.resolve` for `headwise.attention`: tensors that were passed become torch masks."""
    if isinstance(mask, (And, Or)):
        return type(mask)(tuple(_torch_mask(part, q_len) for part in mask.parts))
    if isinstance(mask, Not):
        return Not(_torch_mask(mask.part, q_len))
    cells = masking.find_tensor(mask)
    if cells is None:
        return mask
    return (
        PaddingKeys(cells[:, 0, 0]) if cells.shape[1] == cells.shape[2] == 1 else Dense(cells.expand(-1, -1, q_len, -1))
    )


def _check(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None) -> None:
    """Raise an error unless the known sizes of the tensors fit together."""
    received = f"Received: q.shape={tuple(q.shape)}, k.shape={tuple(k.shape)}, v.shape={tuple(v.shape)}"
    for name, x, dims in (("q", q, "[B, H, Q, D]"), ("k", k, "[B, G, K, D]"), ("v", v, "[B, G, K, E]")):
        if len(x.shape) != 4:
            raise ShapeError(f"{name}: expected {dims}. {received}")
        if "float" not in keras.backend.standardize_dtype(x.dtype):
            raise DtypeError(f"{name}: expected a float tensor {dims}. Received: {name}.dtype={x.dtype}")
    if len({keras.backend.standardize_dtype(x.dtype) for x in (q, k, v)}) > 1:
        raise DtypeError(
            f"q, k, v: expected one dtype. Received: q.dtype={q.dtype}, k.dtype={k.dtype}, v.dtype={v.dtype}"
        )
    if None in (q.shape[1], k.shape[1], q.shape[3], v.shape[3]):
        raise ShapeError(f"q, k, v: expected static numbers of heads and widths. {received}")
    if k.shape[1] != v.shape[1] or q.shape[1] % k.shape[1]:
        raise ShapeError(f"k, v: expected the same number of heads G, a divisor of the query heads H. {received}")
    if q.shape[3] != k.shape[3]:
        raise ShapeError(f"k: expected the same number of dimensions D as q. {received}")
    for dim in (0, 2):
        if len({x.shape[dim] for x in ((q, k, v) if dim == 0 else (k, v))} - {None}) > 1:
            raise ShapeError(f"q, k, v: expected one {'batch size B' if dim == 0 else 'length K'}. {received}")
    if bias is not None:
        sizes = (1,) * (4 - len(bias.shape)) + tuple(bias.shape)
        target = (*q.shape[:3], k.shape[2])
        if len(sizes) != 4 or any(s not in (1, None, t) and t is not None for s, t in zip(sizes, target, strict=True)):
            shape = tuple(bias.shape)
            raise ShapeError(f"bias: expected to broadcast to [B, H, Q, K] = {target}. Received: bias.shape={shape}")
        if "float" not in keras.backend.standardize_dtype(bias.dtype):
            raise DtypeError(f"bias: expected a float tensor. Received: bias={bias.dtype}. A bool mask goes in mask=")
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise ShapeError(f"sinks: expected [H] = [{q.shape[1]}]. Received: sinks.shape={tuple(sinks.shape)}")
