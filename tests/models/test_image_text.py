"""Two encoders and the layers on top: the shapes of what they give, and images that they refuse."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import ShapeError
from headwise.models import BertConfig
from headwise.models.image_text import ImageText, ImageTextConfig


@pytest.fixture
def model() -> ImageText:
    text = BertConfig(vocab_size=10, dim=8, num_layers=1, num_heads=2, ffn_dim=8, pooler=False)
    return ImageText(ImageTextConfig(text, image_size=8, dim=8, image_layers=1, fusion_layers=1, num_heads=2)).eval()


def test_vectors_of_length_1_states_of_patches_and_a_logit_for_each_pair(model: ImageText) -> None:
    image = model.encode_image(torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8))
    text = model.encode_text(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    for each in (image, text):
        torch.testing.assert_close(each.vector.norm(dim=-1), torch.ones(2))
    assert list(image.states.shape) == [2, model.config.grid**2, 8]
    assert list(model.match(image.states, text.states).shape) == [2]


@pytest.mark.parametrize("size", [(1, 3, 8, 4), (3, 8, 8), (1, 1, 8, 8)])
def test_images_of_another_size_are_refused(size: tuple[int, ...], model: ImageText) -> None:
    with pytest.raises(ShapeError, match=r"pixels: expected \[B, 3, 8, 8\]. Received: pixels=\["):
        model.encode_image(torch.zeros(size))
