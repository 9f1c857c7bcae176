"""Multi-head attention, self and cross, with the options of current decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from headwise.call import make_call
from headwise.errors import ArgumentError, ShapeError
from headwise.kernels import KERNELS
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.cache import Cache, bind
from headwise.nn.from_torch import attention_options, attention_state, check_class, torch_attention
from headwise.nn.head_sizes import HeadSizes
from headwise.nn.inputs import check_input, check_mask, compute_positions, follows, with_real
from headwise.nn.norm import NORMS
from headwise.nn.positions import Positions
from headwise.nn.real import check_real
from headwise.nn.state_dict import rename
from headwise.nn.trace import attend
from headwise.parallel import context as parallel
from headwise.parallel.placements import locally
from headwise.quantized import Int8
from headwise.records import AttentionRecord

if TYPE_CHECKING:
    from typing_extensions import Self

Places = tuple[Tensor, Tensor] | None  # the positions of queries and keys; None if there is no position scheme


class MultiHeadAttention(HeadSizes, nn.Module):
    """Several attention heads over the same sequence. Vaswani et al. 2017, section 3.2.2.

        head_h = softmax(scale · q_h k_gᵀ) v_g,   out = Concat(head_1 … head_H) W_O

    >>> layer = MultiHeadAttention(512, 8, num_kv_heads=2, positions=positions.Rope(64))
    >>> y = layer(x, mask=masks.causal())                            # x, y: [B, S, M]
    >>> y, record = layer(x, mask=masks.causal(), record=True)       # the weights, no slower: record.weights()
    >>> y = layer(x, memory, mask=masks.lengths(lengths))            # cross-attention

    Args:
        dim: M, the dimensions of the queries and of the output.
        num_heads: H, the number of query heads.
        num_kv_heads: G, the number of key and value heads; G divides H. 1 is multi-query (Shazeer 2019), a number
            between 1 and H is grouped-query attention (Ainslie et al. 2023). None = H.
        head_dim: D, the dimensions of a head's queries and keys; None = M / H. H · D need not be M.
        value_head_dim: E, the dimensions of a head's values; None = D.
        kdim: dimensions of `key`; None = M.
        vdim: dimensions of `value`; None = kdim.
        bias: whether the projections of queries, keys and values have a bias.
        output_bias: whether the output projection has a bias; None = the value of `bias`.
        qk_norm: "rms" or "layer": normalise queries and keys over D after their projection (Henry et al. 2020; Qwen 3).
        norm_eps: the epsilon of the norm that `qk_norm` chooses.
        softcap: bounds the scores: a score s becomes softcap · tanh(s / softcap) (Gemma 2).
        sinks: whether each head has a learned logit that takes part in the softmax like the score of a further key, but
            adds nothing to the output (gpt-oss).
        gate: whether the heads' output is multiplied by a sigmoid of a projection of the query (Qiu et al. 2025,
            equation 5).
        dropout: of the attention weights, only in training.
        scale: factor on q kᵀ; None = 1/√D.
        positions: the position scheme of the heads: one of `headwise.nn.positions`.
        projection: "per_head" as in the paper; "shared": one small D × D matrix each for queries, keys and values,
            shared by all heads, without bias: head h projects x[..., h·D : (h+1)·D], as many tutorials write it.
        kernel: "auto", or the name of a kernel, as for `headwise.attention`.

    Its parameters are `qkv` (or `q`, `k`, `v` if widths differ), `out`, `gate`, `sinks`. State dicts with other
    common names load too: `in_proj_weight`, `c_attn`, `q_proj … o_proj`, `Wq … fc_out`, `q_linear … out_linear`.

    Raises:
        ArgumentError: dimensions that are not divisible, or an unknown option.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        qk_norm: Literal["rms", "layer"] | None = None,
        norm_eps: float = 1e-6,
        softcap: float | None = None,
        sinks: bool = False,
        gate: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
        positions: Positions | None = None,
        projection: Literal["per_head", "shared"] = "per_head",
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._take_sizes(dim, num_heads, num_kv_heads, head_dim, value_head_dim, kdim, vdim, projection)
        head_dim = self.head_dim
        options.check_known("qk_norm", qk_norm, [None, *NORMS])
        options.check_known("kernel", kernel, ["auto", *KERNELS])
        self._take_scoring(dropout, scale, softcap, positions, Positions)
        self.kernel = kernel

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if projection == "shared":
            self.qkv = nn.Linear(head_dim, 3 * head_dim, bias=False, **factory)
        elif self.is_fused:
            self.qkv = nn.Linear(dim, sum(self.projection_sizes), bias=bias, **factory)
        else:
            widths = zip("qkv", (dim, self.kdim, self.vdim), self.projection_sizes, strict=True)
            for name, width, size in widths:
                self.add_module(name, nn.Linear(width, size, bias=bias, **factory))
        heads_width = num_heads * self.value_head_dim
        self.out = nn.Linear(heads_width, dim, bias=bias if output_bias is None else output_bias, **factory)
        self.gate = nn.Linear(dim, heads_width, bias=False, **factory) if gate else None
        self.q_norm = NORMS[qk_norm](head_dim, eps=norm_eps, **factory) if qk_norm else None
        self.k_norm = NORMS[qk_norm](head_dim, eps=norm_eps, **factory) if qk_norm else None
        self.sinks = nn.Parameter(torch.empty(num_heads, **factory)) if sinks else None
        self.register_load_state_dict_pre_hook(rename)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform distribution for each projection, as in the code of the paper; 0 for biases and sinks."""
        with torch.no_grad():
            for name, module in self.named_children():
                if isinstance(module, nn.Linear):
                    for weight in module.weight.split(self.projection_sizes) if name == "qkv" else (module.weight,):
                        nn.init.xavier_uniform_(weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
            if self.sinks is not None:
                nn.init.zeros_(self.sinks)
            for part in (self.q_norm, self.k_norm, self.positions):
                if part is not None:
                    part.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
        *,
        real: Tensor | None = None,
        position_ids: Tensor | None = None,
        record: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionRecord]:
        """Compute the output of attention for each query.

        Args:
            query: [B, Q, M].
            key: [B, K, kdim], the sequence that is attended to; None = `query` (self-attention).
            value: [B, K, vdim]; None = `key`.
            mask: which query may attend to which key, True = may: a mask of `headwise.masks`, or a bool tensor [Q, K],
                [H, Q, K] or [B, H, Q, K]. With a cache, K includes the keys that it holds; the last query is at the
                position of the last key.
            cache: holds the keys and values of the earlier tokens. In self-attention the keys and values of the new
                tokens are appended to it. If `key` is another sequence, it is projected in the first call only, and the
                cache holds the projections.
            real: bool or integers [B, K] of the keys given now, True or 1 = a real token, False or 0 = padding. A cache
                remembers it. From PyTorch: `real=~key_padding_mask`.
            position_ids: [Q] or [B, Q], the positions of the queries, if not 0, 1, 2 … (after the tokens in the cache;
                padding does not count).
            record: also return the record of the attention.

        Returns:
            [B, Q, M]; with `record=True` (output, AttentionRecord). Nothing is averaged over heads.

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
            CacheError: a cache of another module or batch, or a full cache.
        """
        check_input("query", query, self.dim, linear=self.out)
        reads_itself = key is None or key is query
        if key is None and value is not None:
            raise ArgumentError(
                "value: expected a key too. Received: key=None. Pass both, or neither for self-attention"
            )
        key = query if key is None else key
        value = key if value is None else value
        check_input("key", key, self.kdim, batch=query.shape[0], linear=self.out)
        check_input("value", value, self.vdim, batch=query.shape[0], linear=self.out)
        if value.shape[1] != key.shape[1]:
            raise ShapeError(
                f"value: expected the same number of positions as key. Received: key={list(key.shape)}, "
                f"value={list(value.shape)}"
            )
        real = check_real(real, *key.shape[:2])
        if position_ids is not None and self.positions is None:
            raise ArgumentError("position_ids: expected a module with positions=. Received: a module without positions")
        bind(cache, self)
        if reads_itself:
            if cache is not None:
                check_mask(mask, query, self.num_heads, cache.size + query.shape[1])
            q, k, v, places, real = self._read_itself(query, key, value, cache, real, position_ids)
        else:
            q, k, v, places = self._read_other(query, key, value, cache, real, position_ids)

        mask = with_real(mask, real, memory=not reads_itself)
        counted = reads_itself and position_ids is None  # self-attention whose positions are counted: 0, 1, 2 …
        bias, slopes = None, self.positions.slopes_of_heads() if self.positions is not None and counted else None
        if slopes is not None and not follows(real, cached=cache is not None):
            slopes = None
        if self.positions is not None and places is not None and slopes is None:
            # A scheme that gets the mask may omit what is common to a row, and assume that positions ascend and that
            # queries and keys end at the same position. A sink would reveal the omission; position_ids need not ascend.
            known = mask if self.sinks is None and counted and parallel.current() is None else None
            bias = self.positions.bias(q, *places, mask=known, scale=self.scale)
        given: dict[str, Any] = {"mask": mask, "bias": bias, "slopes": slopes, "scale": self.scale}
        given |= {"softcap": self.softcap, "sinks": self.sinks}
        run: dict[str, Any] = {"dropout": self.dropout if self.training else 0.0, "kernel": self.kernel}
        y_BHQE, found = attend("self" if reads_itself else "cross", q, k, v, record=record, **given, **run)
        if self.positions is not None and places is not None and self.positions.uses_values:
            if parallel.current() is not None:
                raise ArgumentError(
                    f"context_parallel: {type(self.positions).__name__} adds to the values what it computes from all "
                    "weights of a row. Take positions that do not"
                )
            call = make_call(q, k, v, **given).dequantized()
            extra = self.positions.values(call.weights(), *places)
            y_BHQE = y_BHQE if extra is None else y_BHQE + extra.to(y_BHQE.dtype)
        y_BQM = y_BHQE.transpose(1, 2).flatten(2)
        if self.gate is not None:
            y_BQM = y_BQM * torch.sigmoid(self.gate(query))
        out = self.out(y_BQM)
        return out if found is None else (out, found)

    def unfuse(self) -> Self:
        """Split the projection `qkv` into `q`, `k` and `v` with the same weights, so that each can be cut by heads.

        Tensor parallelism needs this.

        State dicts of both forms can be loaded. Call it before an optimizer gets the parameters. Returns the module.

        Raises:
            ArgumentError: projection="shared", whose matrix has no separate rows for each head.
        """
        if self.projection == "shared":
            raise ArgumentError(
                'unfuse: expected projection="per_head". Received: projection="shared", one matrix for all heads'
            )
        if not self.is_fused:
            return self
        fused, sizes = self.qkv, self.projection_sizes
        weights = fused.weight.detach().split(sizes)
        biases = [None] * 3 if fused.bias is None else fused.bias.detach().split(sizes)
        del self.qkv
        for name, weight, bias in zip("qkv", weights, biases, strict=True):
            part = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
            part.weight = nn.Parameter(weight.clone(), requires_grad=fused.weight.requires_grad)
            if bias is not None:
                part.bias = nn.Parameter(bias.clone(), requires_grad=fused.weight.requires_grad)
            self.add_module(name, part.train(self.training))
        self.is_unfused = True
        return self

    def _read_itself(
        self, query: Tensor, key: Tensor, value: Tensor, cache: Cache | None, real: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor | Int8, Tensor | Int8, Places, Tensor | None]:
        """Compute q, and all keys and values of self-attention (also cached), their positions, and `real` of keys."""
        if value is key:
            q, k, v = self.project(key, "qkv")
        else:  # DETR adds positions only to queries and keys
            (q, k), (v,) = self.project(query, "qk"), self.project(value, "v")
        q, k = _normalised(self.q_norm, q), _normalised(self.k_norm, k)
        scheme = self.positions
        if scheme is None:
            if cache is None:
                return q, k, v, None, real
            held_k, held_v = cache.append_held(k, v, real=real)
            return q, held_k, held_v, None, cache.key_real
        query_ids = compute_positions(query, cache, real, ids)
        if cache is None:
            length = parallel.find_length(query.shape[1])
            q, k = (locally(lambda x: scheme.rotate(x, query_ids, length), x) for x in (q, k))
            return q, k, v, (query_ids, parallel.gather_positions(query_ids)), real
        length = query.shape[1] + cache.length
        if ids is not None and (scheme.depends_on_length or type(scheme).bias is not Positions.bias):
            raise ArgumentError(
                f"position_ids: expected None, {type(scheme).__name__} needs the positions of all keys, and the cache "
                "counts them itself. Received: position_ids with a cache. For padding pass real="
            )
        # If the angles change as the sequence grows, the cache holds the keys before rotation.
        k = k if scheme.depends_on_length else scheme.rotate(k, query_ids, length)
        held_k, held_v = cache.append_held(k, v, real=real)
        key_ids = cache.key_positions(device=query.device)
        if scheme.depends_on_length:
            held_k = scheme.rotate(held_k.dequantized() if isinstance(held_k, Int8) else held_k, key_ids, length)
        return scheme.rotate(q, query_ids, length), held_k, held_v, (query_ids, key_ids), cache.key_real

    def _read_other(
        self, query: Tensor, key: Tensor, value: Tensor, cache: Cache | None, real: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Places]:
        """Compute q of one sequence, k and v of another, and the positions of both, each counted from 0."""
        scheme = self.positions
        key_ids = compute_positions(key, None, real if scheme is not None else None, None, memory=True)

        length = parallel.find_length(key.shape[1], memory=True)

        def make(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            k, v = self.project(key, "kv") if value is key else (*self.project(key, "k"), *self.project(value, "v"))
            k = _normalised(self.k_norm, k)
            return (k if scheme is None else locally(lambda k: scheme.rotate(k, key_ids, length), k)), v

        k, v = make(key, value) if cache is None else cache.memory(key, value, make)
        (q,) = self.project(query, "q")
        q = _normalised(self.q_norm, q)
        if scheme is None:
            return q, k, v, None
        query_ids = compute_positions(query, None, None, ids)
        q = locally(lambda q: scheme.rotate(q, query_ids, parallel.find_length(query.shape[1])), q)
        return q, k, v, (query_ids, parallel.gather_positions(key_ids, memory=True))

    def project(self, x: Tensor, names: str) -> list[Tensor]:
        """Project x to the parts in `names` ("q", "kv" …): each [B, heads, S, D], for values [B, heads, S, E]."""
        if self.projection == "shared":
            x = x.unflatten(-1, (self.num_heads, self.head_dim))
        if not self.is_fused:
            found = [getattr(self, name)(x) for name in names]
        elif names == "qkv":
            found = list(self.qkv(x).split(self.projection_sizes, -1))
        else:
            first = "qkv".index(names)
            sizes = self.projection_sizes[first : first + len(names)]
            start = sum(self.projection_sizes[:first])
            rows = slice(start, start + sum(sizes))
            bias = None if self.qkv.bias is None else self.qkv.bias[rows]
            found = list(linear(x, self.qkv.weight[rows], bias).split(sizes, -1))
        if self.projection == "shared":
            return [y.transpose(1, 2) for y in found]
        heads = {"q": self.num_heads, "k": self.num_kv_heads, "v": self.num_kv_heads}
        widths = {"q": self.head_dim, "k": self.head_dim, "v": self.value_head_dim}
        # (The width is not -1: a linear map may compute only some of the heads, and -1 would then mean another number.)
        return [
            y.unflatten(-1, (heads[name], widths[name])).transpose(1, 2) for name, y in zip(names, found, strict=True)
        ]

    def extra_repr(self) -> str:
        """Return the options that the shapes of the parameters do not show."""
        shown = {
            "num_kv_heads": None if self.num_kv_heads == self.num_heads else self.num_kv_heads,
            "head_dim": None if self.head_dim * self.num_heads == self.dim else self.head_dim,
            "value_head_dim": None if self.value_head_dim == self.head_dim else self.value_head_dim,
            "projection": None if self.projection == "per_head" else repr(self.projection),
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks is not None or None,
            "dropout": self.dropout or None,
            "kernel": None if self.kernel == "auto" else repr(self.kernel),
        }
        return ", ".join([f"{self.dim}, {self.num_heads}"] + [f"{k}={v}" for k, v in shown.items() if v is not None])

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, kernel: str = "auto") -> MultiHeadAttention:
        """Make a module that computes the same as an nn.MultiheadAttention, with the same weights.

        Its inputs are [B, S, M], whatever the `batch_first` of `module`.

        Raises ArgumentError for add_bias_kv and add_zero_attn.
        """
        check_class(module, nn.MultiheadAttention)
        ours = cls(**attention_options(module), kernel=kernel)
        ours.load_state_dict(attention_state(module, ours.is_fused))
        return ours.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Make an nn.MultiheadAttention (batch_first=True) with the options and weights of this module.

        Raises ArgumentError if this module uses an option that nn.MultiheadAttention does not have; the message names
        the option.
        """
        usual = self.dim // self.num_heads
        differs = {
            "num_kv_heads": self.num_kv_heads != self.num_heads,
            "head_dim": (self.head_dim, self.value_head_dim) != (usual, usual),
            "scale": self.scale is not None and abs(self.scale * usual**0.5 - 1) > 1e-6,
            "softcap": self.softcap is not None,
            "sinks": self.sinks is not None,
            "qk_norm": self.q_norm is not None,
            "gate": self.gate is not None,
            "positions": self.positions is not None,
            "projection": self.projection != "per_head",
        }
        for option, differs_here in differs.items():
            if differs_here:
                raise ArgumentError(
                    f"to_torch: nn.MultiheadAttention does not support {option}. Received: a module that uses it"
                )
        inputs = [getattr(self, name) for name in (["qkv"] if self.is_fused else "qkv")]
        sizes = {"kdim": self.kdim, "vdim": self.vdim}
        return torch_attention(inputs, self.out, self.num_heads, dropout=self.dropout, **sizes).train(self.training)


def _normalised(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)
