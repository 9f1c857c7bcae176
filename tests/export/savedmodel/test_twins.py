"""Whole models and their Keras twins compute the same, whichever backend Keras has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("keras")

import keras

from headwise import masks, models
from headwise import nn as modules
from headwise.errors import ArgumentError
from headwise.export.graphs import make_graphs
from headwise.export.savedmodel.twins import make_twin
from headwise.nn.positions import Rope


def bert(pooler: bool = False) -> models.Bert:
    sizes = {"dim": 8, "num_layers": 2, "num_heads": 2, "ffn_dim": 16, "max_positions": 40}
    return models.Bert(models.BertConfig(vocab_size=20, pooler=pooler, **sizes))


def small() -> models.SmallEncoder:
    return models.SmallEncoder(models.SmallEncoderConfig(20, 8))


def latent() -> models.LatentEncoder:
    return models.LatentEncoder(models.LatentEncoderConfig(20, 8, num_latents=3, num_layers=1, num_heads=2))


def forecaster(cls: type[nn.Module], **options: object) -> nn.Module:
    shape = {"dim": 8, "num_layers": 1, "num_heads": 2, "ffn_dim": 8, "num_quantiles": 2, "patch_length": 4}
    return cls(models.PatchForecasterConfig(30, 7, **shape, **options))  # type: ignore[arg-type, call-arg]


MODELS = {
    "bert": bert,
    "bert with a pooler": lambda: bert(pooler=True),
    "small": small,
    "latent": latent,
    "classifier": lambda: models.TextClassifier(bert(), 3),
    "classifier of [CLS]": lambda: models.TextClassifier(bert(), 3, pooling="cls"),
    "classifier, small": lambda: models.TextClassifier(small(), 3),
    "classifier, latent": lambda: models.TextClassifier(latent(), 3),
    "reader": lambda: models.SpanReader(small()),
    "masked": lambda: models.MaskedLanguageModel(bert()),
    "forecaster": lambda: forecaster(models.PatchForecaster, stride=2),
    "causal forecaster": lambda: forecaster(models.CausalPatchForecaster, stride=4, centre="last"),
    "attention": lambda: modules.MultiHeadAttention(8, 2, positions=Rope(4)),
    "stack": lambda: modules.Encoder(8, num_layers=2, num_heads=2, norm="rms", activation="swiglu"),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_twin_computes_what_the_model_does(make: object) -> None:
    model = make()  # type: ignore[operator]
    with torch.no_grad():
        for parameter in model.parameters():  # what begins as 0 or 1 must not hide a mistake
            parameter.add_(0.1 * torch.randn_like(parameter))
    (graph,) = make_graphs(model)
    twin = make_twin(model)
    for example in graph.examples:
        with torch.no_grad():
            expected = graph.module(*example)
        found = twin(**{value.name: x.numpy() for value, x in zip(graph.inputs, example, strict=True)})
        expected = (expected,) if isinstance(expected, torch.Tensor) else expected
        for wanted, received in zip(expected, found, strict=True):
            received = torch.tensor(keras.ops.convert_to_numpy(received))
            torch.testing.assert_close(received, wanted, rtol=1e-4, atol=1e-4)


def test_a_module_keeps_its_mask() -> None:
    module = modules.MultiHeadAttention(8, 2).eval()
    (graph,) = make_graphs(module, mask=masks.causal())
    hidden, padding = graph.examples[0]
    (found,) = make_twin(module, masks.causal())(hidden.numpy(), padding.numpy())
    with torch.no_grad():
        expected = graph.module(hidden, padding)
    torch.testing.assert_close(torch.tensor(keras.ops.convert_to_numpy(found)), expected, rtol=1e-4, atol=1e-5)


def test_a_part_that_somebody_replaced_is_refused() -> None:
    model = models.TextClassifier(small(), 3)
    model.head = nn.Sequential(nn.Linear(8, 3))  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match=r"expected a plain Linear, .* Received: Sequential"):
        make_twin(model)
