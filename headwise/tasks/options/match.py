"""What can be chosen for `headwise train match`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions, option


@dataclass(frozen=True, kw_only=True)
class MatchOptions(TrainOptions):
    """Images and the texts that belong to them.

    Raises:
        ArgumentError, DtypeError: a value of another kind than its field, out of its range, or unlike another one.
    """

    image: str = option("image", "The column with images: paths, from the folder of the table.", metavar="COLUMN")
    text: str = option("text", "The column with the text of each.", metavar="COLUMN")
    image_size: int = option(32, "Pixels of a side: every image is brought to this size, a square.", least=1)
    patch_size: int = option(4, "Pixels of a side of a patch; attention is between patches.", least=1)
    channels: int = option(3, "1 = images are read as grey, 3 = in colour.", least=1)
    model: str | None = option(
        None,
        "A BERT that reads the texts: hub id, folder, or a run that has one. Default: a small one from scratch.",
        metavar="MODEL",
    )
    vocab_size: int = option(4000, "From scratch: subwords that are learned from the texts, at most.", least=100)
    lowercase: bool = option(True, "From scratch: whether upper and lower case are one.")
    max_length: int = option(64, "Tokens of a text at most.", least=3)
    dim: int = option(64, "The width of the image encoder, and of a text encoder from scratch.", least=1)
    image_layers: int = option(2, "Layers of the image encoder.", least=1)
    text_layers: int = option(1, "Layers of a text encoder from scratch.", least=1)
    fusion_layers: int = option(1, "Layers in which the text attends to the patches.", least=1)
    heads: int = option(4, "Attention heads of each layer.", least=1)
    shared_dim: int = option(64, "The width of the space in which images and texts are compared.", least=1)
    rerank: int = option(16, "So many of the nearest are put in order with the fusion layers; 0 = none.", least=0)
    gallery: int = option(1000, "Images and texts that the run keeps, to find some for others.", least=0)

    epochs: int = option(20, "How often the data are read.", least=1)
    batch_tokens: int = option(16384, "Patches and tokens in a batch, of all devices together.", least=1)
    batch_size: int | None = option(64, "Pairs in a batch at most; they are told apart from each other.", least=2)
    lr: float = option(2e-3, "The highest learning rate.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels not in (1, 3):
            raise ArgumentError(f"channels: expected 1 (grey) or 3 (colour), received {self.channels}")
        if self.image_size % self.patch_size:
            raise ArgumentError(
                f"patch_size: expected a number that divides image_size={self.image_size}, received {self.patch_size}"
            )
        if self.dim % self.heads:
            raise ArgumentError(f"dim: expected a multiple of heads={self.heads}, received {self.dim}")
