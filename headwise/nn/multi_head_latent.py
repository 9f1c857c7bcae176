"""Multi-head latent attention (MLA) of DeepSeek: keys and values of all heads are made from one short latent per token.

A cache holds only these latents."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError
from headwise.kernels import KERNELS
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.cache import Cache, bind
from headwise.nn.inputs import check_input, check_mask, compute_positions, with_real
from headwise.nn.norm import RMSNorm
from headwise.nn.positions import Rope, RopeScaling, Yarn
from headwise.nn.positions.rope_config import entry
from headwise.nn.real import check_real
from headwise.nn.state_dict import take
from headwise.nn.trace import attend
from headwise.options import check_scale
from headwise.records import AttentionRecord

Path = Literal["auto", "expand", "absorb"]
PATHS = ("auto", "expand", "absorb")

# The names of each projection in Hugging Face, and in DeepSeek's own code.
OTHER_NAMES = {
    "q": ("q_proj", "wq"),
    "q_down": ("q_a_proj", "wq_a"),
    "q_norm": ("q_a_layernorm",),
    "q_up": ("q_b_proj", "wq_b"),
    "kv_down": ("kv_a_proj_with_mqa", "wkv_a"),
    "kv_norm": ("kv_a_layernorm",),
    "kv_up": ("kv_b_proj", "wkv_b"),
    "out": ("o_proj", "wo"),
}
HF_MODELS = ("deepseek_v2", "deepseek_v3", "kimi_k2")


class LatentSizes:
    """The checked sizes of multi-head latent attention, for the PyTorch module and the Keras module."""

    def _take_sizes(
        self,
        dim: int,
        num_heads: int,
        q_rank: int | None,
        kv_rank: int,
        nope_dim: int,
        rope_dim: int,
        value_head_dim: int,
    ) -> None:
        self.dim = options.whole("dim", dim)
        self.num_heads = options.whole("num_heads", num_heads)
        self.q_rank = None if q_rank is None else options.whole("q_rank", q_rank)
        self.kv_rank = options.whole("kv_rank", kv_rank)
        self.nope_dim = options.whole("nope_dim", nope_dim)
        self.rope_dim = options.whole("rope_dim", rope_dim)
        if rope_dim % 2:
            raise ArgumentError(
                f"rope_dim: expected an even number, dimensions turn in pairs. Received: rope_dim={rope_dim}"
            )
        self.value_head_dim = options.whole("value_head_dim", value_head_dim)

    @property
    def head_dim(self) -> int:
        """D, the dimensions of a head's queries and keys: nope_dim + rope_dim."""
        return self.nope_dim + self.rope_dim


