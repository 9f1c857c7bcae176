"""Sets: how many different numbers are in one? A Set Transformer, to which their order does not matter."""

import torch
from torch import nn

from headwise.nn import LatentAttention

torch.manual_seed(0)
style = {"num_heads": 4, "norm_first": False, "activation": "relu"}
embed, count = nn.Embedding(6, 32), nn.Linear(32, 7)
isab = LatentAttention(4, 32, read_out=True, **style)  # each number learns of the others, by way of 4 latents
pool = LatentAttention(1, 32, **style)  # PMA: one latent reads them all


def sets(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Up to 8 numbers from 0 to 5, which of them are no padding, and how many are different."""
    numbers, real = torch.randint(6, (size, 8)), torch.arange(8) < torch.randint(1, 9, (size, 1))
    return numbers, real, ((numbers[..., None] == torch.arange(6)) & real[..., None]).any(1).sum(1)


def answer(numbers: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Logits of 0 … 6 different numbers, [B, 7]."""
    return count(pool(isab(embed(numbers), real=real), real=real)[:, 0])


optimiser = torch.optim.AdamW(nn.ModuleList([embed, isab, pool, count]).parameters(), lr=4e-3)
for _ in range(150):
    numbers, real, different = sets(64)
    nn.functional.cross_entropy(answer(numbers, real), different).backward()
    optimiser.step()
    optimiser.zero_grad()

(numbers, real, different), order = sets(1000), torch.randperm(8)
found = answer(numbers, real)
accuracy = (found.argmax(1) == different).float().mean().item()
moved = (found - answer(numbers[:, order], real[:, order])).abs().max().item()
print(f"accuracy {accuracy:.3f}; in another order no answer moves by more than {moved:.0e}")
