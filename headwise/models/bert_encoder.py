"""The network of BERT, made of headwise's layers, and of similar encoders such as RoBERTa and ModernBERT.

Devlin et al. 2018, arXiv:1810.04805. Hugging Face checkpoints load into it, without transformers. `BertConfig` states
the differences between the families, and `headwise.models.families` the parameter names in their checkpoints.
Dimension letters: B batch, S sequence, M model, E embedding, H heads, D head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise import masks
from headwise.errors import CheckpointError, ShapeError
from headwise.models import checkpoint
from headwise.models.families import FAMILIES, BertConfig, read_config
from headwise.models.families.config import ACTIVATIONS, GATED
from headwise.models.families.tensors import check_sizes, match
from headwise.models.ids import check_ids
from headwise.models.packed import Packable
from headwise.models.packed_encoder import pack_encoder
from headwise.native.linear import Dtype, Encoder
from headwise.nn.dropout import Dropout
from headwise.nn.multi_head import MultiHeadAttention
from headwise.nn.norm import LayerNorm
from headwise.nn.positions import Positions, Rope, T5Buckets
from headwise.nn.real import check_real
from headwise.nn.transformer_layer import EncoderLayer
from headwise.parallel import context as parallel
from headwise.tracing import is_traced

if TYPE_CHECKING:
    from typing_extensions import Self


class BertEncoder(Packable):
    """The network of BERT, from ids of tokens to hidden states. Its subclass `Bert` adds vectors of texts."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.folder: Path | None = None  # the folder of the checkpoint that this encoder came from
        self.embeddings = Embeddings(config)
        # Set before the layers, which share this module, so that this is its name in a state dict.
        self.relative = T5Buckets(config.num_heads, config.relative_buckets) if config.relative_buckets else None
        self.layers = nn.ModuleList(_layers(config, self.relative))
        modern = config.modern
        self.final_norm = None if modern is None else _norm(config, config.dim)
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.apply(partial(_initialise, std=config.initializer_range))

    @classmethod
    def from_pretrained(
        cls, path_or_id: str | Path, *, dtype: torch.dtype = torch.float32, dropout: float | None = None
    ) -> Self:
        """Load the encoder and the pooler of a checkpoint, on the CPU, in eval mode. Heads (`cls.*`) are left out.

        `path_or_id` is a local folder with config.json and safetensors, or the name of a model on the Hugging Face hub;
        `dropout` replaces the dropout rates of the checkpoint, including the rate for attention weights.

        Raises:
            ArgumentError: a dropout that is not from 0 to 1, 1 excluded.
            CheckpointError: there is no such checkpoint, it is damaged, or its family is not in
                `headwise.models.families`.
        """
        folder = checkpoint.resolve(path_or_id)
        config = read_config(checkpoint.read_config(folder))
        if dropout is not None:
            config = replace(config, dropout=dropout, attention_dropout=dropout)
        family = FAMILIES[config.family]
        tensors = family.encoder_tensors(checkpoint.load_tensors(folder))
        check_sizes(family, config, tensors)
        with torch.device("meta"), NoInitialisation():  # parameters that will be replaced need no memory and no values
            bert = cls(replace(config, pooler="pooler.dense.weight" in tensors))
        found = {name: tensor.to(dtype) for name, tensor in match(family, bert, tensors).items()}
        bert.load_state_dict(found, strict=False, assign=True)  # shared parameters have several names
        for module in bert.modules():
            if isinstance(module, Rope):
                module.to_empty(device="cpu")  # this makes its constants again
        bert.folder = folder
        return bert.eval()

    def forward(self, input_ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Compute the last hidden states.

        Args:
            input_ids: [B, S], whole numbers below `config.vocab_size`.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding, on either side: the
                attention_mask of a Hugging Face tokenizer. None = all tokens are real. The hidden states *at*
                padding are unspecified: do not read them. RoBERTa and similar models do not count padding as positions.
            token_type_ids: [B, S], 0 or 1: the sentence of a pair that each token is from. Default: all 0. Models
                without token types (`reads_types`) accept only 0.

        Returns:
            The hidden states [B, S, M].

        Raises:
            ShapeError: an argument of another shape, or more than `config.max_positions` tokens.
            DtypeError: an argument of another dtype.
            ArgumentError: an id that has no embedding, or values of `real` other than 0 and 1.
        """
        config = self.config
        check_ids("input_ids", input_ids, config.vocab_size)
        if parallel.find_length(input_ids.shape[1]) > config.max_positions:
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
        check_ids("token_type_ids", token_type_ids, max(config.num_token_types, 1))

        real = check_real(real, *input_ids.shape)
        real = None if real is None else parallel.whole(real)
        # Without padding there is no mask, so that no layer has to look for it.
        if real is not None and not is_traced() and bool(real.all()):
            real = None
        mask, places = None, None
        if real is not None:
            mask = masks.padding(real)
            if config.first_position:  # a model like RoBERTa, which does not count padding
                places = (real.long().cumsum(1) - 1).clamp(min=0)
        if parallel.current() is not None:
            places = parallel.positions_here(input_ids.shape[1], input_ids.device) if places is None else places
            places = places if places.ndim == 1 else parallel.rows_here(places)
        return self.through(self.embeddings(input_ids, token_type_ids, places), mask)

    def encoder(self, dtype: Dtype | None = None) -> Encoder | None:
        """Return the layers packed for the native kernels (see `pack_encoder`); None if the modules must run."""
        plain = self.config.has_bert_layers and type(self).through is BertEncoder.through
        return pack_encoder(self, Embeddings, dtype) if plain else None

    def through(self, x_BSM: Tensor, mask: masks.Mask | None, places_S: Tensor | None = None) -> Tensor:
        """Run all layers on embeddings, and return the hidden states [B, S, M].

        Args:
            x_BSM: the output of `embeddings`.
            mask: which token may attend to which, True = may; None = all. Local layers (see `ModernLayers`) also
                forbid tokens that are not near each other in S.
            places_S: the position of each token, [S], for layers with relative or rotary positions; None = 0, 1, 2 …
        """
        modern = self.config.modern
        local = () if modern is None else modern.local_layers
        near = mask
        if modern is not None:
            window = masks.window(modern.window, modern.window)
            near = window if mask is None else mask & window
        given = {} if self.config.has_bert_layers else {"position_ids": places_S}
        for number, layer in enumerate(self.layers):
            x_BSM = layer(x_BSM, mask=near if number in local else mask, **given)
        return x_BSM if self.final_norm is None else self.final_norm(x_BSM)

    @property
    def reads_types(self) -> bool:
        """Whether the model has more than one token type, by which it distinguishes the sentences of a pair."""
        return self.config.num_token_types > 1

    def pool(self, hidden_BSM: Tensor) -> Tensor:
        """Compute the output of the pooler, [B, M], from the hidden state of the first token, which is [CLS].

        Raises:
            CheckpointError: this model has no pooler.
        """
        if self.pooler is None:
            raise CheckpointError("the checkpoint has no pooler. Use the mean of the hidden states, or that of [CLS]")
        return torch.tanh(self.pooler(hidden_BSM[:, 0]))


class Embeddings(nn.Module):
    """The embeddings of words, positions and types, summed. Its submodules are None where the config has none."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.embedding_width
        rows = config.first_position + config.max_positions
        self.first_position = config.first_position
        self.word = nn.Embedding(config.vocab_size, width)
        self.position = nn.Embedding(rows, width) if config.modern is None else None
        self.token_type = nn.Embedding(config.num_token_types, width) if config.num_token_types else None
        self.norm = _norm(config, width)
        self.dropout = Dropout(config.dropout)
        self.project = None if config.embedding_dim is None else nn.Linear(width, config.dim)

    def forward(self, ids_BS: Tensor, types_BS: Tensor, places: Tensor | None = None) -> Tensor:
        """Compute the embeddings [B, S, M]. `places`, [S] or [B, S]: the position of each token; None = 0, 1, 2 …"""
        x_BSE = self.word(ids_BS)
        if self.token_type is not None:
            x_BSE = x_BSE + self.token_type(types_BS)
        if self.position is not None:
            first = self.first_position
            rows = slice(first, first + ids_BS.shape[1])
            x_BSE = x_BSE + (self.position.weight[rows] if places is None else self.position(places + first))
        x_BSE = self.dropout(self.norm(x_BSE))
        return x_BSE if self.project is None else self.project(x_BSE)


def _norm(config: BertConfig, width: int) -> LayerNorm:
    return LayerNorm(width, eps=config.layer_norm_eps, bias=config.modern is None or config.modern.bias)


def _layers(config: BertConfig, relative: T5Buckets | None) -> Iterator[EncoderLayer]:
    """Make the layers. In BERT, a norm follows each sum; in ModernBERT, it precedes each branch but the first."""
    modern = config.modern
    ropes: dict[bool, Positions] = {}
    if modern is not None:
        width = config.dim // config.num_heads
        ropes = {False: Rope(width, base=modern.rope_base), True: Rope(width, base=modern.local_rope_base)}
    for number in range(config.num_layers):
        bias, activation = True, ACTIVATIONS[config.hidden_act]
        positions: Positions | None = relative
        if modern is not None:
            bias, activation, positions = modern.bias, GATED[activation], ropes[number in modern.local_layers]
        layer = EncoderLayer(
            config.dim,
            attention=MultiHeadAttention(
                config.dim, config.num_heads, bias=bias, dropout=config.attention_dropout, positions=positions
            ),
            ffn_dim=config.ffn_dim,
            norm_first=modern is not None,
            activation=activation,
            dropout=config.dropout,
            ffn_dropout=0.0,
            norm_eps=config.layer_norm_eps,
            bias=bias,
        )
        if modern is not None and number == 0:
            layer.attention_norm = nn.Identity()  # the embeddings already have a norm
        yield layer


def _initialise(module: nn.Module, std: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class NoInitialisation(TorchFunctionMode):
    """Skips `torch.nn.init`: on the meta device it computes nothing, but imports 800 modules, which takes a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
