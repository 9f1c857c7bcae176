"""Lays out a model's weights as bytes for a page that computes with them: headwise/native/wasm/page.cpp reads these.

Dimension letters: V words, M model, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.models.bert import Bert, Embeddings
from headwise.models.packed_encoder import pack_for
from headwise.models.text_classifier import TextClassifier
from headwise.native.linear import Encoder, Norm, quantise

STRIP = 8  # outputs next to one another in the weights: those of the portable instruction set, which WebAssembly has
ALIGNMENT = 16  # each tensor begins at a multiple of so many bytes


@torch.no_grad()
def carry(model: Bert | TextClassifier, dtype: Literal["int8", "float32"] = "int8") -> tuple[dict[str, Any], bytes]:
    """Lay out the weights of an encoder, and of a classifier's head, for `static/model/encoder.js`.

    Args:
        model: a `Bert` whose layers the native kernels support, or a `TextClassifier` with such an encoder.
        dtype: "int8" = the weights that `Bert.encode(dtype="int8")` uses, and embeddings of words with a scale for each
            word; "float32" = the weights as they are.

    Returns:
        A description, which fits into JSON (sizes, the dtype, and the head of a classifier), and the bytes: tensors
        behind one another, in the order of `_tensors`.

    Raises:
        ArgumentError: another model.
    """
    bert = model.encoder if isinstance(model, TextClassifier) else model
    packed = pack_for(bert, Embeddings, dtype, STRIP) if type(bert) is Bert else None
    if packed is None or packed.embeddings is None:
        raise ArgumentError(
            "a page can carry a model with BERT's embeddings and layers, such as minilm, or a classifier of such a "
            f"model. Received: {type(model).__name__}"
            + (f" with the encoder {type(bert).__name__}" if bert is not model else "")
            + (f" of the family {bert.config.family}" if isinstance(bert, Bert) else "")
        )
    tables, (dim, heads, hidden, activation, layers) = packed.embeddings, packed.sizes
    data = b"".join(_bytes(tensor) for tensor in _tensors(packed, dtype))
    description: dict[str, Any] = {
        **{"dtype": dtype, "strip": STRIP, "dim": dim, "heads": heads, "hidden": hidden, "activation": activation},
        **{"layers": layers, "scale": packed.scale, "bytes": len(data)},
        **{"words": len(tables.word), "positions": len(tables.position), "types": len(tables.type)},
    }
    if isinstance(model, TextClassifier):
        head = {"weight": model.head.weight.tolist(), "bias": model.head.bias.tolist()}  # [C, M], [C]
        description["head"] = {"pooling": model.pooling, **head}
    return description, data


def _tensors(encoder: Encoder, dtype: str) -> Iterator[Tensor]:
    """Yield the tensors in the order in which page.cpp reads them."""
    tables = encoder.embeddings
    assert tables is not None
    yield from quantise(tables.word) if dtype == "int8" else (tables.word,)  # [V, M], [V]
    yield from (tables.position, tables.type, *_norm(tables.norm))
    for layer in encoder.layers:
        for linear in (layer.qkv, layer.out, layer.up, layer.down):
            yield from (x for x in (linear.data, linear.bias, linear.scale, linear.offset) if x is not None)
        yield from (*_norm(layer.attention_norm), *_norm(layer.mlp_norm))


def _norm(norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    return norm.weight, norm.bias, torch.tensor([norm.eps], dtype=torch.float64)


def _bytes(tensor: Tensor) -> bytes:
    data = tensor.contiguous().numpy().tobytes()
    return data + bytes(-len(data) % ALIGNMENT)
