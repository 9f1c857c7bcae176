"""Encoded images and texts of a `Match`, and scores of their pairs: similarity, and whether they belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headwise.models.image_text import Encoded, ImageText
from headwise.tasks.rows.pictures import Pixels
from headwise.tasks.scoring.retrieval import best_first
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.subwords import Read, Subwords

AT_ONCE = 256  # images, texts or pairs in a pass


@dataclass(frozen=True)
class Candidates:
    """U encoded images and T encoded texts, any pair of which can be scored.

    Args:
        images: hidden states [U, K, M] of patches, and vectors [U, W] of length 1.
        texts: hidden states [T, S, M] of tokens, and vectors [T, W] of length 1.
        real: bool [T, S], True = a token, not padding.
    """

    model: ImageText
    images: Encoded
    texts: Encoded
    real: Tensor

    @property
    def similarity(self) -> Tensor:
        """The cosine of every image with every text, [U, T]."""
        return self.images.vector @ self.texts.vector.mT

    @torch.no_grad()
    def match(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the logits [P] that image and text belong together, for P pairs (int64 indices of each)."""
        pairs = zip(images.split(AT_ONCE), texts.split(AT_ONCE), strict=True)
        seen, read = self.images.states, self.texts.states
        return torch.cat([self.model.match(seen[i], read[t], self.real[t]) for i, t in pairs])

    def best_images(self, rerank: int, depth: int) -> Tensor:
        """Return for each text the indices of the images that match it best, best first: int64 [T, depth]."""
        return best_first(self.similarity.mT, lambda texts, images: self.score(images, texts), rerank, depth)

    def best_texts(self, rerank: int, depth: int) -> Tensor:
        """Return for each image the indices of the texts that match it best, best first: int64 [U, depth]."""
        return best_first(self.similarity, self.score, rerank, depth)

    @torch.no_grad()
    def score(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the scores [P] that order candidates: scaled cosine plus the log-probability that the pair matches.

        The scaled cosine is the log-softmax of the contrastive loss, up to a term that all candidates share. Li et al.
        2022 (BLIP) also add the two scores.
        """
        return self.model.scale * self.cosines(images, texts) + logsigmoid(self.match(images, texts))

    def cosines(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the cosine [P] of each of P pairs, given as indices of images and of texts."""
        return (self.images.vector[images] * self.texts.vector[texts]).sum(-1)


@torch.no_grad()
def encode_images(model: ImageText, images: Sequence[Pixels]) -> Encoded:
    """Encode the images, at most `AT_ONCE` in a pass."""
    parts = stack_images(images).split(AT_ONCE)
    return _joined([model.encode_image(some.to(model.log_scale.device)) for some in parts])


@torch.no_grad()
def encode_texts(model: ImageText, texts: Sequence[Sequence[int]], pad: int) -> tuple[Encoded, Tensor]:
    """Encode texts, given as ids, at most `AT_ONCE` in a pass. Returns also `real`, True = a token, not padding."""
    device, batch = model.log_scale.device, pad_texts(texts, pad)
    ids, real = batch["input_ids"].to(device), batch["real"].to(device)
    parts = zip(ids.split(AT_ONCE), real.split(AT_ONCE), strict=True)
    return _joined([model.encode_text(*some) for some in parts]), real


def _joined(parts: Sequence[Encoded]) -> Encoded:
    return Encoded(torch.cat([each.states for each in parts]), torch.cat([each.vector for each in parts]))


def room_for(subwords: Subwords, most: int) -> int:
    """Return how many tokens of a text are read, if it may have at most `most` tokens including special tokens."""
    return most - subwords.frames[0].size


def make_ids(subwords: Subwords, texts: Sequence[str], most: int, read: Read | None = None) -> list[list[int]]:
    """Return for each text the ids that the model reads, at most `most`.

    `read`: the tokens of the only text, if they are known.
    """
    found = subwords.pieces(texts) if read is None else read.pieces
    return [subwords.pair(pieces.ids[: room_for(subwords, most)])[0] for pieces in found]


def stack_images(images: Sequence[Pixels]) -> Tensor:
    """Stack the images into one tensor, uint8 [B, channels, height, width]."""
    return torch.stack([torch.from_numpy(pixels) for pixels in images]).permute(0, 3, 1, 2)


def pad_texts(texts: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """Return "input_ids" [B, S], with padding after shorter texts, and "real" [B, S], True = a token."""
    ids, real = padded_with_real(texts, pad)
    return {"input_ids": ids, "real": real}
