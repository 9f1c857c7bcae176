"""When attention weights are requested the eager branch runs without any causal mask, so tokens see the future.

huggingface/transformers #30652 (2024)
https://github.com/huggingface/transformers/pull/30652
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class LlamaRotaryEmbedding(nn.Module):
        def __init__(self, dim, base=10000.0):
            super().__init__()
            self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

        def forward(self, position_ids):
            freqs = position_ids[..., None].float() * self.inv_freq
            emb = torch.cat((freqs, freqs), dim=-1)
            return emb.cos()[:, None], emb.sin()[:, None]

    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    class LlamaSdpaAttention(nn.Module):
        def __init__(self, hidden_size, num_heads):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.rotary_emb = LlamaRotaryEmbedding(self.head_dim)

        def forward(self, hidden_states, attention_mask=None, position_ids=None, output_attentions=False):
            bsz, q_len, _ = hidden_states.size()
            q, k, v = (p(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            cos, sin = self.rotary_emb(position_ids)
            q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
            if output_attentions:
                attn_weights = q @ k.transpose(2, 3) / self.head_dim ** 0.5
                if attention_mask is not None:
                    attn_weights = attn_weights + attention_mask
                attn_weights = attn_weights.softmax(dim=-1)
                attn_output = attn_weights @ v
            else:
                attn_weights = None
                attn_output = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask,
                                                             is_causal=attention_mask is None and q_len > 1)
            attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, -1)
            return self.o_proj(attn_output), attn_weights

    class LlamaModel(nn.Module):
        """A decoder-only language model body.

        forward(input_ids, attention_mask=None, output_attentions=False): input_ids (B, T); attention_mask (B, T),
        1 for tokens and 0 for padding. Causal. Returns (hidden_states, per-layer weights or None).
        """

        def __init__(self, vocab_size=100, hidden_size=32, num_heads=4, num_layers=2):
            super().__init__()
            self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
            self.layers = nn.ModuleList(LlamaSdpaAttention(hidden_size, num_heads) for _ in range(num_layers))
            self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(num_layers))

        def _update_causal_mask(self, attention_mask, x, output_attentions):
            T = x.shape[1]
            skip = attention_mask is None or bool((attention_mask == 1).all())
            if rev == 2:
                skip = skip and not output_attentions
            if skip:
                return None                      # the kernel applies causality itself
            keep = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()[None, None]
            if attention_mask is not None:
                keep = keep & attention_mask[:, None, None, :].bool()
                keep = keep | torch.eye(T, dtype=torch.bool, device=x.device)
            return torch.zeros(keep.shape, dtype=x.dtype, device=x.device).masked_fill(~keep, torch.finfo(x.dtype).min)

        def forward(self, input_ids, attention_mask=None, output_attentions=False):
            h = self.embed_tokens(input_ids)
            position_ids = torch.arange(h.shape[1], device=h.device)[None]
            causal_mask = self._update_causal_mask(attention_mask, h, output_attentions)
            all_weights = ()
            for layer, norm in zip(self.layers, self.norms):
                a, w = layer(norm(h), causal_mask, position_ids, output_attentions)
                h = h + a
                all_weights += (w,)
            return h, (all_weights if output_attentions else None)

    torch.manual_seed(0)
    return LlamaModel()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randint(0, 100, (2, 9)),), {"output_attentions": True}