class MultiHeadLatentAttention(LatentSizes, nn.Module):
    """Self-attention with keys and values made from latents. DeepSeek-V2 (2024), equations 9-19; V3, section 2.1.1.

        c = norm(W_DKV x),   k_h = [W_UK_h c; rope(W_KR x)],   v_h = W_UV_h c
        c' = norm(W_DQ x),   q_h = [W_UQ_h c'; rope(W_QR_h c')]
        out = W_O Concat(softmax(scale · q_h k_hᵀ) v_h)

    c has R dimensions, and the rotated key is common to all heads: a cache holds R + rope_dim numbers per token. There
    are two ways ("paths") to compute it, with the same output and weights; both can be trained:

    - expand: k_h and v_h of all K keys are computed. Multiplications, for each example and head:
      K · R · (nope_dim + E)  +  Q · K · (nope_dim + rope_dim + E).
    - absorb: q_nope · (W_UK c) = (W_UKᵀ q_nope) · c, and Σ a W_UV c = W_UV Σ a c: the heads attend to the latents
      themselves, as one key head: Q · R · (nope_dim + E)  +  Q · K · (2R + rope_dim).

    "auto" takes the path with fewer multiplications: absorb to decode, expand to train or prefill if nope_dim + E < 2R.

    >>> layer = MultiHeadLatentAttention(
    ...     2048, 16, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_head_dim=128
    ... )
    >>> y = layer(x, mask=masks.causal())                            # x, y: [B, S, M]
    >>> y, record = layer(x, mask=masks.causal(), record=True)       # record.weights(): [B, H, S, S]
    >>> cache = Cache()
    >>> y = layer(x, mask=masks.causal(), cache=cache)               # cache.bytes: B · S · 576 · 4

    Args:
        dim: M, the dimensions of the input and of the output.
        num_heads: H, the number of heads.
        q_rank: dimensions of the queries' latent c'; None = queries are projected from the input directly (V2-Lite).
        kv_rank: R, dimensions of the latent c of keys and values.
        nope_dim: of each head's query and key, the dimensions that are not rotated (that carry no position).
        rope_dim: of each head's query and key, the dimensions that are rotated; they come last. An even number.
        value_head_dim: E, the dimensions of a head's values.
        bias: whether `q_down`, `kv_down` and `out` have a bias (Hugging Face's `attention_bias`).
        norm_eps: the epsilon of the norms of the latents.
        dropout: of the attention weights, only in training.
        scale: factor on q kᵀ; None = 1/√(nope_dim + rope_dim), times the `softmax_factor` of a Rope with YaRN.
        positions: a `Rope` of rope_dim dimensions; None = Rope(rope_dim, interleaved=True), as in DeepSeek.
        path: "auto", "expand" or "absorb": the default for all calls.
        kernel: "auto", or the name of a kernel, as for `headwise.attention`.

    Its parameters are `q_down`, `q_norm`, `q_up` (or `q`), `kv_down`, `kv_norm`, `kv_up` and `out`. The state dicts of
    Hugging Face's DeepSeek-V2 and V3 attention and of DeepSeek's own code can be loaded too.

    Raises:
        ArgumentError: a size that is not positive, an odd rope_dim, an unknown option, positions that do not fit.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        q_rank: int | None,
        kv_rank: int,
        nope_dim: int,
        rope_dim: int,
        value_head_dim: int,
        bias: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        scale: float | None = None,
        positions: Rope | None = None,
        path: Path = "auto",
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._take_sizes(dim, num_heads, q_rank, kv_rank, nope_dim, rope_dim, value_head_dim)
        self.dropout = options.probability("dropout", dropout)
        options.check_known("path", path, PATHS)
        options.check_known("kernel", kernel, ["auto", *KERNELS])
        check_scale(scale)
        self.path, self.kernel = path, kernel
        self.positions = choose_rope(positions, Rope, num_heads, rope_dim)
        # YaRN's mscale enters the softmax only here: both paths use this scale unchanged.
        self.scale = default_scale(self.head_dim, self.positions.scaling) if scale is None else scale

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if q_rank is None:
            self.q = nn.Linear(dim, num_heads * self.head_dim, bias=False, **factory)
        else:
            self.q_down = nn.Linear(dim, q_rank, bias=bias, **factory)
            self.q_norm = RMSNorm(q_rank, eps=norm_eps, **factory)
            self.q_up = nn.Linear(q_rank, num_heads * self.head_dim, bias=False, **factory)
        self.kv_down = nn.Linear(dim, kv_rank + rope_dim, bias=bias, **factory)
        self.kv_norm = RMSNorm(kv_rank, eps=norm_eps, **factory)
        self.kv_up = nn.Linear(kv_rank, num_heads * (nope_dim + value_head_dim), bias=False, **factory)
        self.out = nn.Linear(num_heads * value_head_dim, dim, bias=bias, **factory)
        self.register_load_state_dict_pre_hook(_rename)
        self.reset_parameters()

    @classmethod
    def from_hf(
        cls,
        config: Any,
        *,
        path: Path = "auto",
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> MultiHeadLatentAttention:
        """Make the attention module that a DeepSeek-V2 or V3 config describes, with new weights.

        `config` is a transformers config, or the dict in its config.json; transformers itself need not be installed.
        The model's weights can then be loaded by `load_state_dict`.

        Raises:
            CheckpointError: the config is of another model, lacks a size, or has a RoPE that is not supported.
        """
        model = entry(config, "model_type")
        if model not in HF_MODELS:
            raise CheckpointError(f"model_type: expected one of {', '.join(HF_MODELS)}. Received: model_type={model!r}")
        names = ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        sizes = {name: entry(config, name) for name in (*names, "v_head_dim")}
        missing = [name for name, size in sizes.items() if size is None]
        if missing:
            raise CheckpointError(
                f"config: expected {', '.join(sizes)}. Received: a config without {', '.join(missing)}"
            )
        # DeepSeek's rotary pairs are interleaved. Only transformers' V3 has an option for it, often not in config.json.
        interleaved = entry(config, "rope_interleave") is not False
        return cls(
            sizes["hidden_size"],
            sizes["num_attention_heads"],
            q_rank=entry(config, "q_lora_rank"),
            kv_rank=sizes["kv_lora_rank"],
            nope_dim=sizes["qk_nope_head_dim"],
            rope_dim=sizes["qk_rope_head_dim"],
            value_head_dim=sizes["v_head_dim"],
            bias=bool(entry(config, "attention_bias")),
            dropout=entry(config, "attention_dropout") or 0.0,  # the norms keep 1e-6 regardless of rms_norm_eps
            positions=Rope.from_hf(config, head_dim=sizes["qk_rope_head_dim"], interleaved=interleaved),
            path=path,
            kernel=kernel,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 0.006²) (DeepSeek-V2, section 3.1.2; V3, 4.2); set biases to 0 and norms to 1."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.006)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm):
                module.reset_parameters()

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
        path: Path | None = None,
        record: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionRecord]:
        """Compute the output of attention for each token.

        Args:
            query: [B, Q, M].
            key, value: None, or `query` again: the latents are made from one sequence.
            mask: which query may attend to which key, True = may: a mask of `headwise.masks`, or a bool tensor [Q, K],
                [H, Q, K] or [B, H, Q, K]. With a cache, K includes the tokens that it holds; the last query is at the
                position of the last key.
            cache: holds the latents of the earlier tokens, [B, 1, S, R + rope_dim]; the latents of the new tokens are
                appended to it.
            real: bool or integers [B, Q], True or 1 = a real token, False or 0 = padding. A cache remembers it.
            position_ids: [Q] or [B, Q], the positions of the tokens, if not 0, 1, 2 … (after the tokens in the cache;
                padding does not count).
            path: "auto", "expand" or "absorb" for this call; None = the `path` of the module.
            record: also return the record of the attention. Its weights are the same for both paths. Its keys are the
                keys that the path used: with "absorb" they are the latents, as one key head.

        Returns:
            [B, Q, M]; with `record=True` (output, AttentionRecord). Nothing is averaged over heads.

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
            CacheError: a cache of another module or batch, or a full cache.
        """
        check_input("query", query, self.dim, linear=self.out)
        for name, other in (("key", key), ("value", value)):
            if other is not None and other is not query:
                raise ArgumentError(
                    f"{name}: expected None or the query itself, latent attention reads its own sequence. "
                    f"Received: {name}={list(other.shape)}, another tensor. For cross-attention use MultiHeadAttention"
                )
        real = check_real(real, *query.shape[:2])
        path = self._asked_for(path)
        bind(cache, self)
        if cache is not None:
            check_mask(mask, query, self.num_heads, cache.size + query.shape[1])

        ids = compute_positions(query, cache, real, position_ids)
        q_nope, q_rope = self._queries(query, ids)
        latents = self._latents(query, ids)
        if cache is not None:
            (latents,) = cache.append(latents, real=real)
            real = cache.key_real
        # One key head, whose first R columns are the values: a view, so the cache is not copied.
        c = latents[..., : self.kv_rank]
        absorb = self._absorbs(path, query.shape[1], latents.shape[2])
        if absorb:
            w_uk, w_uv = self._up_projections()
            q, k, v = torch.cat((_by_head(q_nope, w_uk), q_rope), -1), latents, c
        else:
            q = torch.cat((q_nope, q_rope), -1)
            k_nope, v = self._heads(self.kv_up(c[:, 0])).split((self.nope_dim, self.value_head_dim), -1)
            k_rope = latents[..., self.kv_rank :].expand(-1, self.num_heads, -1, -1)
            k = torch.cat((k_nope, k_rope), -1)
        given: dict[str, Any] = {"mask": with_real(mask, real), "scale": self.scale, "kernel": self.kernel}
        given["dropout"] = self.dropout if self.training else 0.0
        y, found = attend("self", q, k, v, record=record, **given)
        y_BHQE = _by_head(y, w_uv.mT) if absorb else y
        out = self.out(y_BHQE.transpose(1, 2).flatten(2))
        return out if found is None else (out, found)

    def _queries(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the two parts of queries: [B, H, Q, nope_dim], and rotated [B, H, Q, rope_dim]. Equations 12-14."""
        q = self.q(x) if self.q_rank is None else self.q_up(self.q_norm(self.q_down(x)))
        q_nope, q_rope = self._heads(q).split((self.nope_dim, self.rope_dim), -1)
        return q_nope, self.positions.rotate(q_rope, ids)

    def _latents(self, x: Tensor, ids: Tensor) -> Tensor:
        """Compute what a cache stores of each token, [B, 1, S, R + rope_dim]: c, then the rotated key (eq. 9, 15)."""
        c, k_rope = self.kv_down(x)[:, None].split((self.kv_rank, self.rope_dim), -1)
        return torch.cat((self.kv_norm(c), self.positions.rotate(k_rope, ids)), -1)

    def _heads(self, y_BSX: Tensor) -> Tensor:
        """Split y [B, S, X] into heads: [B, H, S, X / H]."""
        return y_BSX.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _up_projections(self) -> tuple[Tensor, Tensor]:
        """Return W_UK [H, nope_dim, R] and W_UV [H, E, R], which are views of the weight of `kv_up`."""
        weight = self.kv_up.weight.unflatten(0, (self.num_heads, -1))
        w_uk, w_uv = weight.split((self.nope_dim, self.value_head_dim), 1)
        return w_uk, w_uv

    def _asked_for(self, path: Path | None) -> Path:
        """Return the path of this call: `path`, or the module's. ArgumentError if "absorb" cannot be computed."""
        path = self.path if path is None else path
        options.check_known("path", path, PATHS)
        if path == "absorb" and not self._can_absorb:
            raise ArgumentError(
                'path: "absorb" reads the weight of kv_up. Expected an nn.Linear. '
                f'Received: kv_up={type(self.kv_up).__name__}. Use path="expand", or merge adapters and wrappers'
            )
        return path

    @property
    def _can_absorb(self) -> bool:
        """Whether `kv_up` is a plain nn.Linear: a replacement (LoRA, quantised) computes more than its weight."""
        return type(self.kv_up) is nn.Linear

    def _absorbs(self, path: Path, q_len: int, k_len: int) -> bool:
        """Return whether a call with `q_len` queries and `k_len` keys is computed by the absorb path."""
        if path != "auto":
            return path == "absorb"
        up = self.kv_rank * (self.nope_dim + self.value_head_dim)
        expand = k_len * up + q_len * k_len * (self.head_dim + self.value_head_dim)
        absorb = q_len * up + q_len * k_len * (2 * self.kv_rank + self.rope_dim)
        return self._can_absorb and absorb < expand

    def extra_repr(self) -> str:
        """The options that the shapes of the parameters do not show."""
        shown = {
            "q_rank": self.q_rank,
            "kv_rank": self.kv_rank,
            "nope_dim": self.nope_dim,
            "rope_dim": self.rope_dim,
            "value_head_dim": self.value_head_dim,
            "scale": f"{self.scale:.6g}",
            "dropout": self.dropout or None,
            "path": None if self.path == "auto" else repr(self.path),
            "kernel": None if self.kernel == "auto" else repr(self.kernel),
        }
        return ", ".join([f"{self.dim}, {self.num_heads}"] + [f"{k}={v}" for k, v in shown.items() if v is not None])


