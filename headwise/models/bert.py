"""BERT, the whole encoder, of headwise's layers.

Devlin et al. 2018, arXiv:1810.04805. Any Hugging Face BERT checkpoint loads into it, without transformers.
Dimension letters: B batch, S sequence, M model, H heads, D head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise import masks
from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.models import checkpoint
from headwise.nn.feed_forward import Activation
from headwise.nn.real import as_real
from headwise.nn.transformer_layer import EncoderLayer

if TYPE_CHECKING:
    from headwise.models.sentence import SentenceEncoder

ACTIVATIONS: dict[str, Activation] = {  # Hugging Face's name: ours
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT; the defaults are BERT-base.

    `initializer_range` is the deviation of the weights that training begins with. 0.02 suits widths near 768; a narrow
    model whose scores then all begin near 0 learns sooner from `dim ** -0.5`.

    Raises:
        ArgumentError: a value that no BERT can have.
    """

    vocab_size: int = 30522
    dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    ffn_dim: int = 3072
    max_positions: int = 512
    num_token_types: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    pooler: bool = True
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ArgumentError(f"{field.name}: expected a whole number above 0. Received: {field.name}={value!r}")
            if field.type == "float" and (not isinstance(value, int | float) or not 0 <= value < 1):
                raise ArgumentError(
                    f"{field.name}: expected a number from 0 to 1, 1 excluded. Received: {field.name}={value!r}"
                )
        if self.dim % self.num_heads:
            raise ArgumentError(f"dim: expected a multiple of num_heads={self.num_heads}. Received: dim={self.dim}")
        if self.hidden_act not in list(ACTIVATIONS):
            known = ", ".join(ACTIVATIONS)
            raise ArgumentError(f"hidden_act: expected one of {known}. Received: hidden_act={self.hidden_act!r}")

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> BertConfig:
        """Reads a Hugging Face config.json; what it leaves out is as in BERT-base.

        Raises:
            CheckpointError: it describes another architecture, or a BERT that this one is not.
        """
        if (model_type := config.get("model_type", "bert")) != "bert":
            raise CheckpointError(f"model_type: expected a BERT encoder. Received: model_type={model_type!r}")
        if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
            raise CheckpointError(
                f"position_embedding_type: expected absolute positions. Received: position_embedding_type={positions!r}"
            )
        for flag in ("is_decoder", "add_cross_attention"):
            if config.get(flag):
                raise CheckpointError(f"{flag}: expected a BERT encoder, not a decoder. Received: {flag}=true")
        try:
            return cls(**{ours: config[theirs] for ours, theirs in CONFIG_NAMES.items() if theirs in config})
        except ArgumentError as cause:
            raise CheckpointError(f"config.json: {cause}") from cause


