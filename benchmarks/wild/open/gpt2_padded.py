"""Position embeddings count from the start of the row although the batch is padded on the left.

huggingface/transformers #29583 (2024)
https://github.com/huggingface/transformers/pull/29583
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class GPT2Attention(nn.Module):
        def __init__(self, n_embd, n_head):
            super().__init__()
            self.n_head = n_head
            self.c_attn = nn.Linear(n_embd, 3 * n_embd)
            self.c_proj = nn.Linear(n_embd, n_embd)

        def forward(self, x, attn_mask):
            B, T, C = x.shape
            q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    class GPT2Model(nn.Module):
        """forward(input_ids, attention_mask=None): attention_mask (B, T), 1 token, 0 padding (generation pads on the
        left). A padded row gives the same hidden states at its tokens as the row alone without padding."""

        def __init__(self, vocab_size=64, n_positions=64, n_embd=32, n_head=4, n_layer=2):
            super().__init__()
            self.wte = nn.Embedding(vocab_size, n_embd)
            self.wpe = nn.Embedding(n_positions, n_embd)
            self.h = nn.ModuleList(GPT2Attention(n_embd, n_head) for _ in range(n_layer))
            self.ln = nn.ModuleList(nn.LayerNorm(n_embd) for _ in range(n_layer))
            self.ln_f = nn.LayerNorm(n_embd)

        def forward(self, input_ids, attention_mask=None):
            B, T = input_ids.shape
            if attention_mask is None:
                attention_mask = torch.ones_like(input_ids)
            if rev == 1:
                position_ids = torch.arange(T, device=input_ids.device)[None].expand(B, T)
            else:
                position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            keep = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).tril()
            keep = keep[None, None] & attention_mask[:, None, None, :].bool()
            keep = keep | torch.eye(T, dtype=torch.bool, device=input_ids.device)
            h = self.wte(input_ids) + self.wpe(position_ids)
            for ln, block in zip(self.ln, self.h):
                h = h + block(ln(h), keep)
            return self.ln_f(h)

    torch.manual_seed(0)
    return GPT2Model()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(9)[None] >= torch.tensor([0, 3])[:, None]).long()
    return (torch.randint(0, 64, (2, 9)),), {"attention_mask": mask}
