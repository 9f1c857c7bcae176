"""Two modalities: words look at the patches of a picture. What colour is the ring, what colour is the cross?"""

import torch
from torch import einsum, nn

from headwise.nn import MultiHeadAttention

torch.manual_seed(0)
WORDS, COLOURS = ["ring", "cross", "bar", "dash"], ["red", "green", "blue"]
PLACES = ["at the top left", "at the top right", "at the bottom left", "at the bottom right"]
SHAPES = torch.tensor([[1.0] * 4 + [0] + [1] * 4, [1, 0] * 4 + [1], [0, 1, 0] * 3, [0] * 3 + [1] * 3 + [0] * 3])


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures of four patches [B, 4, 9 pixels × RGB], on each a shape; each shape's place and colour, [B, 4]."""
    places, colours = torch.rand(count, 4).argsort(1), torch.randint(3, (count, 4))
    patches = 0.2 * torch.randn(count, 4, 27)
    patches[torch.arange(count)[:, None], places] += einsum("sp,bsc->bspc", SHAPES, torch.eye(3)[colours]).flatten(2)
    return patches, places, colours


text, see, colour = nn.Embedding(4, 32), nn.Sequential(nn.Linear(27, 64), nn.ReLU()), nn.Linear(32, 3)
look = MultiHeadAttention(32, num_heads=1, kdim=64)  # queries are words, 32 wide; keys and values patches, 64 wide
optimiser = torch.optim.AdamW(nn.ModuleList([text, see, colour, look]).parameters(), lr=4e-3)
for _ in range(300):
    patches, places, colours = pictures(128)
    out = look(text.weight.expand(128, -1, -1), see(patches))  # [B, 4 words, 32]
    nn.functional.cross_entropy(colour(out).mT, colours).backward()
    optimiser.step()
    optimiser.zero_grad()

patches, places, colours = pictures(1000)
out, record = look(text.weight.expand(1000, -1, -1), see(patches), record=True)
accuracy = (colour(out).argmax(-1) == colours).float().mean().item()
record.row_names, record.col_names = WORDS, PLACES
looks = (record.weights()[:, 0].argmax(-1) == places).float().mean().item()
print(f"accuracy {accuracy:.3f}; looks most at what it is asked about in {looks:.0%}")
for word, weights, answer in zip(record.row_names, record.weights()[0, 0], colour(out)[0], strict=True):
    print(f"the {COLOURS[answer.argmax()]} {word} is {record.col_names[weights.argmax()]} ({weights.max():.2f})")
