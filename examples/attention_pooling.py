"""Attention pooling: one learned latent reads a review. Its strongest word decides whether it praises."""

import torch
from torch import nn

from headwise.nn import LatentAttention

torch.manual_seed(0)
OTHERS = ["·", "the", "a", "film", "book", "was", "is", "very", "plot", "we", "saw", "it"]  # · is padding
WORDS = [*OTHERS, "weak", "fine", "bad", "good", "awful", "great", "dire", "superb"]  # ever stronger, in turn bad, good


def reviews(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words [B, 12], the first 5 to 12 of them real; which those are; which word is the strongest [B, 1]."""
    ids, real = torch.randint(1, len(WORDS), (count, 12)), torch.arange(12) < torch.randint(5, 13, (count, 1))
    ids[:, 0] = torch.randint(len(OTHERS), len(WORDS), (count,))  # one at least judges
    ids = ids.where(real, 0)
    return ids, real, ids.amax(1, keepdim=True)


embed, judge = nn.Embedding(len(WORDS), 16), nn.Linear(16, 1)
pool = LatentAttention(1, 16, num_heads=1, latent_names=["verdict"])
optimiser = torch.optim.AdamW(nn.ModuleList([embed, pool, judge]).parameters(), lr=5e-3)
for _ in range(300):
    ids, real, strongest = reviews(128)
    praise = judge(pool(embed(ids), real=real)).squeeze(1)  # [B, 1]
    nn.functional.binary_cross_entropy_with_logits(praise, (strongest % 2).float()).backward()
    optimiser.step()
    optimiser.zero_grad()

ids, real, strongest = reviews(1000)
pooled, seen = pool(embed(ids), real=real, record=True)  # [1000, 1, 16], and what the latent looked at
accuracy = ((judge(pooled).squeeze(1) > 0) == strongest % 2).float().mean().item()
looks = (ids.gather(1, seen[0].weights()[:, 0, 0].argmax(1, keepdim=True)) == strongest).float().mean().item()
print(f"accuracy {accuracy:.3f}; looks most at the strongest word in {looks:.0%} of the reviews")
seen.tokens = [[WORDS[i] for i in review] for review in ids]
for word, weight in zip(seen.col_labels(seen[0]), seen[0].weights()[0, 0, 0], strict=True):
    print(f"{seen.row_labels(seen[0])[0]} → {word:8} {weight:.2f}")
