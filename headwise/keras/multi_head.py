"""Multi-head attention, self and cross, as a Keras layer."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import keras
from keras import ops

from headwise import masks, nn
from headwise.errors import ArgumentError, ShapeError
from headwise.keras import masking
from headwise.keras.call import runs_now
from headwise.keras.functional import ALL_KERNELS, attend
from headwise.keras.layer import Layer, Parts, Tensor, both, check_input, compute_positions
from headwise.keras.norm import make_norm
from headwise.keras.positions.scheme import Positions
from headwise.keras.saving import PACKAGE, unwrapped
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.head_sizes import HeadSizes


@keras.saving.register_keras_serializable(PACKAGE)
class MultiHeadAttention(HeadSizes, Layer, twin=nn.MultiHeadAttention):
    """Several attention heads over the same sequence. Vaswani et al. 2017, section 3.2.2.

    The Keras twin of `headwise.nn.MultiHeadAttention`, with the call arguments of `keras.layers.MultiHeadAttention`.

    >>> layer = MultiHeadAttention(512, 8, num_kv_heads=2, positions=positions.Rope(64))
    >>> y = layer(x, attention_mask=masks.causal())                  # x, y: [B, S, M]
    >>> y, weights = layer(x, return_attention_scores=True)          # weights: [B, H, S, S]
    >>> y = layer(x, memory)                                         # cross-attention

    Args: as of `headwise.nn.MultiHeadAttention`, and
        head_dim: D, the dimensions of a head's queries and keys; None = M / H. H · D need not be M. (Keras calls it
            key_dim.)
        positions: the position scheme of the heads: one of `headwise.keras.positions`.
        kernel: "auto", or the name of a kernel, as for `scaled_dot_product_attention`.
        seed: the seed of dropout.

    Its sublayers are `qkv` (or `q`, `k`, `v` if widths differ), `out` and `gate`; it has the weight `sinks`.

    Raises:
        ArgumentError: dimensions that are not divisible, or an unknown option.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        sizes = (o.num_kv_heads, o.head_dim, o.value_head_dim, o.kdim, o.vdim, o.projection)
        self._take_sizes(o.dim, o.num_heads, *sizes)
        options.check_known("kernel", o.kernel, ALL_KERNELS)
        self._take_scoring(o.dropout, o.scale, o.softcap, o.positions, Positions)
        self.kernel = o.kernel
        self.seed_generator = keras.random.SeedGenerator(seed) if o.dropout else None

        if self.is_fused:
            fused, drawn = o.bias and o.projection == "per_head", _glorot(self.projection_sizes)
            self.qkv = self.dense(sum(self.projection_sizes), name="qkv", bias=fused, kernel_initializer=drawn)
        else:
            for name, size in zip("qkv", self.projection_sizes, strict=True):
                setattr(self, name, self.dense(size, name=name, bias=o.bias))
        self.out = self.dense(o.dim, name="out", bias=o.bias if o.output_bias is None else o.output_bias)
        self.gate = self.dense(o.num_heads * self.value_head_dim, name="gate", bias=False) if o.gate else None
        norm = {"eps": o.norm_eps, "dtype": self.dtype_policy}
        self.q_norm = make_norm(o.qk_norm, name="q_norm", **norm) if o.qk_norm else None
        self.k_norm = make_norm(o.qk_norm, name="k_norm", **norm) if o.qk_norm else None
        self.has_sinks = o.sinks
        self.sinks: Any = None

    def build(self, input_shape: object = None) -> None:
        """Create the weights. Their shapes depend only on the options, so `layer.build()` works."""
        if self.has_sinks:
            self.sinks = self.add_weight(shape=(self.num_heads,), initializer="zeros", name="sinks")
        super().build()

    def _parts(self) -> Parts:
        parts: list[tuple[Any, int | None]] = [(self.out, self.num_heads * self.value_head_dim), (self.gate, self.dim)]
        parts += [(self.q_norm, self.head_dim), (self.k_norm, self.head_dim), (self.positions, None)]
        if self.is_fused:
            return [(self.qkv, self.head_dim if self.projection == "shared" else self.dim), *parts]
        return [(self.q, self.dim), (self.k, self.kdim), (self.v, self.vdim), *parts]

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Compute the output of attention for each query.

        Args:
            query: [B, Q, M].
            value: [B, K, vdim]; None = `query` (self-attention). It comes before `key`, as in Keras.
            key: [B, K, kdim], the keys; None = `value`.
            query_mask, value_mask, key_mask: [B, Q] and [B, K], True = a real token. Keras passes the masks of
                `Embedding(mask_zero=True)` and `Masking` itself. No query attends to padding. Queries that are
                padding are computed like the others.
            attention_mask: which query may attend to which key, True or 1 = may: a mask of `headwise.masks`, or a
                tensor [Q, K], [B, Q, K] or [B, H, Q, K], of which B, H and Q may be 1.
            return_attention_scores: also return the attention weights.
            training: whether dropout is active.
            use_causal_mask: also forbid every query to attend to later keys; the first query is at the position of the
                first key, as in Keras.
            position_ids: [Q] or [B, Q], the positions of the queries, if not 0, 1, 2 … (padding does not count).

        Returns:
            [B, Q, M]; with `return_attention_scores=True` (output, weights [B, H, Q, K]).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        """
        self._check_inputs(query, value, key, position_ids)
        reads_itself = (value is None or value is query) and (key is None or key is query)
        value = query if value is None else value
        key = value if key is None else key
        padding = both(query_mask, value_mask, key_mask) if reads_itself else both(value_mask, key_mask)
        sizes = (query.shape[0], self.num_heads, query.shape[1], key.shape[1])
        given = [unwrapped(attention_mask), masks.causal(offset=0) if use_causal_mask else None]
        mask = masking.resolve(given, padding, sizes, same=key is query)

        q, k, v = self._project(query, key, value)
        q, k = (x if norm is None else norm(x) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        bias, scheme = None, self.positions
        query_ids = key_ids = None
        if scheme is not None:
            key_ids = compute_positions(key, padding, position_ids if reads_itself else None)
            query_ids = key_ids if reads_itself else compute_positions(query, None, position_ids)
            q = scheme.rotate(q, query_ids, ops.shape(query)[1])
            k = scheme.rotate(k, key_ids, ops.shape(key)[1])
            if scheme.has_bias:
                known = mask if not self.has_sinks and position_ids is None and reads_itself else None
                bias = _Bias(scheme, query_ids, key_ids, self.scale, known)
        needs_weights = return_attention_scores or (scheme is not None and scheme.uses_values)
        dropout = self.dropout if training else 0.0
        found = attend(
            *(q, k, v),
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=None if self.sinks is None else ops.convert_to_tensor(self.sinks),
            dropout=dropout,
            seed=self.seed_generator,
            kernel=self.kernel,
            return_attention_scores=needs_weights,
        )
        y, weights = found if needs_weights else (found, None)
        if scheme is not None and scheme.uses_values:
            y = y + ops.cast(scheme.values(weights, query_ids, key_ids), y.dtype)
        y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, self.num_heads * self.value_head_dim))
        if self.gate is not None:
            y = y * ops.sigmoid(self.gate(ops.reshape(query, (-1, self.dim))))
        out = ops.reshape(self.out(y), (-1, ops.shape(query)[1], self.dim))
        return (out, weights) if return_attention_scores else out

    def compute_output_spec(
        self, query: Any, value: Any = None, key: Any = None, return_attention_scores: bool = False, **kwargs: Any
    ) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        self._check_inputs(query, value, key, kwargs.get("position_ids"))
        return self._attended(query, (query if value is None else value).shape[1], return_attention_scores)

    def _check_inputs(self, query: Any, value: Any, key: Any, position_ids: Any) -> None:
        check_input("query", query, self.dim)
        if value is None and key is not None:
            raise ArgumentError(
                "key: expected a value too. Received: value=None. Pass both, or neither for self-attention"
            )
        value = query if value is None else value
        key = value if key is None else key
        check_input("value", value, self.vdim, batch=query.shape[0])
        check_input("key", key, self.kdim, batch=query.shape[0])
        if None not in (value.shape[1], key.shape[1]) and value.shape[1] != key.shape[1]:
            raise ShapeError(
                f"value: expected the same number of positions as key. Received: key.shape={tuple(key.shape)}, "
                f"value.shape={tuple(value.shape)}"
            )
        if position_ids is not None and self.positions is None:
            raise ArgumentError("position_ids: expected a layer with positions=. Received: a layer without positions")

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Project the inputs to q [B, H, Q, D], k [B, G, K, D] and v [B, G, K, E]."""
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        widths = (self.head_dim, self.head_dim, self.value_head_dim)
        inputs = [query, key, value]
        if self.projection == "shared":
            inputs = [ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, self.head_dim)) for x in inputs]
        if not self.is_fused:
            found = [getattr(self, name)(x) for name, x in zip("qkv", inputs, strict=True)]
        elif not (query is key and key is value):
            found = self._columns(inputs)
        elif self.projection == "shared" or keras.backend.backend() == "torch":  # on torch a split copies nothing
            found = _split(self.qkv(inputs[0]), self.projection_sizes)
        elif runs_now(query) and len(set(self.projection_sizes)) == 1:
            # Few operations: an eager operation costs as much as a small product.
            y = self.qkv(ops.reshape(query, (-1, self.dim)))
            y = ops.reshape(y, (-1, ops.shape(query)[1], 3, self.num_heads, self.head_dim))
            return list(ops.unstack(ops.transpose(y, (2, 0, 3, 1, 4)), 3))
        else:  # compiled, three products cost less than one product and a split
            found = self._columns(inputs)
        return [
            ops.transpose(ops.reshape(x, (-1, ops.shape(x)[1], n, width)), (0, 2, 1, 3))
            for x, n, width in zip(found, heads, widths, strict=True)
        ]

    def _columns(self, inputs: list[Tensor]) -> list[Tensor]:
        """Project query, key and value, each by its own columns of the common matrix `qkv`."""
        if self.qkv.quantization_mode is not None:  # the stored matrix is quantised
            return [_split(self.qkv(x), self.projection_sizes)[i] for i, x in enumerate(inputs)]
        kernels = _split(ops.cast(self.qkv.kernel, self.compute_dtype), self.projection_sizes)
        found = [ops.matmul(x, kernel) for x, kernel in zip(inputs, kernels, strict=True)]
        if not self.qkv.use_bias:
            return found
        biases = _split(ops.cast(self.qkv.bias, self.compute_dtype), self.projection_sizes)
        return [x + bias for x, bias in zip(found, biases, strict=True)]


