"""Attention through a few learned latents, which read an input of any length and may be read by other queries.

Perceivers and Set Transformers are built of it. The cost is linear in the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch
from keras import ops

from headwise import nn
from headwise.errors import ArgumentError
from headwise.keras.cross import CrossLayer
from headwise.keras.layer import Layer, Parts, Tensor, both, check_input
from headwise.keras.multi_head import MultiHeadAttention
from headwise.keras.residual import seeds
from headwise.keras.saving import PACKAGE
from headwise.keras.transformer_layer import EncoderLayer
from headwise.masks import Mask


@keras.saving.register_keras_serializable(PACKAGE)
class LatentAttention(Layer, twin=nn.LatentAttention):
    """N learned vectors, the latents, read the input, in O(N · S) instead of the O(S²) of self-attention.

        Z = latents;   for each read:  Z = CrossLayer(Z, input),  Z = EncoderLayer(Z), …        Jaegle et al. 2021
        with read_out: CrossLayer(queries, Z)                                       Perceiver IO, Jaegle et al. 2022

    With `norm_first=False` a CrossLayer is the paper's MAB, and this layer is the Set Transformer's pooling,
    MAB(latents, X), or with `read_out=True` its inducing points, ISAB(X) = MAB(X, MAB(latents, X)) (Lee et al. 2019,
    equations 6, 7 and 9 to 11). The order of the input has no effect; if it should have one, add positions to it. The
    Keras twin of `headwise.nn.LatentAttention`.

    >>> pool = LatentAttention(1, 256)                               # input [B, S, 256] to [B, 1, 256]
    >>> perceiver = LatentAttention(64, 512, 256, num_reads=4, self_layers=6, share_reads=True)
    >>> isab = LatentAttention(32, 128, norm_first=False, read_out=True, activation="relu")
    >>> y = isab(x, query_mask=real)                                 # x, y: [B, S, 128]
    >>> decode = LatentAttention(64, 512, 256, self_layers=6, read_out=True, output_dim=128, query_residual=False)
    >>> y = decode(queries, x)                                       # queries, y: [B, Q, 128]; x: [B, S, 256]
    >>> roles = LatentAttention(2, 256, latent_names=["subject", "verb"])
    >>> y, weights = roles(x, return_attention_scores=True)          # weights["reads.0.attention"]: [B, H, 2, S]

    Args: as of `headwise.nn.LatentAttention`, and
        kernel: "auto", or the name of a kernel, as for `scaled_dot_product_attention`.
        seed: the seed of dropout.

    Its weight is `latents` [N, M], drawn from a normal distribution of standard deviation 0.02 (Perceiver), or without
    `norm_first` from Glorot's uniform distribution (Set Transformer). Its sublayers are `reads` (each a `CrossLayer`
    with `layers`), and `read_out`, a `CrossLayer` or None.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option, or a number of names other than N.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        with torch.device("meta"):  # the twin has no weights; it only checks the options
            twin = nn.LatentAttention(**{**vars(o), "kernel": "auto"})
        self.num_latents, self.latent_dim, self.input_dim = twin.num_latents, twin.latent_dim, twin.input_dim
        self.num_reads, self.num_heads, self.output_dim = twin.num_reads, twin.num_heads, twin.output_dim
        self.norm_first, self.latent_names = o.norm_first, twin.latent_names

        names, self_heads = self.latent_names, o.num_heads if o.self_heads is None else o.self_heads
        own: dict[str, Any] = {"bias": o.bias, "dropout": o.dropout, "dtype": self.dtype_policy}
        layer: dict[str, Any] = {name: getattr(o, name) for name in ("ffn_dim", "norm_first", "activation", "norm_eps")}
        layer |= own
        heads: dict[str, Any] = {name: getattr(o, name) for name in ("head_dim", "value_head_dim", "scale", "kernel")}

        def among(i: int, seed: int | None) -> EncoderLayer:
            within, between = seeds(seed, 2)
            attention = MultiHeadAttention(
                *(self.latent_dim, self_heads), kernel=o.kernel, seed=within, name="attention", **own
            )
            _name(attention, rows=names, cols=names)
            return EncoderLayer(self.latent_dim, attention=attention, seed=between, name=f"layers_{i}", **layer)

        def read(i: int, seed: int | None) -> _Read:
            first, *others = seeds(seed, 1 + o.self_layers)
            given = {"memory_dim": self.input_dim, "seed": first, "name": f"reads_{i}", **heads, **layer}
            reader = _Read(self.latent_dim, self.num_heads, **given)
            reader.layers = [among(j, each) for j, each in enumerate(others)]
            _name(reader.attention, rows=names)
            return reader

        last, *drawn = seeds(seed, 1 + len(twin.reads))
        self.reads = [read(i, each) for i, each in enumerate(drawn)]
        self.read_out: CrossLayer | None = None
        if o.read_out:
            heads |= {"query_residual": o.query_residual, "seed": last, "name": "read_out"}
            heads["memory_dim"] = self.latent_dim
            self.read_out = CrossLayer(self.output_dim, self.num_heads, **heads, **layer)
            _name(self.read_out.attention, cols=names)
        self.latents: Any = None

    def build(self, input_shape: object = None) -> None:
        """Create the weights. Their shapes depend only on the options."""
        kinds = keras.initializers
        initializer = kinds.RandomNormal(stddev=0.02) if self.norm_first else kinds.GlorotUniform()
        self.latents = self.add_weight(
            shape=(self.num_latents, self.latent_dim), initializer=initializer, name="latents"
        )
        super().build()

    def _parts(self) -> Parts:
        return [(part, None) for part in (*self.reads, self.read_out)]

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Let the latents read the input, and return them; with `read_out` let the queries read the latents.

        Args:
            query: without `read_out` the input [B, S, input_dim]. With `read_out` the queries that read the latents,
                [B, Q, output_dim].
            value: with `read_out` the input [B, S, input_dim]; None = `query`. Without `read_out` None.
            query_mask: the padding of `query`, True = a real token. Keras passes it. If the query is the input, the
                latents read only its real tokens.
            value_mask: the padding of `value`, True = a real token; only real tokens are read. Keras passes it.
            attention_mask: which latent may attend to which position of the input, True or 1 = may: a mask of
                `headwise.masks`, or a tensor [N, S], [B, N, S] or [B, H, N, S].
            return_attention_scores: also return the attention weights.
            training: whether dropout is active.

        Returns:
            The latents [B, N, latent_dim], without a mask; or with `read_out` [B, Q, output_dim], with the mask of the
            queries. With `return_attention_scores=True` (output, a dict of weights): "reads.0.attention"
            [B, H, N, S], "reads.0.layers.0.attention" [B, H, N, N], "read_out.attention" [B, H, Q, N].
            A latent that may attend to nothing reads 0.

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        """
        x = self._input(query, value)
        padding = both(query_mask, value_mask) if x is query else value_mask
        latents = ops.cast(self.latents, self.compute_dtype)
        z = ops.broadcast_to(latents, (ops.shape(x)[0], self.num_latents, self.latent_dim))
        given = {"return_attention_scores": return_attention_scores, "training": training}
        found: dict[str, Tensor] = {}
        for i in range(self.num_reads):
            z = self.reads[min(i, len(self.reads) - 1)](
                z, x, value_mask=padding, attention_mask=attention_mask, **given
            )
            if return_attention_scores:
                z, weights = z
                found |= {f"reads.{i}.{name}": w for name, w in weights.items()}
        if self.read_out is not None:
            z = self.read_out(query, z, query_mask=query_mask, **given)
            if return_attention_scores:
                z, found["read_out.attention"] = z
        return (z, found) if return_attention_scores else z

    def compute_mask(self, query: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        """Return the padding mask of the output: with `read_out` the queries' mask; None for latents: all are real."""
        return None if self.read_out is None else previous_mask

    def compute_output_spec(
        self, query: Any, value: Any = None, return_attention_scores: bool = False, **kwargs: Any
    ) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        x = self._input(query, value)
        z = keras.KerasTensor((x.shape[0], self.num_latents, self.latent_dim), dtype=self.compute_dtype)
        wanted = {"return_attention_scores": return_attention_scores}
        found: dict[str, Any] = {}
        for i in range(self.num_reads if return_attention_scores else 0):
            _, weights = self.reads[min(i, len(self.reads) - 1)].compute_output_spec(z, x, **wanted)
            found |= {f"reads.{i}.{name}": w for name, w in weights.items()}
        if self.read_out is None:
            return (z, found) if return_attention_scores else z
        out = self.read_out.compute_output_spec(query, z, **wanted)
        return (out[0], {**found, "read_out.attention": out[1]}) if return_attention_scores else out

    def _input(self, query: Any, value: Any) -> Any:
        """Check the arguments of `call`, and return what the latents read: `query`, or with `read_out` `value`."""
        if self.read_out is None:
            if value is not None and value is not query:
                raise ArgumentError(
                    "value: expected None without read_out, because query is the input. "
                    "Received: another sequence. Make the layer with read_out=True for queries that read the latents"
                )
            check_input("query", query, self.input_dim)
            return query
        check_input("query", query, self.output_dim)
        if value is None and self.output_dim != self.input_dim:
            raise ArgumentError(
                f"value: expected the input [B, S, {self.input_dim}], because query has "
                f"{self.output_dim} dimensions. Received: value=None"
            )
        x = query if value is None else value
        check_input("value", x, self.input_dim, batch=query.shape[0])
        return x


