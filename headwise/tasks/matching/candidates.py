"""Images and texts that a `Match` has read, ready to be compared: which are alike, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headwise.models.image_text import ImageText
from headwise.tasks.rows.pictures import Pixels
from headwise.tasks.scoring.retrieval import best_first
from headwise.tasks.text.padding import padded

AT_ONCE = 256  # images, texts or pairs in a pass


@dataclass(frozen=True)
class Candidates:
    """U images and T texts.

    Args:
        image_vectors, text_vectors: [U, W] and [T, W], of length 1.
        image_states, text_states: [U, K, M] and [T, S, M], of patches and of tokens.
        real: bool [T, S], True = a token.
    """

    model: ImageText
    image_vectors: Tensor
    image_states: Tensor
    text_vectors: Tensor
    text_states: Tensor
    real: Tensor

    @classmethod
    @torch.no_grad()
    def read(cls, model: ImageText, images: Sequence[Pixels], texts: Sequence[Sequence[int]], pad: int) -> Candidates:
        """Read images, and texts given as ids."""
        device = model.log_scale.device
        pixels, ids = batch_of_images(images), batch_of_texts(texts, pad)
        seen = [model.encode_image(some.to(device)) for some in pixels.split(AT_ONCE)]
        parts = zip(ids["input_ids"].split(AT_ONCE), ids["real"].split(AT_ONCE), strict=True)
        read = [model.encode_text(some.to(device), real.to(device)) for some, real in parts]
        return cls(
            model,
            torch.cat([each.vector for each in seen]),
            torch.cat([each.states for each in seen]),
            torch.cat([each.vector for each in read]),
            torch.cat([each.states for each in read]),
            ids["real"].to(device),
        )

    @property
    def similarity(self) -> Tensor:
        """The cosines of all pairs, [U, T]."""
        return self.image_vectors @ self.text_vectors.mT

    @torch.no_grad()
    def match(self, images: Tensor, texts: Tensor) -> Tensor:
        """Whether text belongs to image, a logit for each of the pairs: places int64 [P] and [P] -> [P]."""
        parts = zip(images.split(AT_ONCE), texts.split(AT_ONCE), strict=True)
        return torch.cat([self.model.match(self.image_states[i], self.text_states[t], self.real[t]) for i, t in parts])

    def best_images(self, rerank: int, depth: int) -> Tensor:
        """The places of the images that match each text best, best first: [T, depth]."""
        return best_first(self.similarity.mT, lambda texts, images: self.score(images, texts), rerank, depth)

    def best_texts(self, rerank: int, depth: int) -> Tensor:
        """The places of the texts that match each image best, best first: [U, depth]."""
        return best_first(self.similarity, self.score, rerank, depth)

    @torch.no_grad()
    def score(self, images: Tensor, texts: Tensor) -> Tensor:
        """What puts candidates in order, [P]: the log of the softmax over all, but for what these have in common,
        and the log of how likely the two belong together. Li et al. 2022 (BLIP) add both up too."""
        return self.model.scale * self.cosines(images, texts) + logsigmoid(self.match(images, texts))

    def cosines(self, images: Tensor, texts: Tensor) -> Tensor:
        """Of each of the pairs, [P]."""
        return (self.image_vectors[images] * self.text_vectors[texts]).sum(-1)


def batch_of_images(images: Sequence[Pixels]) -> Tensor:
    """uint8 [B, channels, height, width]."""
    return torch.stack([torch.from_numpy(pixels) for pixels in images]).permute(0, 3, 1, 2)


def batch_of_texts(texts: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """ "input_ids" [B, S] with padding behind the shorter ones, and "real" [B, S], True = a token."""
    ids = padded(texts, pad)
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "real": torch.arange(ids.shape[1]) < lengths[:, None]}
