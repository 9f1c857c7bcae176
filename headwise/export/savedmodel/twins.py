"""Keras twins of whole models: Keras layers, combined in the same way as the modules in `headwise.models`.

It imports Keras, with any backend. Dimension letters: B batch, S sequence, M model, C classes, V vocabulary, N latents;
for a forecaster N series, K patches, P patch length, F future, O outputs per step.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops
from torch import nn

from headwise import masks, models
from headwise.errors import ArgumentError
from headwise.export.savedmodel.request import TWINS
from headwise.keras import Bert, EncoderLayer, LatentAttention, positions
from headwise.keras.convert.weights import PARTS, match
from headwise.keras.layer import TWINS as LAYERS
from headwise.masks import Mask
from headwise.models.patch_forecaster import MIN_VARIANCE
from headwise.nn import Encoder

Tensor = Any  # a tensor of Keras's backend


class Twin(keras.layers.Layer):
    """A model made of Keras layers. It takes the model's inputs by position, and returns a tuple of outputs."""

    def __init__(self) -> None:
        super().__init__(dtype="float32", autocast=False)


class BertTwin(Twin):
    """The Keras twin of `Bert`: last hidden states [B, S, M], and the pooler's output [B, M] if there is a pooler."""

    def __init__(self, model: models.Bert) -> None:
        super().__init__()
        self.bert = Bert.from_torch(model, dtype="float32")

    def call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        pools = self.bert.pooler is not None
        found = self.bert(input_ids, attention_mask, token_type_ids, return_pooled=pools)
        return found if pools else (found,)


class SmallTwin(Twin):
    """The Keras twin of `SmallEncoder`: the hidden states of the tokens [B, S, M]."""

    def __init__(self, model: models.SmallEncoder) -> None:
        super().__init__()
        self.word, self.token_type = _part(model.word), _part(model.token_type)
        self.stack = Stack(model.encoder)

    def call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        x_BSM = self.word(input_ids) + self.token_type(token_type_ids)
        return (self.stack(x_BSM, query_mask=ops.cast(attention_mask, "bool")),)


class LatentTwin(Twin):
    """The Keras twin of `LatentEncoder`: the hidden states of the latents [B, N, M]."""

    def __init__(self, model: models.LatentEncoder) -> None:
        super().__init__()
        self.word, self.token_type = _part(model.word), _part(model.token_type)
        self.position = positions.Sinusoidal.from_torch(model.position)
        self.latents = LatentAttention.from_torch(model.latents)

    def call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        x_BSM = self.word(input_ids) + self.token_type(token_type_ids)
        place_SM = self.position(ops.arange(ops.shape(input_ids)[1], dtype="int32"))
        return (self.latents(x_BSM + place_SM, query_mask=ops.cast(attention_mask, "bool")),)


class ClassifierTwin(Twin):
    """The Keras twin of `TextClassifier`: logits [B, C]."""

    def __init__(self, model: models.TextClassifier) -> None:
        super().__init__()
        self.encoder: Any = make_twin(model.encoder)
        self.head = _part(model.head)
        self.pooling = model.pooling

    def call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        hidden_BSM, *_ = self.encoder(input_ids, attention_mask, token_type_ids)
        if self.pooling == "all":
            pooled_BM = ops.mean(hidden_BSM, axis=1)
        elif self.pooling == "cls":
            pooled_BM = hidden_BSM[:, 0]
        else:
            real_BS1 = ops.cast(attention_mask, "bool")[..., None]
            kept_BSM = ops.where(real_BS1, hidden_BSM, ops.zeros_like(hidden_BSM))
            pooled_BM = ops.sum(kept_BSM, axis=1) / ops.sum(ops.cast(real_BS1, "float32"), axis=1)
        return (self.head(pooled_BM),)


class SpanTwin(Twin):
    """The Keras twin of `SpanReader`: two tensors of logits [B, S], for the first and the last token of the answer."""

    def __init__(self, model: models.SpanReader) -> None:
        super().__init__()
        self.encoder: Any = make_twin(model.encoder)
        self.head = _part(model.head)

    def call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        hidden_BSM, *_ = self.encoder(input_ids, attention_mask, token_type_ids)
        logits_BS2 = self.head(hidden_BSM)
        return logits_BS2[..., 0], logits_BS2[..., 1]


