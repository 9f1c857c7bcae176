"""Vectors of images and texts that can be compared, and texts that read images.

A patch encoder (Dosovitskiy et al. 2021, ViT) and a BERT each make one vector of their input, the mean of its hidden
states; vectors are compared by their angle (Radford et al. 2021, CLIP). On top of both is a fusion stack, in which the
words attend to the patches; it says whether a text belongs to an image (Li et al. 2021, ALBEF). Dimension letters:
B batch, K patches, S tokens, M model; an image is [B, channels, height, width].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, unfold

from headwise.errors import ArgumentError, ShapeError
from headwise.models.bert import Bert, BertConfig
from headwise.models.pooling import average_real
from headwise.nn import Decoder, Encoder, positions

LARGEST_SCALE = 100.0  # the largest factor on cosines, as in CLIP: beyond it training becomes unstable


@dataclass(frozen=True)
class ImageTextConfig:
    """The sizes and options of an `ImageText`: of both encoders, and of the layers that combine their outputs.

    Args:
        text: the config of the text encoder.
        image_size: the side of an image, in pixels; images are squares.
        patch_size: the side of a patch, in pixels; it divides `image_size`.
        channels: 1 = grey, 3 = colour.
        dim: M of the image encoder.
        mean, std: the mean and standard deviation of the training images' pixels (0 to 1), for each channel. The model
            reads (pixel - mean) / std.
        shared_dim: the width of the vectors that are compared.

    Raises:
        ArgumentError: sizes that do not fit.
    """

    text: BertConfig = field(default_factory=BertConfig)
    image_size: int = 32
    patch_size: int = 4
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)
    dim: int = 128
    image_layers: int = 4
    fusion_layers: int = 2
    num_heads: int = 4
    shared_dim: int = 64
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int" and (type(value) is not int or value < 1):
                raise ArgumentError(f"{each.name}: expected a whole number above 0. Received: {each.name}={value!r}")
        if self.image_size % self.patch_size:
            raise ArgumentError(
                f"patch_size: expected a number that divides image_size={self.image_size}. "
                f"Received: patch_size={self.patch_size}"
            )
        if self.channels not in (1, 3):
            raise ArgumentError(f"channels: expected 1 (grey) or 3 (colour). Received: channels={self.channels}")
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.channels:
                raise ArgumentError(
                    f"{name}: expected {self.channels}, one a channel. Received: {name}={getattr(self, name)}"
                )

    @property
    def grid(self) -> int:
        """The number of patches in a row, which is also the number in a column."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class Encoded:
    """The output of an encoder: a hidden state for each patch or token [B, K, M], and a vector of length 1 [B, W]."""

    states: Tensor
    vector: Tensor


class ImageText(nn.Module):
    """Two encoders whose vectors can be compared, and a fusion stack in which the text's tokens attend to the image.

    >>> image, text = model.encode_image(pixels), model.encode_text(input_ids)
    >>> model.scale * image.vector @ text.vector.T     # [B, B], logits of the choice by softmax
    >>> model.match(image.states, text.states)         # [B] logits: does each text belong to its image?

    Its submodules are `image`, `text`, a projection for the vector of each, `fusion` and `matched`.
    """

    def __init__(self, config: ImageTextConfig, text: Bert | None = None) -> None:
        super().__init__()
        self.config = config
        self.image = PatchEncoder(config)
        self.text = Bert(config.text) if text is None else text
        self.image_projection = nn.Linear(config.dim, config.shared_dim, bias=False)
        self.text_projection = nn.Linear(config.text.dim, config.shared_dim, bias=False)
        self.log_scale = nn.Parameter(torch.tensor([math.log(1 / 0.07)]))  # [1]: FSDP does not accept scalars
        self.fusion = Decoder(
            config.text.dim,
            num_layers=config.fusion_layers,
            num_heads=config.text.num_heads,
            memory_dim=config.dim,
            dropout=config.dropout,
        )
        self.matched = nn.Linear(config.text.dim, 1)

    @property
    def scale(self) -> Tensor:
        """The learned factor on the cosines before the softmax, at most 100."""
        return self.log_scale.exp().clamp(max=LARGEST_SCALE)

    def encode_image(self, pixels: Tensor) -> Encoded:
        """Encode images [B, channels, height, width], uint8 or floats from 0 to 1: return hidden states and vectors.

        The states [B, K, M] are one for each patch, row by row; the vectors are one for each image.

        Raises:
            ShapeError: images of another size.
        """
        states = self.image(pixels)
        return Encoded(states, normalize(self.image_projection(states.mean(1)), dim=-1))

    def encode_text(self, input_ids: Tensor, real: Tensor | None = None) -> Encoded:
        """Encode texts [B, S] (`real`: True or 1 = a real token): return states [B, S, M], and one vector per text."""
        states = self.text(input_ids, real)
        return Encoded(states, normalize(self.text_projection(average_real(states, real)), dim=-1))

    def match(self, image_states: Tensor, text_states: Tensor, real: Tensor | None = None) -> Tensor:
        """Compute the logits [B] that text b belongs to image b, from states [B, K, M] and [B, S, M]; `real` [B, S]."""
        return self.matched(average_real(self.fusion(text_states, image_states, real=real), real)).squeeze(-1)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile those submodules that training calls directly."""
        for part in (self.image, self.text, self.fusion):
            part.compile(*args, **kwargs)

    def forward(self, pixels: Tensor, input_ids: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute for each pair of an image and a text the cosine [B], and the logit [B] that they belong together."""
        image, text = self.encode_image(pixels), self.encode_text(input_ids, real)
        return (image.vector * text.vector).sum(-1), self.match(image.states, text.states, real)


class PatchEncoder(nn.Module):
    """A transformer over the patches of an image, each with a learned vector for its row and one for its column.

    ViT (Dosovitskiy et al. 2021) with factorised positions (Dehghani et al. 2023, section 3.2) and without [CLS].
    """

    def __init__(self, config: ImageTextConfig) -> None:
        super().__init__()
        self.config = config
        dim, std = config.dim, config.dim**-0.5
        self.patch = nn.Linear(config.channels * config.patch_size**2, dim)
        self.row = positions.Learned(config.grid, dim, std=std)
        self.column = positions.Learned(config.grid, dim, std=std)
        self.encoder = Encoder(dim, num_layers=config.image_layers, num_heads=config.num_heads, dropout=config.dropout)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the hidden states [B, K, M] of the patches of images [B, channels, height, width], row by row."""
        config = self.config
        expected = [config.channels, config.image_size, config.image_size]
        if pixels.dim() != 4 or list(pixels.shape[1:]) != expected:
            raise ShapeError(
                f"pixels: expected [B, {', '.join(map(str, expected))}]. Received: pixels={list(pixels.shape)}"
            )
        pixels = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        mean, std = (pixels.new_tensor(x)[:, None, None] for x in (config.mean, config.std))
        patches_BKP = unfold((pixels - mean) / std, config.patch_size, stride=config.patch_size).mT
        place = (self.row.weight[:, None] + self.column.weight[None]).flatten(0, 1)
        return self.encoder(self.patch(patches_BKP) + place)