class Bert(nn.Module):
    """A BERT encoder. `Bert(config)` starts from random weights, `Bert.from_pretrained` from a checkpoint's.

    >>> bert = Bert.from_pretrained(default_model())
    >>> hidden_BSM = bert(torch.tensor([[101, 7592, 102]]))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.folder: Path | None = None  # of the checkpoint that it came from
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(_layer(config) for _ in range(config.num_layers))
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.apply(partial(_initialise, std=config.initializer_range))

    @classmethod
    def from_pretrained(
        cls, path_or_id: str | Path, *, dtype: torch.dtype = torch.float32, dropout: float | None = None
    ) -> Bert:
        """A checkpoint's encoder and pooler on the CPU, in eval mode; what it has on top of them (`cls.*`) is left out.

        `path_or_id` is a local folder with config.json and safetensors, or the name of a model on the Hugging Face hub;
        `dropout`, of attention too, takes the place of what the checkpoint was trained with.

        Raises:
            ArgumentError: a dropout that is not from 0 to 1, 1 excluded.
            CheckpointError: no such checkpoint, a damaged one, or one that is not a BERT encoder.
        """
        folder = checkpoint.resolve(path_or_id)
        config = BertConfig.from_json(checkpoint.read_config(folder))
        if dropout is not None:
            config = replace(config, dropout=dropout, attention_dropout=dropout)
        tensors = _encoder_tensors(checkpoint.load_tensors(folder))
        _check_sizes(config, tensors)
        with torch.device("meta"), _NoInitialisation():  # no memory and no numbers for what is about to be replaced
            bert = cls(replace(config, pooler="pooler.dense.weight" in tensors))
        bert.load_state_dict({name: t.to(dtype) for name, t in _match(bert, tensors).items()}, assign=True)
        bert.folder = folder
        return bert.eval()

    def forward(self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """The last hidden state.

        Args:
            input_ids: [B, S], whole numbers below `config.vocab_size`.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding, on either side: what a
                tokenizer of Hugging Face calls attention_mask. None = all tokens are real. The hidden states *at*
                padding are unspecified: do not read them.
            token_type_ids: [B, S], which sentence of a pair each token is from. Default: all 0.

        Returns:
            [B, S, M]

        Raises:
            ShapeError: an argument of another shape, or more than `config.max_positions` tokens.
            DtypeError: an argument of another dtype.
            ArgumentError: an id that has no embedding, or values of `real` other than 0 and 1.
        """
        config = self.config
        check_ids("input_ids", input_ids, config.vocab_size)
        if input_ids.shape[1] > config.max_positions:
            raise ShapeError(
                f"input_ids: expected at most {config.max_positions} tokens, the model's limit. Received: "
                f"input_ids={list(input_ids.shape)}. Cut or split the text"
            )
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        elif token_type_ids.shape != input_ids.shape:
            raise ShapeError(
                f"token_type_ids: expected {list(input_ids.shape)}, as input_ids. Received: "
                f"token_type_ids={list(token_type_ids.shape)}"
            )
        check_ids("token_type_ids", token_type_ids, config.num_token_types)

        real = as_real(real, *input_ids.shape)
        # Without padding there is no mask, so that no layer has to look for it.
        no_padding = real is None or (not torch.compiler.is_compiling() and bool(real.all()))
        mask = None if real is None or no_padding else masks.padding(real)
        return self.through(self.embeddings(input_ids, token_type_ids), mask)

    def through(self, x_BSM: Tensor, mask: masks.Mask | None) -> Tensor:
        """The hidden states [B, S, M] after all layers, from those of the embeddings [B, S, M]."""
        for layer in self.layers:
            x_BSM = layer(x_BSM, mask=mask)
        return x_BSM

    def pool(self, hidden_BSM: Tensor) -> Tensor:
        """The output of the pooler, [B, M], from the hidden state at position 0, which is [CLS].

        Raises:
            CheckpointError: this model came without a pooler.
        """
        if self.pooler is None:
            raise CheckpointError("the checkpoint has no pooler. Use the mean of the hidden states, or that of [CLS]")
        return torch.tanh(self.pooler(hidden_BSM[:, 0]))

    @cached_property
    def sentences(self) -> SentenceEncoder:
        """What makes vectors of texts: the tokenizer and the settings of the checkpoint.

        Raises:
            CheckpointError: as of `encode`.
        """
        from headwise.models.sentence import SentenceEncoder

        return SentenceEncoder.of(self)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_tokens: int | None = None,
        dtype: str | None = None,
        progress: bool = False,
    ) -> Tensor:
        """One vector for each text, as sentence-transformers makes it of this checkpoint, on the CPU.

        The checkpoint's modules.json says how: pooling, further layers, length 1. Without that file the vector is the
        mean over all tokens, and a warning says so. A text that is longer than the checkpoint's limit is cut; a
        warning says how many were.

        >>> Bert.from_pretrained(default_model()).encode(["a film", "a movie"]).shape
        torch.Size([2, 384])

        Args:
            texts: N texts, which may be empty; or one, for one vector.
            prompt_name: of the checkpoint's prompts, the one to put before each text; default: its default prompt.
            prompt: what to put before each text, such as "query: ".
            batch_tokens: at most so many tokens in one pass, or one text that is longer. Default: 4096.
            dtype: what the encoder computes in: "float32", "bfloat16" or "int8". Default: as its weights.
            progress: whether to show a bar on a terminal, and at the end the speed, on standard error.

        Returns:
            float32 [N, M], in the order of the texts; [M] for one. M is `sentences.dim`.

        Raises:
            DtypeError: something that is no text, such as None or NaN; a Bert that is not on the CPU.
            ArgumentError: half a surrogate pair in a text, no such prompt, or an option with an invalid value.
            CheckpointError: this Bert came from no checkpoint; or it has no tokenizer, or settings that headwise does
                not know.
        """
        return self.sentences.encode(
            texts, prompt_name=prompt_name, prompt=prompt, batch_tokens=batch_tokens, dtype=dtype, progress=progress
        )


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.dim)
        self.position = nn.Embedding(config.max_positions, config.dim)
        self.token_type = nn.Embedding(config.num_token_types, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids_BS: Tensor, types_BS: Tensor, places_S: Tensor | None = None) -> Tensor:
        """`places_S`: the position of each token; None = 0, 1, 2 …"""
        position_SM = self.position.weight[: ids_BS.shape[1]] if places_S is None else self.position(places_S)
        return self.dropout(self.norm(self.word(ids_BS) + self.token_type(types_BS) + position_SM))


def _layer(config: BertConfig) -> EncoderLayer:
    """As in 2018 the norm comes after each sum, not before each branch."""
    return EncoderLayer(
        *(config.dim, config.num_heads),
        ffn_dim=config.ffn_dim,
        norm_first=False,
        activation=ACTIVATIONS[config.hidden_act],
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        ffn_dropout=0.0,
        norm_eps=config.layer_norm_eps,
    )


def _initialise(module: nn.Module, std: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class _NoInitialisation(TorchFunctionMode):
    """Skips `torch.nn.init`, which computes nothing on the meta device but imports 800 modules there, in a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


