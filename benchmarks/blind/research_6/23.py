import torch
import torch.nn as nn
import torch.nn.functional as F


class BehaviorSequenceTransformer(nn.Module):
    """BST for click prediction: the candidate is appended to the behaviour sequence, one
    transformer layer runs over all of it, and an MLP gives the click logit.

    hist_items   long [B, T], 0 = padding
    target_item  long [B]
    """

    def __init__(self, num_items=1000, dim=32, num_heads=4, max_len=20, attn_dropout=0.2, mlp_dims=(64, 32)):
        super().__init__()
        self.max_len = max_len
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        self.item_embedding = nn.Embedding(num_items + 1, dim, padding_idx=0)
        self.position_embedding = nn.Embedding(max_len + 1, dim)
        self.W_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.W_o = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim), nn.LeakyReLU(), nn.Linear(dim, dim))
        self.norm2 = nn.LayerNorm(dim)
        mlp, last = [], 2 * dim
        for w in mlp_dims:
            mlp += [nn.Linear(last, w), nn.LeakyReLU()]
            last = w
        self.mlp = nn.Sequential(*mlp, nn.Linear(last, 1))

    def self_attention(self, x, real):
        B, L, D = x.shape
        q, k, v = self.W_qkv(x).chunk(3, dim=-1)
        q, k, v = [t.reshape(B, L, self.num_heads, D // self.num_heads).transpose(1, 2) for t in (q, k, v)]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=real[:, None, None, :], dropout_p=self.attn_dropout
        )
        return self.W_o(out.transpose(1, 2).reshape(B, L, D))

    def forward(self, hist_items, target_item):
        seq = torch.cat([hist_items, target_item.unsqueeze(1)], dim=1)
        real = seq != 0
        pos = torch.arange(seq.size(1), device=seq.device)
        x = self.item_embedding(seq) + self.position_embedding(pos)

        x = self.norm1(x + self.self_attention(x, real))
        x = self.norm2(x + self.ffn(x))

        history = x[:, :-1] * real[:, :-1].unsqueeze(-1)
        pooled = history.sum(1) / real[:, :-1].sum(1, keepdim=True).clamp(min=1)
        return self.mlp(torch.cat([pooled, x[:, -1]], dim=-1)).squeeze(-1)