class _Read(CrossLayer):
    """One read: the latents attend to the input (`CrossLayer`), then to one another (layers of self-attention)."""

    layers: Sequence[EncoderLayer] = ()

    def _parts(self) -> Parts:
        return [*((layer, None) for layer in self.layers), *super()._parts()]

    def call(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        given: dict[str, Any] = {"return_attention_scores": return_attention_scores, "training": training}
        z = super().call(query, value, value_mask=value_mask, attention_mask=attention_mask, **given)
        found: dict[str, Tensor] = {}
        if return_attention_scores:
            z, found["attention"] = z
        for i, layer in enumerate(self.layers):
            z = layer(z, **given)
            if return_attention_scores:
                z, found[f"layers.{i}.attention"] = z
        return (z, found) if return_attention_scores else z

    def compute_output_spec(self, query: Any, value: Any, return_attention_scores: bool = False, **kwargs: Any) -> Any:
        out = super().compute_output_spec(query, value, return_attention_scores)
        if not return_attention_scores:
            return out
        z, found = out[0], {"attention": out[1]}
        for i, layer in enumerate(self.layers):
            found[f"layers.{i}.attention"] = layer.compute_output_spec(z, return_attention_scores=True)[1]
        return z, found


def _name(attention: MultiHeadAttention, **names: tuple[str, ...]) -> None:
    """Set the names that records show for a layer's queries (`rows`) or keys (`cols`), hidden from Keras's tracking."""
    object.__setattr__(attention, "row_names", names.get("rows"))
    object.__setattr__(attention, "col_names", names.get("cols"))
