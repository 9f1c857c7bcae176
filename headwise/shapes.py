"""The dimension legend, and the checks that every call passes through.

One letter per dimension, in every file of headwise:

    B  batch                        Q  query length
    H  query heads                  K  key length
    G  key/value heads (H = n · G)  D  head dimension of queries and keys
    L  layer                        E  head dimension of values
    R  low-rank (latent) dimension  M  model dimension

Tensors have their dimensions in their name where it helps: `q_BHQD`. Layout is [B, H, Q, D], as in
`torch.nn.functional.scaled_dot_product_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import DtypeError, ShapeError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_qkv(q: Tensor, k: Tensor, v: Tensor, *, quantized: bool = False) -> None:
    """Raise ShapeError or DtypeError unless q [B,H,Q,D], k [B,G,K,D] and v [B,G,K,E] fit one another.

    `quantized`: k and v are int8, as `headwise.Int8` holds them.
    """
    for name, x, dims in (("q", q, "[B, H, Q, D]"), ("k", k, "[B, G, K, D]"), ("v", v, "[B, G, K, E]")):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{name} must be a tensor {dims}. Received: {name}={type(x).__name__}")
        if x.ndim != 4:
            raise ShapeError(f"{name} must be {dims}. Received: {name}={list(x.shape)}")
        if x.dtype not in FLOATS and not (quantized and x is not q):
            raise DtypeError(f"{name} must be float16, bfloat16, float32 or float64. Received: {name}={x.dtype}")
    (batch, heads, _, head_dim), k_shape, v_shape = q.shape, k.shape, v.shape
    if k_shape[0] != batch or v_shape[0] != batch:
        raise ShapeError(f"q, k and v must have the same batch size B. {_received(q, k, v)}")
    if k_shape[1:3] != v_shape[1:3]:
        raise ShapeError(f"k and v must have the same heads G and length K. {_received(q, k, v)}")
    if k_shape[3] != head_dim:
        raise ShapeError(f"q and k must have the same head dimension D. {_received(q, k, v)}")
    if k_shape[1] == 0 or heads % k_shape[1]:
        raise ShapeError(f"the query heads H must be a multiple of the key/value heads G. {_received(q, k, v)}")
    if 0 in (batch, heads, head_dim, v_shape[3]):
        raise ShapeError(f"B, H, D and E must be at least 1. {_received(q, k, v)}")
    if not quantized and not q.dtype == k.dtype == v.dtype:
        raise DtypeError(f"q, k and v must have one dtype. Received: q={q.dtype}, k={k.dtype}, v={v.dtype}")
    if not q.device == k.device == v.device:
        raise DtypeError(f"q, k and v must be on one device. Received: q={q.device}, k={k.device}, v={v.device}")


def _received(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"Received: q={list(q.shape)}, k={list(k.shape)}, v={list(v.shape)}"


def check_device(name: str, device: torch.device | None, q: Tensor) -> None:
    """Raise DtypeError unless `device` is the device of q; None (no device) fits every q."""
    if device is not None and device != q.device:
        raise DtypeError(
            f'{name} must be on the device of q ({q.device}). Received: {name} on {device}. Use .to("{q.device}")'
        )


def check_fits(name: str, dimension: str, size: int | None, expected: int) -> None:
    """Raise ShapeError unless `size`, a mask's number of examples or heads (None = any), is the call's `expected`."""
    if size is not None and size != expected:
        raise ShapeError(
            f"{name} was made for {dimension} = {size}, the call has {dimension} = {expected}. Received: "
            f"{dimension}={size}. Make one for {dimension} = {expected}, or one for all of them"
        )
