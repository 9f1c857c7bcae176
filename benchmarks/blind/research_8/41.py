import torch
import torch.nn as nn
import torch.nn.functional as F


class BehaviorSequenceTransformer(nn.Module):
    """BST for click-through rate prediction.

    The candidate item is put behind the user's history and the whole sequence goes through one
    transformer layer.

    Args:
        history: [B, L] item ids, 0 = padding (behind the real items)
        ages: [B, L] bucketised time since the interaction
        candidate: [B] item ids
        user: [B, user_dim] profile features
    Returns:
        click logits [B]
    """

    def __init__(self, num_items=1000, dim=32, num_heads=4, max_len=20, num_ages=16, user_dim=8, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.item = nn.Embedding(num_items, dim, padding_idx=0)
        self.age = nn.Embedding(num_ages, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.LeakyReLU(), nn.Linear(2 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(2 * dim + user_dim, 64), nn.LeakyReLU(), nn.Linear(64, 1))

    def forward(self, history, ages, candidate, user):
        b, length = history.shape
        seq = self.item(history) + self.age(ages)
        target = self.item(candidate) + self.age.weight[0]
        x = torch.cat([seq, target.unsqueeze(1)], dim=1)
        valid = F.pad(history != 0, (1, 0), value=True)

        t = length + 1
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :], dropout_p=p)
        x = self.norm1(x + self.proj(y.transpose(1, 2).reshape(b, t, -1)))
        x = self.norm2(x + F.dropout(self.ffn(x), self.dropout, self.training))

        real = (history != 0).unsqueeze(-1).to(x.dtype)
        pooled = (x[:, :-1] * real).sum(1) / real.sum(1).clamp(min=1.0)
        return self.head(torch.cat([pooled, x[:, -1], user], dim=-1)).squeeze(-1)
