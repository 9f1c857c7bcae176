"""Images: where in a noisy picture are the ring and the cross? Two latents read its patches, one for each."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, fold

from headwise.nn import LatentAttention, positions
from headwise.text import Patches

torch.manual_seed(0)
RING = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]])
CROSS = torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]])


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures [B, 1, 16, 16] with a ring and a cross in two of their 16 patches, and in which [B, 2]."""
    patches, places = 0.4 * torch.randn(count, 16, 16), torch.rand(count, 16).argsort(1)[:, :2]
    patches[torch.arange(count)[:, None], places] += torch.stack([RING, CROSS]).flatten(1)
    return fold(patches.mT, (16, 16), kernel_size=4, stride=4), places


see, where, find = nn.Conv2d(1, 32, 4, stride=4), positions.Learned(16, 32, std=1.0), nn.Linear(32, 16)
read = LatentAttention(2, 32, num_heads=1, latent_names=["ring", "cross"])
optimiser = torch.optim.AdamW(nn.ModuleList([see, where, read, find]).parameters(), lr=4e-3)
for _ in range(300):
    image, places = images(64)
    patches = see(image).flatten(2).mT + where(torch.arange(16))  # [B, 16 patches, 32]: what each shows, and its place
    cross_entropy(find(read(patches)).mT, places).backward()
    optimiser.step()
    optimiser.zero_grad()

image, places = images(1000)
latents, seen = read(see(image).flatten(2).mT + where(torch.arange(16)), record=True)
accuracy = (find(latents).argmax(-1) == places).float().mean().item()
print(f"accuracy {accuracy:.3f}")
seen.tokens = Patches(4, 4, prefix=())  # so that headwise.view(seen, images=…) lays the weights over a picture
for name, weights in zip(seen.row_labels(seen[0]), seen[0].weights()[0, 0], strict=True):
    print(f"{name}\n{weights.view(4, 4).numpy().round(2)}")
