"""The peers that a module can be compared with by name: `torch`, `headwise`, `keras`, and models of transformers.

Each is built in the size of the module that it is compared with, and comes with a Spec.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.spec import Spec
from headwise.doctor.comparing.dimensions import Dimensions
from headwise.doctor.targets.load import said
from headwise.errors import DoctorError
from headwise.extras import install

Peer = tuple[nn.Module, Spec]
NAMES = ("torch", "headwise", "keras", "hf:NAME")


def is_peer(name: str) -> bool:
    """Whether a text names a peer rather than a file."""
    return name in NAMES[:3] or name.startswith("hf:")


def build_peer(name: str, sizes: Dimensions, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> Peer:
    """The peer of that name, with random weights, and how it is called.

    Raises:
        DoctorError: there is no peer of that name, its package is not installed, or it does not support these sizes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name.startswith("hf:"):
            module, spec = _transformers(name, sizes)
        elif name in _PEERS:
            module, spec = _PEERS[name](sizes, dtype)
        else:
            raise DoctorError(f"compare: expected a file.py:Class, {', '.join(NAMES)}. Received: {name!r}")
        return module.to(dtype).eval(), spec


def _torch(sizes: Dimensions, dtype: torch.dtype) -> Peer:
    width = sizes.heads * sizes.head
    if not width == sizes.heads * sizes.value_head == sizes.query == sizes.output:
        raise DoctorError(
            f"nn.MultiheadAttention needs a width equal to heads times head width. Received: width {sizes.query}, "
            f"{sizes.heads} heads of {sizes.head}. Compare with headwise, which has no such limit"
        )
    wide = {"kdim": sizes.key, "vdim": sizes.value} if {sizes.key, sizes.value} != {width} else {}
    module = nn.MultiheadAttention(width, sizes.heads, batch_first=True, **wide)
    return module, Spec(batch_first=True, heads=sizes.heads)


def _headwise(sizes: Dimensions, dtype: torch.dtype) -> Peer:
    from headwise.nn import MultiHeadAttention

    if sizes.output != sizes.query:
        raise DoctorError(
            f"headwise's MultiHeadAttention has an output of its input's width, {sizes.query}. Received: {sizes.output}"
        )
    module = MultiHeadAttention(
        sizes.query,
        sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head,
        value_head_dim=sizes.value_head,
        kdim=sizes.key,
        vdim=sizes.value,
    )
    return module, Spec(batch_first=True, heads=sizes.heads, kv_heads=sizes.kv_heads)


# --- Keras -----------------------------------------------------------------------------------------------------------


def _keras(sizes: Dimensions, dtype: torch.dtype) -> Peer:
    if importlib.util.find_spec("keras") is None:
        raise DoctorError(
            'keras is not installed: {command}, or compare with "torch" or "headwise"', command=install("keras")
        )
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    import keras

    if keras.backend.backend() != "torch":
        raise DoctorError(
            f"keras runs on {keras.backend.backend()} in this process; set KERAS_BACKEND=torch before it is imported"
        )
    spec = Spec(takes="qkv", batch_first=True, heads=sizes.heads, mask="allowed", mask_shape="BQK")
    return KerasAttention(sizes, dtype), spec


class KerasAttention(nn.Module):
    """`keras.layers.MultiHeadAttention` on the torch backend as a torch module; its weights have their Keras names."""

    def __init__(self, sizes: Dimensions, dtype: torch.dtype) -> None:
        super().__init__()
        self._made = sizes, dtype
        self.num_heads = sizes.heads
        import keras

        layer = keras.layers.MultiHeadAttention(
            sizes.heads,
            sizes.head,
            value_dim=sizes.value_head,
            output_shape=sizes.output,
            dtype=str(dtype).removeprefix("torch."),
        )
        layer.build((None, None, sizes.query), (None, None, sizes.value), (None, None, sizes.key))
        object.__setattr__(self, "_layer", layer)  # not a submodule: the names of its weights repeat their paths
        for variable in sorted(layer.weights, key=lambda x: x.path.endswith("bias")):
            _, part, leaf = variable.path.rsplit("/", 2)
            if not hasattr(self, part):
                self.add_module(part, nn.Module())
            parameter = variable.value
            assert isinstance(parameter, nn.Parameter)
            with torch.no_grad():
                nn.init.normal_(parameter, std=0.1 if leaf == "bias" else sizes.query**-0.5)
            self.get_submodule(part).register_parameter(leaf, parameter)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """attention_mask: bool [B, Q, K], True = may attend."""
        layer: Any = self._layer
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*softmax over axis")  # of a single key
            output, weights = layer(
                query, value, key, attention_mask=attention_mask, return_attention_scores=True, training=False
            )
        return output, weights

    def __deepcopy__(self, memo: dict[int, Any]) -> KerasAttention:
        twin = KerasAttention(*self._made)
        twin.load_state_dict(self.state_dict())
        return twin.train(self.training)


