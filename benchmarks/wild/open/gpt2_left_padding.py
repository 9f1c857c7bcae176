"""Left-padded prompts get positions counted from the padding, so short prompts read shifted position embeddings.

ndif-team/nnsight #673 (2026)
https://github.com/ndif-team/nnsight/pull/673
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GPT2Block(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(hidden_size)
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)
        self.ln_2 = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 4 * hidden_size), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * hidden_size, hidden_size))

    def forward(self, hidden_states, attention_mask):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for t in self.c_attn(self.ln_1(hidden_states)).chunk(3, dim=-1))
        attn_output = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        hidden_states = hidden_states + self.c_proj(attn_output.transpose(1, 2).flatten(2))
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class _LanguageModelBase(nn.Module):
    """
    GPT-2 with learned absolute positions. Batches of prompts are padded on the left (padding_side = "left").

    input_ids: [batch, seq]; attention_mask: [batch, seq], 1 for tokens, 0 for padding. Returns the logits.
    """

    def __init__(self, vocab_size=50, n_positions=64, hidden_size=32, num_heads=4, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden_size)
        self.wpe = nn.Embedding(n_positions, hidden_size)
        self.h = nn.ModuleList([GPT2Block(hidden_size, num_heads) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        seq_len = input_ids.shape[1]
        position_ids = self.prepare_position_ids(input_ids, attention_mask)
        hidden_states = self.wte(input_ids) + self.wpe(position_ids)
        causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=input_ids.device).tril()
        mask = causal[None, None] & attention_mask[:, None, None, :].bool()
        # padding rows attend to themselves, so that no row is empty
        mask = mask | torch.eye(seq_len, dtype=torch.bool, device=input_ids.device)
        for block in self.h:
            hidden_states = block(hidden_states, mask)
        return self.lm_head(self.ln_f(hidden_states))


def broken() -> nn.Module:
    class LanguageModel(_LanguageModelBase):
        def prepare_position_ids(self, input_ids, attention_mask):
            return torch.arange(input_ids.shape[1], dtype=torch.long, device=input_ids.device).unsqueeze(0)

    torch.manual_seed(0)
    return LanguageModel()


def fixed() -> nn.Module:
    class LanguageModel(_LanguageModelBase):
        def prepare_position_ids(self, input_ids, attention_mask):
            position_ids = attention_mask.long().cumsum(-1) - 1
            return position_ids.masked_fill(attention_mask == 0, 0)

    torch.manual_seed(0)
    return LanguageModel()


def example() -> tuple[tuple, dict]:
    input_ids = torch.tensor([[3, 17, 8, 41, 5, 29], [0, 0, 0, 12, 9, 33]])
    return (input_ids,), {"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]])}
