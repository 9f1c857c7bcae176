"""Native linear layers with packed weights (in the order in which the kernels read them), and encoders; src/linear.hpp.

Only this module knows the layout of hw_linear, hw_encoder and hw_layer. Dimension letters: T tokens, M model.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.errors import ShapeError
from headwise.native.attend import called, the_library

PANEL = 64  # sizes are rounded up to multiples of it
DTYPES = {"float32": 0, "bfloat16": 1, "int8": 3}  # as in headwise.h
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}

Dtype = Literal["float32", "bfloat16", "int8"]

# Every field has 8 bytes.
_LINEAR = struct.Struct("=7qQ5QQ2QdQ")
_LAYER = struct.Struct("=" + 7 * "5Q" + 3 * "2Qd")
_NORM = struct.Struct("=2Qd")
_ENCODER = struct.Struct("=10qd2Q3Q2q8Qd3Q")
_NO_WEIGHTS = (0, 0, 0, 0, 0)
_NO_NORM = (0, 0, 0.0)
_NO_EMBEDDINGS = (0, 0, 0, 0, 0, 0, *_NO_NORM)


@dataclass(frozen=True)
class Weights:
    """A linear layer's weights in the order in which the kernels read them: the C struct hw_weights of headwise.h."""

    outputs: int
    inputs: int
    dtype: Dtype
    data: Tensor  # [N / s, K / n, s], elements of 4 bytes: a float, n = 2 bf16 or n = 4 int8
    bias: Tensor
    scale: Tensor | None = None
    offset: Tensor | None = None

    def fields(self) -> tuple[int, ...]:
        """Return the fields of the C struct hw_weights: pointers to the tensors, 0 = none."""
        vectors = (0 if x is None else x.data_ptr() for x in (self.bias, self.scale, self.offset))
        return (self.data.data_ptr(), self.data.shape[2], *vectors)


@dataclass(frozen=True)
class Norm:
    """The weight and the bias of a LayerNorm, padded with zeros: the C struct hw_norm."""

    weight: Tensor
    bias: Tensor
    eps: float

    def fields(self) -> tuple[Any, ...]:
        """Return the fields of the C struct hw_norm: pointers to weight and bias, and eps."""
        return (self.weight.data_ptr(), self.bias.data_ptr(), self.eps)


@dataclass(frozen=True)
class Embeddings:
    """Tables [.., M] of words, types and positions, float32 and contiguous, and the LayerNorm of the three's sum."""

    word: Tensor
    type: Tensor
    position: Tensor
    norm: Norm

    def fields(self, ids_T: Tensor, types_T: Tensor, places_T: Tensor) -> tuple[Any, ...]:
        """Return the fields of the C struct hw_embeddings, for tokens with these ids, types and positions."""
        tensors = (ids_T, types_T, places_T, self.word, self.type, self.position)
        return (*(x.data_ptr() for x in tensors), *self.norm.fields())


@dataclass(frozen=True)
class Layer:
    """The weights and norms of a layer of an encoder or decoder.

    None = the layer does not have these weights; only layers of a decoder have some of them.
    """

    qkv: Weights
    out: Weights
    up: Weights
    down: Weights
    attention_norm: Norm
    mlp_norm: Norm
    cross_q: Weights | None = None
    cross_out: Weights | None = None
    gate: Weights | None = None
    cross_norm: Norm | None = None

    def packed(self) -> bytes:
        """Return the bytes of the C struct hw_layer."""
        weights = (self.qkv, self.out, self.up, self.down, self.cross_q, self.cross_out, self.gate)
        norms = (self.attention_norm, self.mlp_norm, self.cross_norm)
        fields = [field for x in weights for field in (_NO_WEIGHTS if x is None else x.fields())]
        return _LAYER.pack(*fields, *(field for x in norms for field in (_NO_NORM if x is None else x.fields())))