# --- Transformers ----------------------------------------------------------------------------------------------------


def _transformers(name: str, sizes: Dimensions) -> Peer:
    """The first attention layer of a small model of that kind."""
    if importlib.util.find_spec("transformers") is None:
        raise DoctorError(f"transformers is not installed: {install('transformers')}")
    import transformers

    from headwise.capture.sites import attention_modules

    kind = name.removeprefix("hf:")
    if kind not in transformers.CONFIG_MAPPING:
        near = [x for x in sorted(transformers.CONFIG_MAPPING) if kind and x.startswith(kind[:3])][:5]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise DoctorError(f"transformers {transformers.__version__} has no model called {kind!r}{hint}")
    if sizes.key != sizes.query or sizes.value != sizes.query:
        raise DoctorError(f"{name} is self-attention only; expected a module with one input of one width")
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        config = _config(kind, sizes)
        model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    except (ValueError, TypeError, AttributeError, RuntimeError, ImportError, KeyError, AssertionError) as error:
        wide = f"{sizes.query} wide with {sizes.heads} heads"
        raise DoctorError(f"{name} cannot be built with sizes {wide}: {said(error)}") from error
    finally:
        transformers.logging.set_verbosity(level)
    path, layer = next(iter(attention_modules(model)), ("", None))
    if layer is None:
        raise DoctorError(f"{name}: no submodule of {type(model).__name__} is called attention")
    module = HuggingFaceAttention(model, path, layer)
    spec = Spec(
        takes="self", batch_first=True, heads=sizes.heads, kv_heads=sizes.kv_heads, mask="allowed", mask_shape="B1QK"
    )
    return module, spec


def _config(kind: str, sizes: Dimensions) -> Any:
    import transformers

    usual = transformers.AutoConfig.for_model(kind)
    wanted: dict[str, Any] = {
        **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), sizes.query),
        **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), sizes.heads),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), sizes.heads),
        **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 1),
        **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 1),
        **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "hidden_dim", "ffn_dim"), 2 * sizes.query),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2 * sizes.query),
        **dict.fromkeys(("attention_bias", "qkv_bias", "use_bias"), True),
        **{"num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head, "d_kv": sizes.head},
        **{"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 512},
    }
    aliases = set(getattr(usual, "attribute_map", {}))
    known = {name: x for name, x in wanted.items() if hasattr(usual, name) and name not in aliases}
    return transformers.AutoConfig.for_model(kind, **known)


class HuggingFaceAttention(nn.Module):
    """An attention layer of transformers with the arguments that its model passes: rotary phases, an additive mask."""

    def __init__(self, model: nn.Module, path: str, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        # The output projection is next to the layer in BERT.
        parent = model.get_submodule(path.rpartition(".")[0])
        beside = getattr(getattr(parent, "output", None), "dense", None)
        inside = any(name.split(".")[0] in _OUTPUTS for name, _ in layer.named_parameters())
        self.dense = beside if isinstance(beside, nn.Linear) and not inside else None
        rotary = [x for x in model.modules() if "rotary" in type(x).__name__.lower()]
        self.rotary = rotary[0] if rotary else None
        self._takes = tuple(inspect.signature(layer.forward).parameters)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """mask: bool [B, 1, Q, K], True = may attend."""
        given: dict[str, Any] = {}
        if self.rotary is not None and "position_embeddings" in self._takes:
            positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
            given["position_embeddings"] = self.rotary(hidden_states, positions)
        if "output_attentions" in self._takes:
            given["output_attentions"] = True
        if "position_ids" in self._takes:
            given["position_ids"] = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        if mask is not None:
            name = "attention_mask" if "attention_mask" in self._takes else "mask"
            lowest = torch.finfo(hidden_states.dtype).min
            given[name] = torch.zeros(mask.shape).to(hidden_states).masked_fill(~mask, lowest)
        found = self.layer(hidden_states, **given)
        output, *rest = found if isinstance(found, tuple) else (found,)
        if self.dense is not None:
            output = self.dense(output)
        weights = next((x for x in rest if isinstance(x, Tensor) and x.ndim == 4), None)
        return output, weights


_OUTPUTS = ("o_proj", "c_proj", "out_proj", "dense", "o", "out_lin", "wo", "to_out", "proj", "projection", "output")
_PEERS: dict[str, Callable[[Dimensions, torch.dtype], Peer]] = {
    "torch": _torch,
    "headwise": _headwise,
    "keras": _keras,
}