def _by_head(x_BHQX: Tensor, weight_HXY: Tensor) -> Tensor:
    """Multiply x [B, H, Q, X] by each head's weight [H, X, Y]; a weight is read once for all examples, not copied."""
    batch, _, q_len, _ = x_BHQX.shape
    products = torch.bmm(x_BHQX.transpose(0, 1).flatten(1, 2), weight_HXY)
    return products.unflatten(1, (batch, q_len)).transpose(0, 1)


def choose_rope(positions: Any, kind: type[Any], num_heads: int, rope_dim: int, **made: Any) -> Any:
    """Return `positions`, or DeepSeek's RoPE for None. ArgumentError if it is not of class `kind`, or does not fit."""
    if positions is None:
        return kind(rope_dim, interleaved=True, **made)
    if not isinstance(positions, kind):
        expected = f"{kind.__module__.rpartition('.')[0]}.Rope"
        raise ArgumentError(f"positions: expected a {expected}. Received: positions={type(positions).__name__}")
    if positions.scaling is not None and positions.scaling.depends_on_length:
        raise ArgumentError(
            f"positions: expected frequencies that do not depend on the length, because the cache holds rotated keys. "
            f"Received: positions={positions.scaling}. Use Yarn, as DeepSeek does"
        )
    positions.check(num_heads, rope_dim)
    return positions


def default_scale(head_dim: int, scaling: RopeScaling | None) -> float:
    """Return the default scale of the scores: 1/√D, times YaRN's softmax_factor if `scaling` is Yarn."""
    return head_dim**-0.5 * (scaling.softmax_factor if isinstance(scaling, Yarn) else 1.0)


def _rename(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Rename the entries of Hugging Face's and DeepSeek's state dicts (a hook). CheckpointError if one occurs twice."""
    for ours, others in OTHER_NAMES.items():
        for kind in ("weight", "bias"):
            found = take(state, prefix, (ours, *others), kind)
            if found is not None:
                state[f"{prefix}{ours}.{kind}"] = found