@torch.no_grad()
def pack(weight: Tensor, bias: Tensor | None = None, dtype: Dtype = "float32", *, strip: int | None = None) -> Weights:
    """Pack the weights of a linear layer: put them in the order in which the kernels read them.

    Args:
        weight: [N, K], N outputs and K inputs, of a float dtype.
        bias: [N]; None = 0.
        dtype: the dtype of the products; int8 as by `quantise`.
        strip: how many outputs are next to one another; None = those of the instruction set in use.
    """
    outputs, inputs = weight.shape
    rows, scale, offset = _padded(_padded(weight.float()).T).T, None, None
    if dtype == "int8":
        rows, scale = quantise(rows)
        offset = 128.0 * rows.sum(1, dtype=torch.int32).float()
    elif dtype == "bfloat16":
        rows = rows.bfloat16()
    strip = the_library().hw_strip() if strip is None else strip
    units = rows.contiguous().view(torch.int32).unflatten(0, (-1, strip))  # [N / s, s, K / n]
    bias = weight.new_zeros(outputs) if bias is None else bias
    return Weights(outputs, inputs, dtype, units.transpose(1, 2).contiguous(), _padded(bias.float()), scale, offset)


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round floats [N, K] to int8, with a scale for each row: the largest absolute number of a row becomes 127.

    Returns (int8 [N, K], scales [N]); a row is about its integers times its scale.
    """
    largest = rows.abs().amax(1)
    scale = largest / 127
    return (rows / torch.where(largest > 0, scale, 1.0)[:, None]).round().to(torch.int8), scale


@torch.no_grad()
def norm_of(weight: Tensor | None, bias: Tensor | None, size: int, eps: float) -> Norm:
    """Make a LayerNorm over `size` numbers; None means a weight of 1, a bias of 0."""
    weight = torch.ones(size) if weight is None else weight
    bias = torch.zeros(size) if bias is None else bias
    return Norm(_padded(weight.float()), _padded(bias.float()), eps)


def _padded(x: Tensor) -> Tensor:
    """Copy x, and add zeros so that the last dimension is a multiple of 64."""
    return pad(x, (0, -x.shape[-1] % PANEL)).contiguous().clone()


def linear(
    x: Tensor,
    weights: Weights,
    activation: str | None = None,
    *,
    residual: Tensor | None = None,
    norm: Norm | None = None,
) -> Tensor:
    """Compute act(x Wᵀ + b), or LayerNorm(residual + x Wᵀ + b): float32 [T, N], without gradients.

    Args:
        x: [T, K]. With int8 weights each row becomes int8 with its own scale.
        weights: the result of `pack`.
        activation: one of `ACTIVATIONS`.
        residual, norm: [T, N] and a LayerNorm over N; give both or neither.

    Raises:
        ShapeError: sizes that do not fit the weights.
    """
    if x.ndim != 2 or x.shape[1] != weights.inputs:
        raise ShapeError(f"x: expected [T, {weights.inputs}]. Received: x={list(x.shape)}")
    out = torch.empty(len(x), weights.outputs)
    if residual is not None and residual.shape != out.shape:
        raise ShapeError(f"residual: expected {list(out.shape)}. Received: residual={list(residual.shape)}")
    x, residual = x.float().contiguous(), None if residual is None else residual.float().contiguous()
    sizes = (len(x), weights.inputs, weights.outputs)
    given = _LINEAR.pack(
        *(_LINEAR.size, DTYPES[weights.dtype], torch.get_num_threads(), *sizes, ACTIVATIONS[activation]),
        *(x.data_ptr(), *weights.fields(), 0 if residual is None else residual.data_ptr()),
        *(_NO_NORM if norm is None else norm.fields()),
        out.data_ptr(),
    )
    called("hw_linear_forward", given)
    return out


class Angles(NamedTuple):
    """cos and sin [positions, n] of rotary positions. Never change these tensors: a running kernel may read them."""

    cos: Tensor
    sin: Tensor

    def fields(self) -> tuple[int, int, int, int]:
        """Return (cos pointer, sin pointer, number of positions, n), for a C struct."""
        return (self.cos.data_ptr(), self.sin.data_ptr(), *self.cos.shape)


class Turns:
    """The angles of rotary positions: dimensions i and i + n of a head at position p are turned by p · frequencies[i].

    Args:
        frequencies: [n], radians per position; None = nothing is turned.
    """

    def __init__(self, frequencies: Tensor | None) -> None:
        self._frequencies = None if frequencies is None else frequencies.detach().clone()
        self._angles = Angles(torch.empty(0, 0), torch.empty(0, 0))

    def angles(self, positions: int) -> Angles:
        """Return the angles of at least `positions` positions. Keep them alive while a kernel may still read them.

        This object replaces its own angles when a longer text comes, maybe in another thread.
        """
        angles = self._angles
        if self._frequencies is not None and len(angles.cos) < positions:
            phases = (torch.arange(2 * positions)[:, None].float() * self._frequencies).double()
            # The last bit of a float32 cosine depends on its place in memory, and so on the number of positions.
            angles = self._angles = Angles(phases.cos().float(), phases.sin().float())
        return angles


class Encoder:
    """The layers of an encoder with packed weights.

    Args:
        layers: a list of at least one layer.
        num_heads: H, the same for queries, keys and values.
        activation: one of `ACTIVATIONS`.
        scale: the factor on q kᵀ.
        embeddings: the tables for `embed`.
        last: the final norm, if layers have their norms before the branches; None = norms are after the branches, as in
            BERT.
        frequencies: as for `Turns`, for float32 weights; None = without rotary positions.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        num_heads: int,
        activation: str | None,
        scale: float,
        embeddings: Embeddings | None = None,
        *,
        last: Norm | None = None,
        frequencies: Tensor | None = None,
    ) -> None:
        self.layers, self.embeddings = tuple(layers), embeddings  # these own the memory that is pointed to
        first = layers[0]
        self.dim = first.qkv.inputs
        self.sizes = (self.dim, num_heads, first.up.outputs, ACTIVATIONS[activation], len(layers))
        self.dtype, self.scale = DTYPES[first.qkv.dtype], scale
        packed = b"".join(layer.packed() for layer in layers)
        self.array = ctypes.create_string_buffer(packed, len(packed))
        self._turns, self._norm = Turns(frequencies), last
        self._last = None if last is None else ctypes.create_string_buffer(_NORM.pack(*last.fields()), _NORM.size)

    def __call__(self, x_TM: Tensor, first: Tensor, qkv: Tensor | None = None, gates: Tensor | None = None) -> Tensor:
        """Compute the hidden states [T, M] of concatenated texts; they are written over `x_TM`.

        Args:
            x_TM: [T, M], float32 and contiguous: the input of the first layer.
            first: [texts + 1], int64: where each text begins; the last number is T.
            qkv: the result of `room_for_qkv`, filled with the queries, keys and values of each layer.
            gates: [layers, H], float32 and contiguous: factors on the outputs of heads, before the output projection; 0
                is 0 whatever the output; None = 1.
        """
        return self._run(x_TM, first, _NO_EMBEDDINGS, qkv, gates)

    def embed(
        self,
        ids_T: Tensor,
        types_T: Tensor,
        places_T: Tensor,
        first: Tensor,
        qkv: Tensor | None = None,
        gates: Tensor | None = None,
    ) -> Tensor:
        """Compute the hidden states [T, M] from int64 ids of words, types and positions; all must be in the tables."""
        assert self.embeddings is not None
        fields = self.embeddings.fields(ids_T, types_T, places_T)
        return self._run(torch.empty(len(ids_T), self.dim), first, fields, qkv, gates)

    def room_for_qkv(self, tokens: int) -> Tensor:
        """Make an empty tensor [layers, T, 3, H, D] in the dtype in which attention reads queries, keys and values."""
        dtype = torch.float32 if self.dtype == DTYPES["float32"] else torch.bfloat16
        heads = self.sizes[1]
        return torch.empty(len(self.layers), tokens, 3, heads, self.dim // heads, dtype=dtype)

    def _run(
        self, x_TM: Tensor, first: Tensor, embeddings: tuple[Any, ...], qkv: Tensor | None, gates: Tensor | None
    ) -> Tensor:
        longest = int((first[1:] - first[:-1]).max()) if len(first) > 1 else 0
        angles = self._turns.angles(longest)
        given = _ENCODER.pack(
            *(_ENCODER.size, self.dtype, torch.get_num_threads(), len(x_TM), *self.sizes, len(first) - 1, self.scale),
            *(
                ctypes.addressof(self.array),
                first.data_ptr(),
                0 if self._last is None else ctypes.addressof(self._last),
            ),
            *(*angles.fields(), *embeddings, 0 if gates is None else gates.data_ptr(), x_TM.data_ptr()),
            0 if qkv is None else qkv.data_ptr(),
        )
        called("hw_encoder_forward", given)
        return x_TM
