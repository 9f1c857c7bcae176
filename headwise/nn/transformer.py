"""Stacks of transformer layers, `Encoder` and `Decoder`.

An `Encoder` with a causal mask and a cache is a decoder-only model (GPT). A `Decoder` also reads a memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.cache import Cache, bind
from headwise.nn.from_torch import check_class
from headwise.nn.inputs import check_alone, check_input, check_memory, compute_positions, with_real
from headwise.nn.real import check_real
from headwise.nn.residual import LayerOptions, find_child, has_positions, reset_parts
from headwise.nn.trace import Trace
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer
from headwise.records import Seen

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

MakeAttention = Callable[[], nn.Module]


class _Stack(nn.Module):
    """A stack of layers, with an optional norm after the last layer."""

    _kind: ClassVar[type[EncoderLayer | DecoderLayer]]
    _of_torch: ClassVar[type[nn.Module]]  # PyTorch's stack of these layers

    def __init__(
        self, layers: Iterable[EncoderLayer | DecoderLayer], norm: nn.Module | None, checkpointing: bool
    ) -> None:
        super().__init__()
        layers = list(layers)
        if not layers:
            raise ArgumentError("layers: expected one or more. Received: layers=[]")
        widths = [layer.dim for layer in layers]
        if len(set(widths)) > 1:
            raise ArgumentError(f"layers: expected the same dim in all layers. Received: layers with dim {widths}")
        self.dim = widths[0]
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.checkpointing = checkpointing

    @classmethod
    def from_layers(
        cls,
        layers: Iterable[EncoderLayer | DecoderLayer],
        norm: nn.Module | None = None,
        *,
        checkpointing: bool = False,
    ) -> Self:
        """Make a stack of these layers, which may differ from each other; `norm` is applied after the last layer."""
        stack = cls.__new__(cls)
        _Stack.__init__(stack, layers, norm, checkpointing)
        return stack

    @classmethod
    def from_torch(cls, module: nn.Module, *, kernel: str = "auto") -> Self:
        """A stack with the layers and weights of PyTorch's stack. Inputs are [B, S, M] whatever its batch_first.

        PyTorch's masks are True where attention is *not* allowed: pass `mask=~attn_mask`, `real=~key_padding_mask`.

        Args:
            module: an nn.TransformerEncoder for `Encoder`, an nn.TransformerDecoder for `Decoder`.

        Raises:
            ArgumentError: a module of another class, or an activation or an option without an equivalent here.
        """
        check_class(module, cls._of_torch)
        given: Any = module
        layers = [cls._kind.from_torch(layer, kernel=kernel) for layer in given.layers]
        return cls.from_layers(layers, copy.deepcopy(given.norm)).train(module.training)

    def reset_parameters(self) -> None:
        """Initialise all layers and the norm again."""
        reset_parts([*self.layers, *([] if self.norm is None else [self.norm])])

    def extra_repr(self) -> str:
        """The options that the submodules do not show."""
        return f"{self.dim}" + (", checkpointing=True" if self.checkpointing else "")

    def _run(
        self,
        x: Tensor,
        mask: Mask | Tensor | None,
        cache: Cache | None,
        real: Tensor | None,
        position_ids: Tensor | None,
        record: bool,
        **memory: Any,
    ) -> Any:
        """Run all layers. The mask, the real tokens and the positions are prepared once, for all layers."""
        real = check_real(real, *x.shape[:2])
        knows = [layer.has_positions for layer in self.layers]
        bind(cache, self)
        if cache is not None:  # each layer's child remembers which tokens are real
            mask = with_real(mask, None)
        else:
            if real is not None and any(knows):
                position_ids = compute_positions(x, None, real, position_ids)
            mask, real = with_real(mask, real), None
        # A call with a cache must not run twice: the second run would append its tokens again.
        runs_again = self.checkpointing and self.training and torch.is_grad_enabled() and cache is None
        trace = Trace(record)
        for i, layer in enumerate(self.layers):
            given: dict[str, Any] = {"mask": mask, "cache": find_child(cache, f"layers.{i}"), "real": real, **memory}
            # A layer without positions refuses position ids, so only layers with positions get them. If no layer has
            # positions, all get the ids, so that a layer refuses them.
            given["position_ids"] = position_ids if knows[i] or not any(knows) else None
            run = partial(trace, layer, f"layers.{i}")
            x = _checkpointed(run, x, given) if runs_again else run(x, **given)
        return trace.result(x if self.norm is None else self.norm(x))


def _checkpointed(run: Callable[..., Tensor], x: Tensor, given: dict[str, Any]) -> Tensor:
    """Compute `run(x, **given)` with gradient checkpointing: nothing is stored, and backward computes it again.

    Masks, flags and ids in `given` are copied, in case the caller changes them before backward. All other tensors are
    passed to torch separately: torch raises an error if they were changed before backward.
    """
    for name, value in given.items():
        if isinstance(value, Mask):
            given[name] = value.owned()
        elif isinstance(value, Tensor) and not value.is_floating_point():
            given[name] = value.clone()
    places = {name: id(value) for name, value in given.items() if isinstance(value, Tensor)}
    tensors = {id(value): value for value in given.values() if isinstance(value, Tensor)}

    def again(x: Tensor, *saved: Tensor) -> Tensor:
        now = dict(zip(tensors, saved, strict=True))
        return run(x, **{**given, **{name: now[place] for name, place in places.items()}})

    out: Tensor = checkpoint(again, x, *tensors.values(), use_reentrant=False)
    return out


class Encoder(_Stack):
    """Several `EncoderLayer`s. Vaswani et al. 2017, figure 1, left; with a causal mask and a cache, a GPT.

    >>> encoder = Encoder(512, num_layers=6, num_heads=8)
    >>> gpt = Encoder(512, num_layers=6, norm="rms", activation="swiglu", bias=False,
    ...     attention=lambda: MultiHeadAttention(512, 8, num_kv_heads=2, bias=False, positions=positions.Rope(64)))
    >>> y = gpt(x, mask=masks.causal(), cache=cache)                 # x, y: [B, S, M]
    >>> y, seen = encoder(x, record=True)                            # seen["layers.0.attention"].weights()

    Args:
        dim: M, the dimensions of the input and of the output.
        num_layers: the number of layers.
        num_heads: H of every layer's `MultiHeadAttention`. Pass this or `attention`.
        attention: a function that makes an attention module; it is called once for each layer.
        drop_path: the probability that an example skips a branch of the last layer; in layer l of L the probability is
            l / L times this (Huang et al. 2016, equation 4).
        final_norm: whether there is a norm after the last layer; None = only with `norm_first`, which needs it.
        checkpointing: in training keep only the input of each layer, and run the layer again for its gradients
            (Chen et al. 2016). Less memory, the same numbers, dropout included. Calls with a cache are not
            checkpointed.
        layer_options: ffn_dim, norm, norm_first, activation, dropout, attention_dropout, ffn_dropout, norm_eps, bias,
            device, dtype: as for `EncoderLayer`.

    `Encoder.from_layers` takes layers that differ from each other. The submodules are `layers` and `norm`.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option.
    """

    _kind, _of_torch = EncoderLayer, nn.TransformerEncoder

    def __init__(
        self,
        dim: int,
        *,
        num_layers: int,
        num_heads: int | None = None,
        attention: MakeAttention | None = None,
        drop_path: float = 0.0,
        final_norm: bool | None = None,
        checkpointing: bool = False,
        **layer_options: Unpack[LayerOptions],
    ) -> None:
        make = _maker("attention", attention)
        drops = _drop_paths(drop_path, num_layers)
        layers = [EncoderLayer(dim, num_heads, attention=make(), drop_path=drop, **layer_options) for drop in drops]
        super().__init__(layers, _final_norm(final_norm, layers[-1]), checkpointing)

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
    ) -> Tensor | tuple[Tensor, Seen]:
        """Compute the output of the stack for a sequence; arguments as in `EncoderLayer.forward`.

        With a cache each layer uses a child of this cache, so one `Cache` serves the whole stack.
        """
        check_alone(key, value)
        check_input("query", query, self.dim)
        return self._run(query, mask, cache, real, position_ids, record)


class Decoder(_Stack):
    """Several `DecoderLayer`s, which all read one memory. Vaswani et al. 2017, figure 1, right.

    >>> decoder = Decoder(512, num_layers=6, num_heads=8)
    >>> y = decoder(x, memory, mask=masks.causal(), memory_real=real)    # x, y: [B, Q, M]; memory: [B, K, M]

    Args:
        memory_dim: dimensions of the memory; None = M.
        self_attention, cross_attention: functions that make an attention module, called once for each layer; instead of
            `num_heads`.
        dim, num_layers, num_heads, drop_path, final_norm, checkpointing, layer_options: as for `Encoder`.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option.
    """

    _kind, _of_torch = DecoderLayer, nn.TransformerDecoder

    def __init__(
        self,
        dim: int,
        *,
        num_layers: int,
        num_heads: int | None = None,
        memory_dim: int | None = None,
        self_attention: MakeAttention | None = None,
        cross_attention: MakeAttention | None = None,
        drop_path: float = 0.0,
        final_norm: bool | None = None,
        checkpointing: bool = False,
        **layer_options: Unpack[LayerOptions],
    ) -> None:
        own, other = _maker("self_attention", self_attention), _maker("cross_attention", cross_attention)
        layers = [
            DecoderLayer(
                *(dim, num_heads),
                memory_dim=memory_dim,
                self_attention=own(),
                cross_attention=other(),
                drop_path=drop,
                **layer_options,
            )
            for drop in _drop_paths(drop_path, num_layers)
        ]
        super().__init__(layers, _final_norm(final_norm, layers[-1]), checkpointing)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
        *,
        memory_mask: Mask | Tensor | None = None,
        real: Tensor | None = None,
        memory_real: Tensor | None = None,
        position_ids: Tensor | None = None,
        record: bool = False,
    ) -> Tensor | tuple[Tensor, Seen]:
        """Compute the output of the stack for a sequence and a memory; arguments as in `DecoderLayer.forward`.

        With a cache each layer uses a child of this cache, so one `Cache` serves the whole stack.
        """
        check_input("query", query, self.dim)
        memory = check_memory(key)
        memory_real = check_real(memory_real, *memory.shape[:2], name="memory_real")
        if not any(has_positions(layer.cross_attention) for layer in self.layers):  # positions do not count padding
            memory_mask, memory_real = with_real(memory_mask, memory_real, memory=True), None
        given = {"key": memory, "value": value, "memory_mask": memory_mask, "memory_real": memory_real}
        return self._run(query, mask, cache, real, position_ids, record, **given)


def _maker(name: str, make: MakeAttention | None) -> Callable[[], nn.Module | None]:
    if isinstance(make, nn.Module) or not (make is None or callable(make)):
        raise ArgumentError(
            f"{name}: expected a function that makes an attention module for each layer. Received: "
            f"{name}={type(make).__name__}. For a module write lambda: {type(make).__name__}(...)"
        )
    return (lambda: None) if make is None else make


def _drop_paths(last: float, num_layers: int) -> list[float]:
    options.whole("num_layers", num_layers)
    last = options.probability("drop_path", last)
    return [last * (i + 1) / num_layers for i in range(num_layers)]


def _final_norm(wanted: bool | None, layer: EncoderLayer | DecoderLayer) -> nn.Module | None:
    """Return a copy of a norm of `layer` if it is `wanted` (None = wanted if the layer is norm-first), else None."""
    return copy.deepcopy(layer.mlp_norm) if wanted or (wanted is None and layer.norm_first) else None