# --- What forward() accepts -------------------------------------------------------------------------------------------


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Raise unless `ids` are integers [B, S] from 0 to size - 1. While torch.compile traces, values are not checked."""
    if ids.ndim != 2:
        raise ShapeError(f"{name}: expected [B, S]. Received: {name}={list(ids.shape)}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise DtypeError(f"{name}: expected int64 or int32. Received: {name}={ids.dtype}")
    if ids.numel() == 0 or torch.compiler.is_compiling():
        return
    # An index error of torch (on a GPU it ends the process) says neither which id is wrong nor what the limit is.
    lowest, highest = (int(bound) for bound in ids.aminmax())
    if lowest < 0 or highest >= size:
        raise ArgumentError(
            f"{name}: expected ids from 0 to {size - 1}. Received: {name} with {lowest if lowest < 0 else highest}. "
            "Do the tokenizer and the model come from the same checkpoint?"
        )


# --- Reading a checkpoint ---------------------------------------------------------------------------------------------

CONFIG_NAMES = {  # ours: Hugging Face's
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
    "hidden_act": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}

_TENSOR_NAMES = {  # ours: Hugging Face's, which of a fused projection are several
    "embeddings.word": ["embeddings.word_embeddings"],
    "embeddings.position": ["embeddings.position_embeddings"],
    "embeddings.token_type": ["embeddings.token_type_embeddings"],
    "embeddings.norm": ["embeddings.LayerNorm"],
    "attention.qkv": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "attention.out": ["attention.output.dense"],
    "attention_norm": ["attention.output.LayerNorm"],
    "mlp.up": ["intermediate.dense"],
    "mlp.down": ["output.dense"],
    "mlp_norm": ["output.LayerNorm"],
    "pooler": ["pooler.dense"],
}


def checkpoint_names(ours: str) -> list[str]:
    """`layers.3.mlp.up.weight` is `encoder.layer.3.intermediate.dense.weight` in a checkpoint."""
    module, _, parameter = ours.rpartition(".")
    layer = ""
    if module.startswith("layers."):
        _, number, module = module.split(".", 2)
        layer = f"encoder.layer.{number}."
    return [f"{layer}{name}.{parameter}" for name in _TENSOR_NAMES[module]]


def _encoder_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's and pooler's, under the names of a bare BertModel saved today."""
    prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
    named = {
        # Checkpoints converted from TensorFlow call the scale and shift of a LayerNorm gamma and beta.
        name.removeprefix(prefix)
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    parts = ("embeddings.", "encoder.", "pooler.")
    buffers = {"embeddings.position_ids", "embeddings.token_type_ids"}  # 0, 1, 2... and 0, 0, 0...: nothing to learn
    return {name: tensor for name, tensor in named.items() if name.startswith(parts) and name not in buffers}


def _check_sizes(config: BertConfig, tensors: dict[str, Tensor]) -> None:
    """CheckpointError if the config speaks of a model of another size, before one of that size is built."""
    layers = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
    sizes = {"num_layers": (config.num_layers, len(layers))}
    for name, attributes in _SIZES.items():
        if name in tensors and tensors[name].ndim == len(attributes):
            sizes |= {
                attribute: (getattr(config, attribute), size)
                for attribute, size in zip(attributes, tensors[name].shape, strict=True)
            }
    for attribute, (said, size) in sizes.items():
        if said != size:
            raise CheckpointError(f"config.json: expected {attribute}={size}, as the tensors have. Received: {said}")


_SIZES = {  # tensors -> what their dimensions are called in the config
    "embeddings.word_embeddings.weight": ("vocab_size", "dim"),
    "embeddings.position_embeddings.weight": ("max_positions", "dim"),
    "embeddings.token_type_embeddings.weight": ("num_token_types", "dim"),
    "encoder.layer.0.intermediate.dense.weight": ("ffn_dim", "dim"),
}


def _match(bert: Bert, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each of the model's parameters by our name, once every tensor has one place and every place one tensor."""
    places = {ours: checkpoint_names(ours) for ours, _ in bert.named_parameters()}
    wanted = [name for names in places.values() for name in names]
    if missing := [name for name in wanted if name not in tensors]:
        raise CheckpointError(f"the checkpoint lacks {_some(missing)} of a BERT with {bert.config.num_layers} layers")
    if extra := [name for name in tensors if name not in set(wanted)]:
        raise CheckpointError(f"the checkpoint has {_some(extra)}, which the model of its config.json does not have")
    for ours, parameter in bert.named_parameters():
        rows, *others = parameter.shape
        shape = [rows // len(places[ours]), *others]
        for name in places[ours]:
            if list(tensors[name].shape) != shape or not tensors[name].is_floating_point():
                raise CheckpointError(
                    f"{name}: config.json makes it {shape} of floating-point numbers, "
                    f"the checkpoint has {list(tensors[name].shape)} of {tensors[name].dtype}"
                )
    return {
        ours: tensors[names[0]] if len(names) == 1 else torch.cat([tensors[name] for name in names])
        for ours, names in places.items()
    }


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{len(names)} tensors ({shown}, ...)"
