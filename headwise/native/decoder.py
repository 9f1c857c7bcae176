"""Runs one step of a decoder's layers, with packed weights (`linear.pack`), by the native kernels; src/decoder.hpp.

Only this module knows the layout of hw_decoder. Dimension letters: N texts, w hypotheses of each, T = N · w tokens,
M model, L layers, S slots (one per token of a text), K source tokens, V vocabulary.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.native.attend import called
from headwise.native.linear import ACTIVATIONS, DTYPES, Layer, Norm, Turns, Weights

# Every field has 8 bytes.
_DECODER = struct.Struct("=12q2dQ2Q2q2Q2Q2qQ2Qq2Qd5Q3Q")


class Read(NamedTuple):
    """The cached keys and values of N texts, with w hypotheses each, after earlier steps; a step writes to them, too.

    Args:
        keys, values: [L, room, S, w, M] (layers, room ≥ N, slots: one per token of a text, w, model dimension), float32
            and contiguous; a step writes the slot of its token.
        past: [N, w, S], int64 and contiguous: for each hypothesis, which hypothesis of the text wrote each slot of its
            past.
        places: [N], int64: the slot of the current token.
    """

    keys: Tensor
    values: Tensor
    past: Tensor
    places: Tensor


class Source(NamedTuple):
    """Source texts for cross-attention: keys and values [L, room, K, M], float32 and contiguous; lengths, int64 [N]."""

    keys: Tensor
    values: Tensor
    lengths: Tensor


class Decoder:
    """A decoder's layers, with packed weights and with norms before their branches, and the output embeddings.

    Args:
        layers: a list of at least one layer.
        num_heads: H, the same for queries, keys and values.
        activation: one of `ACTIVATIONS`.
        scale, cross_scale: the factors on q kᵀ in self-attention and in cross-attention.
        norm: the norm after the layers.
        vocabulary: the packed output embeddings, which turn hidden states into logits.
        rms: whether the norms are RMSNorm.
        frequencies: as for `linear.Turns`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        num_heads: int,
        activation: str,
        scale: float,
        cross_scale: float,
        norm: Norm,
        vocabulary: Weights,
        *,
        rms: bool,
        frequencies: Tensor | None,
    ) -> None:
        self.layers, self.norm, self.vocabulary = tuple(layers), norm, vocabulary  # these own the memory
        first = layers[0]
        self.dim, self.dtype = first.qkv.inputs, DTYPES[first.qkv.dtype]
        self.sizes = (self.dim, num_heads, first.up.outputs, ACTIVATIONS[activation], len(layers))
        self.rms, self.scales = int(rms), (scale, cross_scale)
        packed = b"".join(layer.packed() for layer in layers)
        self.array = ctypes.create_string_buffer(packed, len(packed))
        self._turns = Turns(frequencies)

    def logits(self, x_TM: Tensor, read: Read, source: Source | None = None) -> Tensor:
        """Process one more token of each hypothesis; return the logits [T, V] of the tokens that follow.

        Args:
            x_TM: the input of the first layer, float32.
            read: the state of earlier steps.
            source: the source, for layers with cross-attention.
        """
        out = torch.empty(len(x_TM), self.vocabulary.outputs)
        self._step(x_TM, read, source, logits=out)
        return out

    def hidden(self, x_TM: Tensor, read: Read, source: Source | None = None) -> Tensor:
        """Process one more token of each hypothesis; return the hidden states [T, M]. Arguments as for `logits`."""
        out = torch.empty(len(x_TM), self.dim)
        self._step(x_TM, read, source, hidden=out)
        return out

    def _step(self, x_TM: Tensor, read: Read, source: Source | None, **out: Tensor) -> None:
        x_TM = x_TM.contiguous()
        angles = self._turns.angles(read.keys.shape[2])
        cos, sin, _, turned = angles.fields()
        given = _DECODER.pack(
            *(_DECODER.size, self.dtype, torch.get_num_threads(), len(x_TM), *self.sizes, read.keys.shape[3]),
            *(self.vocabulary.outputs, self.rms, *self.scales, ctypes.addressof(self.array)),
            *(read.keys.data_ptr(), read.values.data_ptr(), *read.keys.shape[1:3]),
            *(read.places.data_ptr(), read.past.data_ptr()),
            *((0, 0, 0, 0, 0) if source is None else _source(source)),
            *(cos, sin, turned, *self.norm.fields(), *self.vocabulary.fields(), x_TM.data_ptr()),
            *(out[name].data_ptr() if name in out else 0 for name in ("hidden", "logits")),
        )
        called("hw_decoder_step", given)


def _source(source: Source) -> tuple[int, ...]:
    tensors = (source.keys, source.values)
    return (*(x.data_ptr() for x in tensors), *source.keys.shape[1:3], source.lengths.data_ptr())
