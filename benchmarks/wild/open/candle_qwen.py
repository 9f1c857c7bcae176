"""As soon as a padding mask is given only the padding is masked and the causal triangle is forgotten.

huggingface/candle #3567 (2026)
https://github.com/huggingface/candle/issues/3567
"""
import torch
import torch.nn as nn


def _build(rev):
    class Attention(nn.Module):
        def __init__(self, hidden_size, num_heads):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.q_proj = nn.Linear(hidden_size, hidden_size)
            self.k_proj = nn.Linear(hidden_size, hidden_size)
            self.v_proj = nn.Linear(hidden_size, hidden_size)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def forward(self, xs, attention_mask):
            b, t, _ = xs.shape
            q, k, v = (p(xs).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            attn = q @ k.transpose(2, 3) * self.head_dim ** -0.5
            if attention_mask is not None:
                attn = attn + attention_mask
            return self.o_proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))

    class Model(nn.Module):
        """A causal language model; forward(input_ids, attn_mask=None), attn_mask (B, T): 1 token, 0 padding (right)."""

        def __init__(self, vocab_size=64, hidden_size=32, num_heads=4, num_layers=2):
            super().__init__()
            self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
            self.wpe = nn.Embedding(64, hidden_size)
            self.layers = nn.ModuleList(Attention(hidden_size, num_heads) for _ in range(num_layers))
            self.norm = nn.RMSNorm(hidden_size)
            self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

        def prepare_causal_attention_mask(self, t, device):
            return torch.full((t, t), float("-inf"), device=device).triu(1)[None, None]

        def prepare_attention_mask(self, attn_mask):
            b, t = attn_mask.shape
            mask = (attn_mask == 0)[:, None, None, :].expand(b, 1, t, t)
            if rev == 2:
                mask = mask | torch.ones(t, t, dtype=torch.bool, device=attn_mask.device).triu(1)
            return torch.zeros(b, 1, t, t, device=attn_mask.device).masked_fill(mask, torch.finfo(torch.float32).min)

        def forward(self, input_ids, attn_mask=None):
            t = input_ids.shape[1]
            if attn_mask is not None:
                mask = self.prepare_attention_mask(attn_mask)
            else:
                mask = self.prepare_causal_attention_mask(t, input_ids.device)
            xs = self.embed_tokens(input_ids) + self.wpe(torch.arange(t, device=input_ids.device))
            for layer in self.layers:
                xs = xs + layer(self.norm(xs), mask)
            return self.lm_head(self.norm(xs))

    torch.manual_seed(0)
    return Model()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(9)[None] < torch.tensor([9, 6])[:, None]).long()
    return (torch.randint(0, 64, (2, 9)),), {"attn_mask": mask}
