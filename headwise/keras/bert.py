"""The BERT encoder, made of the Keras layers of this package.

Devlin et al. 2018, arXiv:1810.04805. It is the twin of `headwise.models.Bert`, which reads the checkpoint.
Dimension letters: B batch, S sequence, M model.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import keras
from keras import ops

from headwise import models
from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.keras.layer import Layer, Parts, Tensor, read_values
from headwise.keras.residual import seeds
from headwise.keras.saving import PACKAGE
from headwise.keras.transformer_layer import EncoderLayer
from headwise.models.bert import ACTIVATIONS, BertConfig
from headwise.renamed import renamed


@keras.saving.register_keras_serializable(PACKAGE)
class Bert(Layer, twin=models.Bert):
    """A BERT encoder. `Bert(config)` has random weights, `Bert.from_pretrained` the weights of a checkpoint.

    >>> bert = Bert.from_pretrained("minilm")
    >>> hidden = bert(input_ids, real=input_ids != 0)                  # [B, S] to [B, S, M]

    It is a Keras layer: you can train, save and export a model that contains it.

    >>> ids = keras.Input((None,), dtype="int32")
    >>> hidden, pooled = bert(ids, real=keras.ops.not_equal(ids, 0), return_pooled=True)
    >>> model = keras.Model(ids, keras.layers.Dense(2)(pooled))

    Args:
        config: the sizes and options.
        seed: the seed of dropout.

    Its sublayers are `embeddings` (with `word`, `position`, `token_type` and `norm`), `layers`, and `pooler`, which may
    be None (see the config).
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        config = self.config = self._begin(*args, **kwargs).config
        if not isinstance(config, BertConfig):
            raise ArgumentError(f"config: expected a headwise.models.BertConfig. Received: {type(config).__name__}")
        config.require_bert("config")
        first, *others = seeds(seed, 1 + config.num_layers)
        self.embeddings = _Embeddings(config, seed=first, name="embeddings", dtype=self.dtype_policy)
        self.layers = [
            # As in the paper, norms come after each sum, not before each branch.
            EncoderLayer(
                *(config.dim, config.num_heads),
                ffn_dim=config.ffn_dim,
                norm_first=False,
                activation=ACTIVATIONS[config.hidden_act],
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                ffn_dropout=0.0,
                norm_eps=config.layer_norm_eps,
                seed=each,
                name=f"layers_{i}",
                dtype=self.dtype_policy,
            )
            for i, each in enumerate(others)
        ]
        self.pooler = self.dense(config.dim, name="pooler") if config.pooler else None
        linear = [part for layer in self.layers for part in (layer.attention.qkv, layer.attention.out)]
        linear += [part for layer in self.layers for part in (layer.mlp.up, layer.mlp.down)]
        for part in (*linear, *([] if self.pooler is None else [self.pooler])):
            part.kernel_initializer = _normal(config)

    @classmethod
    def from_pretrained(cls, path_or_id: str | Path, *, dropout: float | None = None, **kwargs: Any) -> Bert:
        """Load the encoder and the pooler of a checkpoint. The heads of the checkpoint (`cls.*`) are left out.

        Args:
            path_or_id: a local folder with config.json and safetensors, the name of a model on the Hugging Face hub, or
                "minilm", the model that comes with `headwise[demo]`.
            dropout: it replaces the dropout rates of the checkpoint, including the rate for attention weights.
            kwargs: `name`, `dtype` (None = keras.config.dtype_policy()), `trainable`, `seed`.

        Raises:
            ArgumentError: a dropout outside of [0, 1).
            CheckpointError: the checkpoint is missing, damaged, or not a BERT encoder.
        """
        kwargs["dtype"] = kwargs.get("dtype") or keras.config.dtype_policy()
        bert: Bert = cls.from_torch(models.Bert.from_pretrained(path_or_id, dropout=dropout), **kwargs)
        return bert

    def get_config(self) -> dict[str, Any]:
        """All options of the constructor; `config` is a dict."""
        seed = self._given["seed"]
        return {**keras.layers.Layer.get_config(self), "config": dataclasses.asdict(self.config), "seed": seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Bert:
        """Make the layer that a result of `get_config` describes."""
        return cls(**{**config, "config": BertConfig(**renamed(config["config"]))})

    def _parts(self) -> Parts:
        return [(part, self.config.dim) for part in (self.embeddings, *self.layers, self.pooler)]

    def call(
        self,
        input_ids: Tensor,
        real: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_pooled: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Compute the last hidden states.

        Args:
            input_ids: [B, S], whole numbers below `config.vocab_size`.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding, on either side: the
                attention_mask of a Hugging Face tokenizer. None = all tokens are real. The hidden states *at* padding
                are unspecified: do not read them.
            token_type_ids: [B, S], 0 or 1: the sentence of a pair that each token is from. Default: all 0.
            return_pooled: also return the output of `pool`. Functional models need this instead of `pool`.
            training: whether dropout is active.

        Returns:
            The hidden states [B, S, M]; with `return_pooled=True` (hidden states, output of `pool` [B, M]).

        Raises:
            ShapeError: an argument of another shape, or more than `config.max_positions` tokens.
            DtypeError: an argument of another dtype.
            ArgumentError: an id without an embedding, or values of `real` other than 0 and 1. Not checked during
                tracing, when tensors have no values.
            CheckpointError: `return_pooled` with a model without a pooler.
        """
        self._check_inputs(input_ids, real, token_type_ids, return_pooled)
        _check_values("input_ids", input_ids, self.config.vocab_size)
        _check_values("token_type_ids", token_type_ids, self.config.num_token_types)
        _check_values("real", real, 2)
        real = None if real is None else ops.cast(real, "bool")
        x = self.embeddings(input_ids, token_type_ids, training=training)
        for layer in self.layers:
            x = layer(x, query_mask=real, training=training)
        return (x, self.pool(x)) if return_pooled else x

    def compute_output_spec(
        self,
        input_ids: Any,
        real: Any = None,
        token_type_ids: Any = None,
        return_pooled: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        self._check_inputs(input_ids, real, token_type_ids, return_pooled)
        width = self.config.dim
        hidden = keras.KerasTensor((*input_ids.shape, width), dtype=self.compute_dtype)
        pooled = keras.KerasTensor((input_ids.shape[0], width), dtype=self.compute_dtype)
        return (hidden, pooled) if return_pooled else hidden

    def pool(self, hidden: Tensor) -> Tensor:
        """Compute the output of the pooler, [B, M], from the hidden state of the first token, which is [CLS].

        Raises:
            CheckpointError: the model has no pooler.
            ArgumentError: a functional model is being built; use `return_pooled` of the call.
        """
        self._check_pooler()
        if isinstance(hidden, keras.KerasTensor):
            raise ArgumentError(
                "hidden: expected values. Received: a KerasTensor. In a functional model pass return_pooled=True to "
                "the call, so that model and pooler are saved as one"
            )
        return ops.tanh(self.pooler(hidden[:, 0]))  # type: ignore[misc]

    def _check_inputs(self, input_ids: Any, real: Any, token_type_ids: Any, return_pooled: bool) -> None:
        if return_pooled:
            self._check_pooler()
        given = {"input_ids": input_ids, "real": real, "token_type_ids": token_type_ids}
        for name, x in given.items():
            if x is None and name != "input_ids":
                continue
            if not hasattr(x, "shape"):
                raise DtypeError(f"{name}: expected a tensor [B, S] of whole numbers. Received: {type(x).__name__}")
            dtype = keras.backend.standardize_dtype(x.dtype)
            if "int" not in dtype and (name != "real" or dtype != "bool"):
                hint = ' (keras.Input(…, dtype="int32"))' if isinstance(x, keras.KerasTensor) else ""
                raise DtypeError(f"{name}: expected whole numbers{hint}. Received: dtype={dtype}")
            shape, wanted = tuple(x.shape), tuple(input_ids.shape)
            if len(shape) != 2:
                raise ShapeError(f"{name}: expected [B, S]. Received: {name}.shape={shape}")
            if any(None not in pair and pair[0] != pair[1] for pair in zip(shape, wanted, strict=True)):
                raise ShapeError(f"{name}: expected {wanted}, as input_ids. Received: {name}.shape={shape}")
        length, most = input_ids.shape[1], self.config.max_positions
        if length is not None and length > most:
            raise ShapeError(
                f"input_ids: expected at most {most} tokens, the model's limit. Received: {length} tokens. "
                "Cut or split the text"
            )

    def _check_pooler(self) -> None:
        if self.pooler is None:
            raise CheckpointError("the checkpoint has no pooler. Use the mean of the hidden states, or that of [CLS]")


class _Embeddings(Layer):
    def __init__(self, config: BertConfig, *, seed: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sizes = {"word": config.vocab_size, "position": config.max_positions, "token_type": config.num_token_types}
        for name, size in sizes.items():
            options: dict[str, Any] = {"embeddings_initializer": _normal(config), "dtype": self.dtype_policy}
            setattr(self, name, keras.layers.Embedding(size, config.dim, name=name, **options))
        self.width = config.dim
        self.norm = keras.layers.LayerNormalization(epsilon=config.layer_norm_eps, name="norm", dtype=self.dtype_policy)
        self.dropout = keras.layers.Dropout(config.dropout, seed=seed, name="dropout", dtype=self.dtype_policy)

    def _parts(self) -> Parts:
        return [(part, self.width) for part in (self.word, self.position, self.token_type, self.norm)]

    def call(self, ids: Tensor, types: Tensor | None = None, training: bool | None = None) -> Tensor:
        types = ops.zeros_like(ids) if types is None else types
        places = self.position(ops.arange(ops.shape(ids)[1], dtype="int32"))
        return self.dropout(self.norm(self.word(ids) + self.token_type(types) + places), training=training)


def _normal(config: BertConfig) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=config.initializer_range)  # a new initializer draws other numbers


def _check_values(name: str, x: Tensor | None, size: int) -> None:
    """Raise ArgumentError unless all ids are from 0 to size - 1: for others JAX returns NaN, and a GPU any values."""
    values = None if x is None else read_values(x)
    if values is None or not values.size or (values.min() >= 0 and values.max() < size):
        return
    received = int(values.min() if values.min() < 0 else values.max())
    if name == "real":
        raise ArgumentError(f"real: expected 1 for real tokens and 0 for padding. Received: real with {received}")
    raise ArgumentError(
        f"{name}: expected ids from 0 to {size - 1}. Received: {name} with {received}. "
        "Do the tokenizer and the model come from the same checkpoint?"
    )
