"""Attention through a few learned latents, which read an input of any length, and may be read by other queries.

Perceivers and Set Transformers are built of it. The cost is linear in the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, brief
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.cache import Cache, bind
from headwise.nn.cache_storage import Make
from headwise.nn.cross import CrossLayer
from headwise.nn.feed_forward import Activation
from headwise.nn.inputs import check_input, check_mask, check_value, with_real
from headwise.nn.multi_head import MultiHeadAttention
from headwise.nn.real import check_real
from headwise.nn.residual import reset_parts
from headwise.nn.trace import Trace
from headwise.nn.transformer_layer import EncoderLayer


class LatentAttention(nn.Module):
    """N learned vectors, the latents, read the input, in O(N · S) instead of the O(S²) of self-attention.

        Z = latents;   for each read:  Z = CrossLayer(Z, input),  Z = EncoderLayer(Z), …        Jaegle et al. 2021
        with read_out: CrossLayer(queries, Z)                                       Perceiver IO, Jaegle et al. 2022

    With `norm_first=False` a CrossLayer is the paper's MAB, and this module is the Set Transformer's pooling,
    MAB(latents, X), or with `read_out=True` its inducing points, ISAB(X) = MAB(X, MAB(latents, X)) (Lee et al. 2019,
    equations 6, 7 and 9 to 11). The order of the input has no effect; if it should have one, add positions to it.

    >>> pool = LatentAttention(1, 256)                               # input [B, S, 256] to [B, 1, 256]
    >>> perceiver = LatentAttention(64, 512, 256, num_reads=4, self_layers=6, share_reads=True)
    >>> isab = LatentAttention(32, 128, norm_first=False, read_out=True, activation="relu")
    >>> y = isab(x, real=real)                                    # x, y: [B, S, 128]
    >>> decode = LatentAttention(64, 512, 256, self_layers=6, read_out=True, output_dim=128, query_residual=False)
    >>> y = decode(queries, x)                                       # queries, y: [B, Q, 128]; x: [B, S, 256]
    >>> roles = LatentAttention(2, 256, latent_names=["subject", "verb"])
    >>> y, seen = roles(x, record=True)                              # seen["reads.0.attention"].row_names

    Args:
        num_latents: N.
        latent_dim: M, the dimensions of the latents.
        input_dim: dimensions of the input; None = M.
        num_heads: H, the heads of the reads and of the read-out.
        num_reads: the number of times that the latents read the input.
        share_reads: whether all reads after the first share their weights. The first read always has its own weights
            (Jaegle et al. 2021 found training unstable if it shares them too).
        self_layers: the number of layers of self-attention among the latents after each read.
        self_heads: the heads of these layers; None = `num_heads`.
        read_out: whether other queries read the latents at the end.
        output_dim: dimensions of these queries and of the output; None = `input_dim`.
        query_residual: whether the read-out adds the queries to its output.
        latent_names: the names of the latents in records and views; None = "latent 0", "latent 1" …
        head_dim, value_head_dim: D and E of the heads of the reads and the read-out; None = width / H, and E = D.
        ffn_dim: the hidden dimension of each feed-forward network; None = 4 times its width (see `FeedForward`).
        norm_first: True = a norm before each branch (Perceiver); False = after each sum (Set Transformer).
        activation: the activation of the feed-forward networks.
        dropout: of attention weights, in feed-forward networks and of the output of each branch; only in training.
        scale: the factor on q kᵀ of the reads and the read-out; None = 1/√D, as in both papers. The Set Transformer's
            authors' code divides by the root of the model's width instead.
        norm_eps: the epsilon of the norms.
        bias: whether attention, feed-forward networks and LayerNorm have biases.
        kernel: "auto", or the name of a kernel, as for `headwise.attention`.

    It contains `latents` [N, M], `reads` (each a `CrossLayer` with `layers`), and `read_out`, a `CrossLayer` or None.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option, a number of names other than N.
    """

    def __init__(
        self,
        num_latents: int,
        latent_dim: int,
        input_dim: int | None = None,
        num_heads: int = 8,
        *,
        num_reads: int = 1,
        share_reads: bool = False,
        self_layers: int = 0,
        self_heads: int | None = None,
        read_out: bool = False,
        output_dim: int | None = None,
        query_residual: bool = True,
        latent_names: Sequence[str] | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        ffn_dim: int | None = None,
        norm_first: bool = True,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        scale: float | None = None,
        norm_eps: float = 1e-5,
        bias: bool = True,
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_latents = options.whole("num_latents", num_latents)
        self.latent_dim = options.whole("latent_dim", latent_dim)
        self.input_dim = options.whole("input_dim", latent_dim if input_dim is None else input_dim)
        self.num_reads = options.whole("num_reads", num_reads)
        self.norm_first = norm_first
        self.latent_names = names = name_latents(latent_names, num_latents)
        if not read_out and (output_dim is not None or not query_residual):
            name, given = ("query_residual", query_residual) if output_dim is None else ("output_dim", output_dim)
            raise ArgumentError(f"{name}: expected read_out=True with it. Received: {name}={given}, read_out=False")
        default = self.input_dim if read_out else latent_dim
        self.output_dim = options.whole("output_dim", default if output_dim is None else output_dim)

        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        layer: dict[str, Any] = {"ffn_dim": ffn_dim, "norm_first": norm_first, "activation": activation}
        layer |= {"dropout": dropout, "norm_eps": norm_eps, **factory}
        heads: dict[str, Any] = {"head_dim": head_dim, "value_head_dim": value_head_dim}
        heads |= {"scale": scale, "kernel": kernel}
        self.num_heads = options.whole("num_heads", num_heads)
        options.whole("self_layers", self_layers, 0)
        self_heads = options.whole("self_heads", num_heads if self_heads is None else self_heads)

        def among() -> EncoderLayer:
            attention = MultiHeadAttention(latent_dim, self_heads, dropout=dropout, kernel=kernel, **factory)
            return EncoderLayer(latent_dim, attention=_called(attention, rows=names, cols=names), **layer)

        def read() -> _Read:
            reader = _Read(latent_dim, num_heads, memory_dim=self.input_dim, **heads, **layer)
            reader.layers.extend(among() for _ in range(self_layers))
            _called(reader.attention, rows=names)
            return reader

        self.latents = nn.Parameter(torch.empty(num_latents, latent_dim, device=device, dtype=dtype))
        self.reads = nn.ModuleList(read() for _ in range(min(num_reads, 2) if share_reads else num_reads))
        self.read_out: CrossLayer | None = None
        if read_out:
            heads["query_residual"] = query_residual
            self.read_out = CrossLayer(self.output_dim, num_heads, memory_dim=latent_dim, **heads, **layer)
            _called(self.read_out.attention, cols=names)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the latents and all layers again.

        With `norm_first` the latents get a normal distribution with standard deviation 0.02, truncated at ±2
        (Perceiver); otherwise Glorot's uniform distribution (Set Transformer).
        """
        reset_parts([*self.reads, *([] if self.read_out is None else [self.read_out])])
        with torch.no_grad():
            if self.norm_first:
                nn.init.trunc_normal_(self.latents, std=0.02)
            else:
                nn.init.xavier_uniform_(self.latents)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
        *,
        real: Tensor | None = None,
        record: bool = False,
    ) -> Any:
        """Let the latents read the input, and return them; with `read_out` let the queries read the latents.

        Args:
            query: without `read_out` the input [B, S, input_dim]. With `read_out` the queries that read the latents,
                [B, Q, output_dim].
            key: with `read_out` the input [B, S, input_dim]; None = `query`. Without `read_out` None.
            value: must be None. The argument exists so that all modules of this package have the same arguments.
            mask: which latent may read which position of the input, True = may: of `headwise.masks`, or bool [N, S],
                [H, N, S] or [B, H, N, S]. With a cache, S is the number of tokens that it holds.
            cache: for an input that grows from call to call: the cache holds the keys and values of the earlier input,
                and the latents, which begin anew in each call, read the earlier and the new input.
            real: bool or integers [B, S] of the input given now, True or 1 = a real token, False or 0 = padding. A
                cache remembers it.
            record: also return the records: "reads.0.attention", "reads.0.layers.0.attention", "read_out.attention".

        Returns:
            The latents [B, N, latent_dim], or with `read_out` [B, Q, output_dim]; with `record=True` (output, Seen).
            A latent that may read nothing reads 0.

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
            CacheError: a cache of another module or batch, or a full cache.
        """
        x = self._input(query, key, value)
        real = check_real(real, *x.shape[:2])
        z = self.latents.expand(x.shape[0], -1, -1)
        caches: list[Cache | None] = [None] * len(self.reads)
        if cache is not None:
            check_mask(mask, z, self.num_heads, cache.size + x.shape[1])
            caches, real = self._grown(x, cache, real), cache.key_real
        mask = with_real(mask, real)
        trace = Trace(record)
        for i in range(self.num_reads):
            own = min(i, len(self.reads) - 1)
            z = trace(self.reads[own], f"reads.{i}", z, x, mask=mask, cache=caches[own])
        return trace.result(z if self.read_out is None else trace(self.read_out, "read_out", query, z))

    def _input(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> Tensor:
        """Check the arguments of `forward`, and return what the latents read: `query`, or with `read_out` `key`."""
        if self.read_out is None:
            if key is not None and key is not query:
                raise ArgumentError(
                    "key: expected None, without read_out only the latents read and query is the input. Received: "
                    f"key={list(key.shape)}. Make the module with read_out=True for queries that read the latents"
                )
            check_value(query, value)
            check_input("query", query, self.input_dim)
            return query
        check_input("query", query, self.output_dim)
        if key is None and self.output_dim != self.input_dim:
            raise ArgumentError(
                f"key: expected the input [B, S, {self.input_dim}] that the latents read. Received: "
                f"key=None, and queries with {self.output_dim} dimensions"
            )
        x = query if key is None else key
        check_value(x, value)
        check_input("key", x, self.input_dim, batch=query.shape[0])
        return x

    def _grown(self, x: Tensor, cache: Cache, real: Tensor | None) -> list[Cache | None]:
        """Append the input x to the cache. Return a cache for each read, with keys and values of all input so far."""
        bind(cache, self)
        new: list[Tensor] = []
        for read in self.reads:
            assert isinstance(read, _Read)
            new += read.project(x)
        held = cache.append(*new, real=real)
        return [_Held(*pair) for pair in zip(held[::2], held[1::2], strict=True)]

    def extra_repr(self) -> str:
        """Return the options that the repr of the submodules does not show."""
        reads = "" if self.num_reads == len(self.reads) else f", num_reads={self.num_reads}, share_reads=True"
        return f"{self.num_latents}, {self.latent_dim}, input_dim={self.input_dim}{reads}"


class _Read(CrossLayer):
    """One read: the latents attend to the input (`CrossLayer`), then to one another (layers of self-attention)."""

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.layers = nn.ModuleList()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_parts(self.layers)

    def run(self, trace: Trace, *given: Any, **named: Any) -> Tensor:
        z = super().run(trace, *given, **named)
        for i, layer in enumerate(self.layers):
            z = trace(layer, f"layers.{i}", z)
        return z

    def project(self, x: Tensor) -> list[Tensor]:
        """Compute the keys and values of the input, [B, H, S, D] and [B, H, S, E]."""
        return self.attention.project(x if self.memory_norm is None else self.memory_norm(x), "kv")


class _Held(Cache):
    """A cache for the attention of one read, whose keys and values are already computed: it only returns them."""

    def __init__(self, *projections: Tensor) -> None:
        super().__init__()
        self._projections = projections

    def bind(self, owner: nn.Module) -> None:
        """Accept any module: the cache from which these projections come is bound already."""

    def child(self, name: str) -> Cache:
        return self

    def memory(self, key: Tensor, value: Tensor, make: Make) -> tuple[Tensor, ...]:
        return self._projections


def _called(attention: MultiHeadAttention, **names: tuple[str, ...]) -> MultiHeadAttention:
    """Return the module, after setting the names of its rows and columns that records and `headwise.watch` show."""
    vars(attention).update({"row_names": names.get("rows"), "col_names": names.get("cols")})
    return attention


def name_latents(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Return names of `count` latents: `names`, or "latent 0" … for None. ArgumentError unless these are strings."""
    if names is None:
        return tuple(f"latent {i}" for i in range(count))
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"latent_names: expected {count} strings, one for each latent. Received: latent_names={brief(names)}"
        )
    if len(names) != count:
        raise ArgumentError(
            f"latent_names: expected {count} names, one for each latent. Received: len(latent_names)={len(names)}"
        )
    return tuple(names)
