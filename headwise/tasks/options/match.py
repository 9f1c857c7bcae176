"""The options of `headwise train match`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions, check_heads, column, option


@dataclass(frozen=True, kw_only=True)
class MatchOptions(TrainOptions):
    """The options of the task `match`.

    Raises:
        ArgumentError, DtypeError: a value has a wrong type, is out of range, or does not fit another one.
    """

    about = "Maps images and texts to vectors, and scores whether a text describes an image."
    data_example = "pairs.csv --image path --text caption"

    image: str = column("image", "The column with images: paths relative to the folder of the table.")
    text: str = column("text", "The column with the texts.")
    image_size: int = option(32, "Every image is scaled to a square of this side in pixels.", least=1)
    patch_size: int = option(4, "Side of a patch in pixels; attention is between patches.", least=1)
    channels: int = option(3, "1 = greyscale images, 3 = colour images.", least=1)
    model: str | None = option(
        None,
        "A BERT for the texts: hub id, folder, or run folder. Default: a small one from scratch.",
        metavar="MODEL",
    )
    vocab_size: int = option(4000, "From scratch: most subwords learned from the texts.", least=100)
    lowercase: bool = option(True, "From scratch: ignore case.")
    max_length: int = option(64, "Most tokens in a text.", least=3)
    dim: int = option(64, "The dimension of the image encoder, and of a text encoder from scratch.", least=1)
    image_layers: int = option(2, "Layers of the image encoder.", least=1)
    text_layers: int = option(1, "Layers of a text encoder from scratch.", least=1)
    fusion_layers: int = option(1, "Layers in which the text attends to the patches.", least=1)
    heads: int = option(4, "Attention heads per layer.", least=1)
    shared_dim: int = option(64, "The dimension of the vectors of images and texts.", least=1)
    rerank: int = option(16, "Rerank this many nearest candidates with the fusion layers; 0 = none.", least=0)
    gallery: int = option(1000, "Number of images and texts saved as candidates for predictions.", least=0)

    epochs: int = option(20, "Number of epochs.", least=1)
    batch_tokens: int = option(16384, "Patches and tokens per batch, over all devices.", least=1)
    batch_size: int | None = option(64, "Most pairs in a batch; each is contrasted with the others.", least=2)
    lr: float = option(2e-3, "The highest learning rate.")

    @property
    def input_example(self) -> str:
        return '"a text"' if self.gallery else ""  # without a gallery, only pairs can be scored

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels not in (1, 3):
            raise ArgumentError(f"channels: expected 1 (grey) or 3 (colour). Received: channels={self.channels}")
        if self.image_size % self.patch_size:
            raise ArgumentError(
                f"patch_size: expected a divisor of image_size={self.image_size}. "
                f"Received: patch_size={self.patch_size}"
            )
        check_heads(self)