class MaskedTwin(Twin):
    """The Keras twin of `MaskedLanguageModel`: logits of every token [B, S, V]."""

    def __init__(self, model: models.MaskedLanguageModel) -> None:
        super().__init__()
        self.bert = Bert.from_torch(model.bert, dtype="float32")
        self.transform, self.norm = _part(model.transform), _part(model.norm)
        self.bias = self.add_weight(shape=tuple(model.bias.shape), name="bias", initializer="zeros")
        self.bias.assign(model.bias.detach().cpu().numpy())

    def call(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        hidden_BSM = self.bert(input_ids, attention_mask)
        x_BSM = self.norm(ops.gelu(self.transform(hidden_BSM), approximate=False))
        table_VM = ops.convert_to_tensor(self.bert.embeddings.word.embeddings)
        return (ops.matmul(x_BSM, ops.transpose(table_VM)) + self.bias,)


class ForecasterTwin(Twin):
    """The Keras twin of `PatchForecaster`: the forecast [N, F, O]."""

    def __init__(self, model: models.PatchForecaster) -> None:
        super().__init__()
        self.config = model.config
        self.embed, self.head, self.direct = _part(model.embed), _part(model.head), _part(model.direct)
        self.position = positions.Learned.from_torch(model.position)
        self.stack = Stack(model.encoder)

    def call(self, context: Tensor) -> tuple[Tensor, ...]:
        centre_N1, spread_N1 = _scale(context, self.config.centre)
        given_NS = (context - centre_N1) / spread_N1
        places_K = ops.arange(self.config.num_patches, dtype="int32")
        x_NKM = self.stack(self.embed(_patches(given_NS, self.config)) + self.position(places_K))
        flat = ops.reshape(x_NKM, (-1, self.config.num_patches * self.config.dim))
        y_NFO = ops.reshape(self.head(flat) + self.direct(given_NS), (-1, self.config.horizon, _outputs(self.config)))
        return (y_NFO * spread_N1[..., None] + centre_N1[..., None],)


class CausalForecasterTwin(Twin):
    """The Keras twin of `CausalPatchForecaster`: forecast [N, F, O]; each patch reads the point forecasts before it."""

    def __init__(self, model: models.CausalPatchForecaster) -> None:
        super().__init__()
        self.config = model.config
        self.embed, self.head = _part(model.embed), _part(model.head)
        self.stack = Stack(model.decoder)

    def call(self, context: Tensor) -> tuple[Tensor, ...]:
        config = self.config
        centre_N1, spread_N1 = _scale(context, config.centre)
        read_NKP = _patches((context - centre_N1) / spread_N1, config)
        written: list[Tensor] = []
        for _ in range(-(-config.horizon // config.patch_length)):
            last_N1M = self.stack(self.embed(read_NKP), attention_mask=masks.causal())[:, -1:]
            written.append(ops.reshape(self.head(last_N1M), (-1, config.patch_length, _outputs(config))))
            read_NKP = ops.concatenate([read_NKP, written[-1][:, None, :, 0]], axis=1)
        y_NFO = ops.concatenate(written, axis=1)[:, : config.horizon]
        return (y_NFO * spread_N1[..., None] + centre_N1[..., None],)


class AttentionTwin(Twin):
    """The twin of a self-attention module of `headwise.nn`: output [B, S, M], or latents [B, N, M]."""

    def __init__(self, module: nn.Module, mask: Mask | None) -> None:
        super().__init__()
        if isinstance(module, Encoder):
            self.layer: Any = Stack(module)
        else:
            kind = next(ours for ours, twin in LAYERS.items() if twin is type(module))
            self.layer = kind.from_torch(module)
        self.mask = mask

    def call(self, hidden: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        return (self.layer(hidden, query_mask=real, attention_mask=self.mask),)


class Stack(keras.layers.Layer):
    """The layers of an `Encoder` and its final norm, as a Keras layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(dtype="float32", autocast=False)
        self.layers = [EncoderLayer.from_torch(layer) for layer in encoder.layers]
        self.norm = None if encoder.norm is None else _part(encoder.norm)

    def call(self, x_BSM: Tensor, query_mask: Tensor | None = None, attention_mask: Mask | None = None) -> Tensor:
        for layer in self.layers:
            x_BSM = layer(x_BSM, query_mask=query_mask, attention_mask=attention_mask)
        return x_BSM if self.norm is None else self.norm(x_BSM)


def make_twin(model: nn.Module, mask: Mask | None = None) -> Twin:
    """Make the Keras twin of a model (the same model of Keras layers), with the model's weights, in float32.

    `mask` is only for a module of `headwise.nn`: the mask of its calls (True = may attend).

    Raises:
        ArgumentError: the model has no twin.
        HeadwiseError: a part of the model was replaced, or has an option that its Keras layer lacks.
    """
    if type(model) not in TWINS:
        raise ArgumentError(f"{type(model).__name__} has no Keras twin")
    kind = globals()[TWINS[type(model)]]
    twin: Twin = kind(model, mask) if kind is AttentionTwin else kind(model)
    return twin


def _part(module: Any) -> Any:
    """Make the Keras layer for a linear map, an embedding or a norm of PyTorch, with its weights.

    Raises ArgumentError for a module of any other class, even of a subclass, because it may compute something else.
    """
    kind, _ = PARTS.get(type(module), (None, {}))
    if kind is keras.layers.Dense:
        options = {"units": module.out_features, "use_bias": module.bias is not None}
    elif kind is keras.layers.Embedding:
        options = {"input_dim": module.num_embeddings, "output_dim": module.embedding_dim}
    elif kind is keras.layers.LayerNormalization:
        options = {"epsilon": module.eps, "center": module.bias is not None}
    elif kind is keras.layers.RMSNormalization:
        options = {"epsilon": module.eps}
    else:
        raise ArgumentError(
            "expected a plain Linear, Embedding, LayerNorm or RMSNorm, which has a Keras twin. "
            f"Received: {type(module).__name__}"
        )
    made = kind(**options, dtype="float32")
    made.build((None, None, module.weight.shape[-1]))
    for place in match(module, made):
        place.to_keras()
    return made


def _scale(context_NS: Tensor, centre: str) -> tuple[Tensor, Tensor]:
    """Compute the centre to subtract from each context, and the scale to divide it by, each [N, 1]."""
    mean_N1 = ops.mean(context_NS, axis=1, keepdims=True)
    variance_N1 = ops.mean(ops.square(context_NS - mean_N1), axis=1, keepdims=True)
    return mean_N1 if centre == "mean" else context_NS[:, -1:], ops.sqrt(variance_N1 + MIN_VARIANCE)


def _patches(x_NS: Tensor, config: models.PatchForecasterConfig) -> Tensor:
    """Cut each context [N, S] into patches [N, K, P]; the last patch ends at the end of the context."""
    return ops.take(x_NS, np.array([range(*span) for span in config.spans], np.int32), axis=1)


def _outputs(config: models.PatchForecasterConfig) -> int:
    """Return O, the number of outputs per step: the point forecast and the quantiles."""
    return 1 + config.num_quantiles
