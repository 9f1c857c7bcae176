"""Multi-head latent attention (MLA, DeepSeek) as a Keras layer: keys and values from one short latent per token."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from headwise import masks, nn
from headwise.errors import ArgumentError
from headwise.keras import masking
from headwise.keras.functional import ALL_KERNELS, attend
from headwise.keras.layer import Layer, Parts, Tensor, both, check_input, compute_positions
from headwise.keras.norm import make_norm
from headwise.keras.positions.rope import Rope
from headwise.keras.saving import PACKAGE, unwrapped
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.multi_head_latent import PATHS, LatentSizes, Path, choose_rope, default_scale
from headwise.options import check_scale


@keras.saving.register_keras_serializable(PACKAGE)
class MultiHeadLatentAttention(LatentSizes, Layer, twin=nn.MultiHeadLatentAttention):
    """Self-attention with keys and values made from latents. DeepSeek-V2 (2024), equations 9-19; V3, section 2.1.1.

        c = norm(W_DKV x),   k_h = [W_UK_h c; rope(W_KR x)],   v_h = W_UV_h c
        c' = norm(W_DQ x),   q_h = [W_UQ_h c'; rope(W_QR_h c')]
        out = W_O Concat(softmax(scale · q_h k_hᵀ) v_h)

    The Keras twin of `headwise.nn.MultiHeadLatentAttention`, without a cache. There are two ways ("paths") to compute
    it, with the same output and weights; both can be trained:

    - expand: k_h and v_h of all S keys are computed. Multiplications, for each example and head:
      S · R · (nope_dim + E)  +  S · S · (nope_dim + rope_dim + E).
    - absorb: q_nope · (W_UK c) = (W_UKᵀ q_nope) · c, and Σ a W_UV c = W_UV Σ a c: the heads attend to the latents
      themselves, as one key head: S · R · (nope_dim + E)  +  S · S · (2R + rope_dim).

    "auto" takes the path with fewer multiplications: expand if nope_dim + E <= 2R.

    >>> layer = MultiHeadLatentAttention(
    ...     2048, 16, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_head_dim=128
    ... )
    >>> y = layer(x, use_causal_mask=True)                           # x, y: [B, S, M]

    Args: as of `headwise.nn.MultiHeadLatentAttention`, and
        kernel: "auto", or the name of a kernel, as for `scaled_dot_product_attention`.
        seed: the seed of dropout.

    Its sublayers are `q_down`, `q_norm`, `q_up` (or `q`), `kv_down`, `kv_norm`, `kv_up` and `out`.

    Raises:
        ArgumentError: a size that is not positive, an odd rope_dim, an unknown option, positions that do not fit.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        self._take_sizes(o.dim, o.num_heads, o.q_rank, o.kv_rank, o.nope_dim, o.rope_dim, o.value_head_dim)
        self.dropout = options.probability("dropout", o.dropout)
        options.check_known("path", o.path, PATHS)
        options.check_known("kernel", o.kernel, ALL_KERNELS)
        check_scale(o.scale)
        self.default_path, self.kernel = o.path, o.kernel  # in Keras `path` is the layer's location in a model
        self.seed_generator = keras.random.SeedGenerator(seed) if o.dropout else None
        self.positions = choose_rope(o.positions, Rope, o.num_heads, o.rope_dim, dtype=self.dtype_policy)
        self.scale = default_scale(self.head_dim, self.positions.scaling) if o.scale is None else o.scale

        if o.q_rank is None:
            self.q = self._linear(o.num_heads * self.head_dim, "q", bias=False)
        else:
            self.q_down = self._linear(o.q_rank, "q_down", bias=o.bias)
            self.q_norm = make_norm("rms", eps=o.norm_eps, name="q_norm", dtype=self.dtype_policy)
            self.q_up = self._linear(o.num_heads * self.head_dim, "q_up", bias=False)
        self.kv_down = self._linear(o.kv_rank + o.rope_dim, "kv_down", bias=o.bias)
        self.kv_norm = make_norm("rms", eps=o.norm_eps, name="kv_norm", dtype=self.dtype_policy)
        self.kv_up = self._linear(o.num_heads * (o.nope_dim + o.value_head_dim), "kv_up", bias=False)
        self.out = self._linear(o.dim, "out", bias=o.bias)

    def _parts(self) -> Parts:
        parts: list[tuple[Any, int | None]] = [
            (self.kv_down, self.dim),
            (self.kv_norm, self.kv_rank),
            (self.kv_up, self.kv_rank),
        ]
        parts += [(self.out, self.num_heads * self.value_head_dim), (self.positions, None)]
        if self.q_rank is None:
            return [(self.q, self.dim), *parts]
        return [(self.q_down, self.dim), (self.q_norm, self.q_rank), (self.q_up, self.q_rank), *parts]

    def call(
        self,
        query: Tensor,
        query_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        position_ids: Tensor | None = None,
        path: Path | None = None,
    ) -> Any:
        """Compute the output of attention for each token.

        Args:
            query: [B, S, M].
            query_mask: [B, S], True = a real token. Keras passes the masks of `Embedding(mask_zero=True)` and `Masking`
                itself. No query attends to padding.
            attention_mask: which query may attend to which key, True or 1 = may: a mask of `headwise.masks`, or a
                tensor [Q, K], [B, Q, K] or [B, H, Q, K], of which B, H and Q may be 1.
            return_attention_scores: also return the attention weights, which are the same for both paths.
            training: whether dropout is active.
            use_causal_mask: also forbid every query to attend to later keys.
            position_ids: [S] or [B, S], the positions of the tokens, if not 0, 1, 2 … (padding does not count).
            path: "auto", "expand" or "absorb" for this call; None = the `path` of the layer.

        Returns:
            [B, S, M]; with `return_attention_scores=True` (output, weights [B, H, S, S]).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        """
        check_input("query", query, self.dim)
        absorb = self._absorbs(path)
        sizes = (query.shape[0], self.num_heads, query.shape[1], query.shape[1])
        given = [unwrapped(attention_mask), masks.causal(offset=0) if use_causal_mask else None]
        padding = both(query_mask)
        mask = masking.resolve(given, padding, sizes, same=True)

        ids = compute_positions(query, padding, position_ids)
        q_nope, q_rope = self._queries(query, ids)
        c, k_rope = self._latents(query, ids)
        if absorb:
            w_uk, w_uv = self._up_projections()
            q = ops.concatenate((ops.einsum("bhqn,rhn->bhqr", q_nope, w_uk), q_rope), axis=-1)
            v = ops.expand_dims(c, 1)  # the latents, as one key head
            k = ops.concatenate((v, k_rope), axis=-1)
        else:
            q = ops.concatenate((q_nope, q_rope), axis=-1)
            k_nope, v = _split(self._heads(self.kv_up(c)), self.nope_dim)
            k = ops.concatenate((k_nope, ops.repeat(k_rope, self.num_heads, axis=1)), axis=-1)
        found = attend(
            *(q, k, v),
            mask=mask,
            scale=self.scale,
            dropout=self.dropout if training else 0.0,
            seed=self.seed_generator,
            kernel=self.kernel,
            return_attention_scores=return_attention_scores,
        )
        y, weights = found if return_attention_scores else (found, None)
        y = ops.einsum("bhqr,rhe->bqhe", y, w_uv) if absorb else ops.transpose(y, (0, 2, 1, 3))
        out = self.out(ops.reshape(y, (-1, ops.shape(y)[1], self.num_heads * self.value_head_dim)))
        return (out, weights) if return_attention_scores else out

    def compute_output_spec(self, query: Any, return_attention_scores: bool = False, **kwargs: Any) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        check_input("query", query, self.dim)
        self._absorbs(kwargs.get("path"))
        return self._attended(query, query.shape[1], return_attention_scores)

    def _queries(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the two parts of queries: [B, H, S, nope_dim], and rotated [B, H, S, rope_dim]. Equations 12-14."""
        q = self.q(x) if self.q_rank is None else self.q_up(self.q_norm(self.q_down(x)))
        q_nope, q_rope = _split(self._heads(q), self.nope_dim)
        return q_nope, self.positions.rotate(q_rope, ids)

    def _latents(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the latent c [B, S, R], and the rotated key of all heads [B, 1, S, rope_dim]. Equations 9 and 15."""
        c, k_rope = _split(self.kv_down(x), self.kv_rank)
        return self.kv_norm(c), self.positions.rotate(ops.expand_dims(k_rope, 1), ids)

    def _heads(self, y: Tensor) -> Tensor:
        """Split y [B, S, X] into heads: [B, H, S, X / H]."""
        split = ops.reshape(y, (-1, ops.shape(y)[1], self.num_heads, y.shape[-1] // self.num_heads))
        return ops.transpose(split, (0, 2, 1, 3))

    def _up_projections(self) -> tuple[Tensor, Tensor]:
        """Return W_UK [R, H, nope_dim] and W_UV [R, H, E], which are parts of the kernel of `kv_up`."""
        weight = ops.cast(self.kv_up.kernel, self.compute_dtype)
        return _split(ops.reshape(weight, (self.kv_rank, self.num_heads, -1)), self.nope_dim)

    def _absorbs(self, path: Path | None) -> bool:
        """Return whether a call takes the absorb path. ArgumentError if "absorb" was asked for, but is impossible."""
        path = self.default_path if path is None else path
        options.check_known("path", path, PATHS)
        if path == "absorb" and not self._can_absorb:
            raise ArgumentError(
                'path: "absorb" reads the kernel of kv_up. Expected a keras.layers.Dense '
                f"without LoRA and not quantised. Received: {type(self.kv_up).__name__}, "
                f"lora_enabled={getattr(self.kv_up, 'lora_enabled', None)}, "
                f'quantization_mode={getattr(self.kv_up, "quantization_mode", None)!r}. Use path="expand"'
            )
        fewer = 2 * self.kv_rank < self.nope_dim + self.value_head_dim  # a call has as many keys as queries
        return path == "absorb" or (path == "auto" and fewer and self._can_absorb)

    @property
    def _can_absorb(self) -> bool:
        """Whether `kv_up` is a plain Dense: with LoRA or quantised weights it computes more than its kernel."""
        up = self.kv_up
        return type(up) is keras.layers.Dense and not up.lora_enabled and up.quantization_mode is None

    def _linear(self, width: int, name: str, *, bias: bool) -> keras.layers.Dense:
        """Make a linear map with initial weights of standard deviation 0.006 (DeepSeek-V2, section 3.1.2; V3, 4.2)."""
        drawn = keras.initializers.RandomNormal(stddev=0.006)
        return self.dense(width, name=name, bias=bias, kernel_initializer=drawn)


def _split(x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Split x along its last axis: the first `first` columns, and the other columns."""
    return x[..., :first], x[..., first:]
