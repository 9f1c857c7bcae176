"""The graphs of an `ImageText`: an image encoder, a text encoder, and a graph that scores pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.graphs.graph import Computation, Graph, Value
from headwise.graphs.session import Sessions, replace_methods
from headwise.graphs.tokens import IDS, MASK, random_tokens, whole
from headwise.models.image_text import Encoded, ImageText


@torch.no_grad()
def graphs(model: ImageText, pixels: list[Any] | None = None, texts: list[Any] | None = None) -> tuple[Graph, ...]:
    """Return the three graphs of an `ImageText`: "image", "text" and "match".

        image: pixels [batch, channels, H, W] uint8 → image_vector [batch, W], image_states [batch, K, M]
        text: input_ids, attention_mask → text_vector, text_states [batch, length, M]
        match: image_states, text_states, attention_mask → logit [batch], scale [1]

    The vectors have length 1, so their product is the cosine similarity; `scale` multiplies it before a softmax over
    candidates. The logit says whether text b belongs to image b.

    Args:
        pixels, texts: real inputs for the first two graphs, as examples in addition to random inputs.
    """
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
    given, real = Value("pixels", torch.uint8, ("batch", *size)), bool(pixels and texts)
    return (
        Graph("image", image, (given,), (vectors[0], image_states), seen, real),
        Graph("text", text, (IDS, MASK), (vectors[1], text_states), read, real),
        Graph("match", match, (image_states, text_states, MASK), (logit, scale), _pairs(image, text, seen, read), real),
    )


def run_on(model: ImageText, sessions: Sessions) -> None:
    """Let the loaded graphs do the model's computation: replace `encode_image`, `encode_text` and `match`."""
    image = sessions["image"].giving("image_states", "image_vector")
    text = sessions["text"].giving("text_states", "text_vector")
    belongs = sessions["match"].giving("logit", "scale")

    def encode_image(pixels: Tensor) -> Encoded:
        return Encoded(*image(pixels))

    def encode_text(ids: Tensor, real: Tensor | None = None) -> Encoded:
        return Encoded(*text(ids, torch.ones_like(ids) if real is None else real))

    def match(image_states: Tensor, text_states: Tensor, real: Tensor | None = None) -> Tensor:
        real = torch.ones(text_states.shape[:2]) if real is None else real
        return belongs(image_states, text_states, real)[0]

    # The factor on cosines is the only weight that the task itself reads; the graph "match" returns it for any pair.
    any_image, any_text = (
        torch.zeros([axis if isinstance(axis, int) else 1 for axis in value.axes])
        for value in sessions["match"].inputs[:2]
    )
    scale = belongs(any_image, any_text, torch.ones(1, 1))[1]
    model.log_scale = nn.Parameter(scale.float().log(), requires_grad=False)
    replace_methods(model, encode_image=encode_image, encode_text=encode_text, match=match)


class _Image(Computation[ImageText]):
    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        # Convert to the dtype of the weights, as the model does with uint8 in float32.
        found = self.model.encode_image(pixels.to(self.model.log_scale.dtype) / 255)
        return found.vector, found.states


class _Text(Computation[ImageText]):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model.encode_text(input_ids, attention_mask)
        return found.vector, found.states


class _Match(Computation[ImageText]):
    def forward(self, image_states: Tensor, text_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.match(image_states, text_states, attention_mask), self.model.scale


def _pairs(image: _Image, text: _Text, seen: list[Any], read: list[Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Make examples of "match": each batch of texts with as many images of the first batch (repeated if too few)."""
    _, states = image(*seen[0])
    found = []
    for ids, mask in read:
        which = torch.arange(len(ids)) % len(states)
        found.append((states[which], text(ids, mask)[1], mask))
    return found