class _Bias:
    """The bias of a position scheme as a function: it computes the bias for some rows (queries) and columns (keys)."""

    def __init__(self, scheme: Positions, query_ids: Tensor, key_ids: Tensor, scale: float | None, mask: Any) -> None:
        self.scheme, self.query_ids, self.key_ids, self.scale, self.mask = scheme, query_ids, key_ids, scale, mask
        self.variables = scheme.variables  # `chunked` passes them to its recomputation

    def __call__(self, q: Tensor, rows: Tensor, cols: Tensor, *, whole: bool = False) -> Tensor:
        given: dict[str, Any] = {"mask": self.mask if whole else None, "scale": self.scale}
        if whole:
            return self.scheme.bias(q, self.query_ids, self.key_ids, **given)
        query_ids, key_ids = (
            ops.take(ids, ops.clip(at, 0, ops.shape(ids)[-1] - 1), axis=-1)
            for ids, at in ((self.query_ids, rows), (self.key_ids, cols))
        )
        return self.scheme.bias(q, query_ids, key_ids, **given)


def _split(x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """Split the last axis of x into pieces of these sizes."""
    if len(set(sizes)) == 1:
        return list(ops.split(x, len(sizes), axis=-1))
    ends = list(accumulate(sizes))  # ops.split at indices loses TensorFlow's static sizes
    return [x[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _glorot(sizes: tuple[int, ...]) -> Any:
    """Make an initializer for a matrix of several projections side by side: Glorot's uniform distribution for each."""

    def draw(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
        glorot = keras.initializers.GlorotUniform
        return ops.concatenate([glorot()((shape[0], size), dtype=dtype) for size in sizes], axis=-1)

    return draw
