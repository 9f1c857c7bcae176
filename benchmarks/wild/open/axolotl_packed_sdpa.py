"""Packed documents restart their positions but the SDPA path masks only causally, so they attend to each other.

axolotl-ai-cloud/axolotl #3796 (2026)
https://github.com/axolotl-ai-cloud/axolotl/pull/3796
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class LlamaDecoderLayer(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.input_layernorm = nn.RMSNorm(hidden_size)
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(hidden_size)
        self.gate_up_proj = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.down_proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, cos, sin, attention_mask):
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
                   for t in self.qkv_proj(self.input_layernorm(hidden_states)).chunk(3, dim=-1))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        attn_output = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        hidden_states = hidden_states + self.o_proj(attn_output.transpose(1, 2).flatten(2))
        gate, up = self.gate_up_proj(self.post_attention_layernorm(hidden_states)).chunk(2, dim=-1)
        return hidden_states + self.down_proj(F.silu(gate) * up)


class _LlamaForCausalLMBase(nn.Module):
    """
    input_ids: [batch, seq]. With sample packing several documents share a row and position_ids, [batch, seq],
    restart at 0 where each of them begins; documents must not see one another.
    """

    def __init__(self, vocab_size=50, hidden_size=32, num_heads=4, num_layers=2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList([LlamaDecoderLayer(hidden_size, num_heads) for _ in range(num_layers)])
        self.norm = nn.RMSNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
        head_dim = hidden_size // num_heads
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, head_dim, 2).float() / head_dim)), persistent=False)

    def forward(self, input_ids, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None].expand_as(input_ids)
        freqs = position_ids[:, None, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        attention_mask = self.build_mask(input_ids, position_ids)
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, emb.cos(), emb.sin(), attention_mask)
        return self.lm_head(self.norm(hidden_states))


def broken() -> nn.Module:
    class LlamaForCausalLM(_LlamaForCausalLMBase):
        def build_mask(self, input_ids, position_ids):
            """Boolean mask [1 or batch, 1, seq, seq], True = attend."""
            seq_len = input_ids.shape[1]
            causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=input_ids.device).tril()
            return causal[None, None]

    torch.manual_seed(0)
    return LlamaForCausalLM()


def fixed() -> nn.Module:
    class LlamaForCausalLM(_LlamaForCausalLMBase):
        def build_mask(self, input_ids, position_ids):
            """Boolean mask [1 or batch, 1, seq, seq], True = attend."""
            seq_len = input_ids.shape[1]
            causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=input_ids.device).tril()
            segment_ids = (position_ids == 0).cumsum(dim=-1)
            same_document = segment_ids[:, :, None] == segment_ids[:, None, :]
            return (causal & same_document)[:, None]

    torch.manual_seed(0)
    return LlamaForCausalLM()


def example() -> tuple[tuple, dict]:
    input_ids = torch.tensor([[3, 17, 8, 41, 5, 29, 12, 9, 33, 7]])
    return (input_ids,), {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]])}
