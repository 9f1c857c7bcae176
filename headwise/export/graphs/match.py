"""The graphs of match: an image encoder, a text encoder, and a scorer of pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.export.graph import Graph, Value
from headwise.export.graphs.rows import inputs_of
from headwise.export.graphs.tokens import IDS, MASK, random_tokens, whole
from headwise.models.image_text import ImageText
from headwise.tasks.match import Match

PICTURES = 4  # images of the gallery for the comparison


def graphs(task: Match, rows: Any = None) -> tuple[Graph, ...]:
    """The three graphs.

        image: pixels [batch, channels, H, W] uint8 → image_vector [batch, W], image_states [batch, K, M]
        text: input_ids, attention_mask → text_vector, text_states [batch, length, M]
        match: image_states, text_states, attention_mask → logit [batch], scale [1]

    The vectors have length 1, so their product is the cosine similarity; `scale` multiplies it before a softmax over
    candidates. The logit says whether text b belongs to image b. The real inputs are `rows` or the gallery.
    """
    if rows is None and task.gallery.images:
        rows = list(task.gallery.texts[:PICTURES])
    pixels, texts = [], []
    if rows is not None:
        pixels = [(each[:PICTURES],) for (each,) in inputs_of(task.model.image, lambda: task.predict(rows), most=1)]
        texts = inputs_of(task.model.text, lambda: task.predict(rows), most=1)
    return graphs_of_model(task.model, pixels, texts)


@torch.no_grad()
def graphs_of_model(model: ImageText, pixels: list[Any], texts: list[Any]) -> tuple[Graph, ...]:
    """The graphs of any `ImageText`."""
    config, width = model.config, model.config.text.dim
    image, text, match = _Image(model), _Text(model), _Match(model)
    size = (config.channels, config.image_size, config.image_size)
    drawn = torch.Generator().manual_seed(0)
    noise = [(torch.randint(256, (batch, *size), generator=drawn, dtype=torch.uint8),) for batch in (3, 1)]
    seen = [*whole(pixels), *noise]
    read = [*whole(texts), *(each[:2] for each in random_tokens(config.text.vocab_size, config.text.max_positions, 1))]

    image_states = Value("image_states", torch.float32, ("batch", config.grid**2, config.dim))
    text_states = Value("text_states", torch.float32, ("batch", "length", width))
    vectors = [Value(name, torch.float32, ("batch", config.shared_dim)) for name in ("image_vector", "text_vector")]
    logit, scale = Value("logit", torch.float32, ("batch",)), Value("scale", torch.float32, (1,))
    return (
        Graph("image", image, (Value("pixels", torch.uint8, ("batch", *size)),), (vectors[0], image_states), seen),
        Graph("text", text, (IDS, MASK), (vectors[1], text_states), read),
        Graph("match", match, (image_states, text_states, MASK), (logit, scale), _pairs(image, text, seen, read)),
    )


class _Image(nn.Module):
    def __init__(self, model: ImageText) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        # Convert to the dtype of the weights, as the model does with uint8 in float32.
        found = self.model.encode_image(pixels.to(self.model.log_scale.dtype) / 255)
        return found.vector, found.states


class _Text(nn.Module):
    def __init__(self, model: ImageText) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model.encode_text(input_ids, attention_mask)
        return found.vector, found.states


class _Match(nn.Module):
    def __init__(self, model: ImageText) -> None:
        super().__init__()
        self.model = model

    def forward(self, image_states: Tensor, text_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.match(image_states, text_states, attention_mask), self.model.scale


def _pairs(image: _Image, text: _Text, seen: list[Any], read: list[Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each batch of texts with the same number of images from the first batch, repeated if there are fewer."""
    _, states = image(*seen[0])
    found = []
    for ids, mask in read:
        which = torch.arange(len(ids)) % len(states)
        found.append((states[which], text(ids, mask)[1], mask))
    return found
