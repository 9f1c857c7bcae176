"""The padding mask is cut to key_states.shape[-2], which is the number of heads in the flash layout.

huggingface/transformers #36477 (2025)
https://github.com/huggingface/transformers/pull/36477
"""
import torch
from torch import nn


def _flash_attention_forward(query_states, key_states, value_states, attention_mask, softmax_scale):
    """Variable length causal attention on (batch, seq, heads, head_dim); padding is removed before the kernel.

    attention_mask: (batch, key_len) with 1 for tokens to keep. Padded rows of the output are zero.
    """
    out = torch.zeros_like(query_states)
    seqlens = attention_mask.sum(dim=-1).tolist()
    for b, n in enumerate(seqlens):
        idx = attention_mask[b].nonzero().flatten()
        q, k, v = (t[b, idx].transpose(0, 1) for t in (query_states, key_states, value_states))
        scores = (q @ k.transpose(-1, -2)) * softmax_scale
        causal = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        probs = scores.masked_fill(~causal, float("-inf")).softmax(dim=-1)
        out[b, idx] = (probs @ v).transpose(0, 1)
    return out


class _WhisperFlashAttention2Base(nn.Module):
    """Whisper decoder self attention using the flash attention layout (batch, seq, heads, head_dim)."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor: torch.Tensor):
        bsz, seq_len, _ = tensor.shape
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim)


def broken() -> nn.Module:
    class WhisperFlashAttention2(_WhisperFlashAttention2Base):
        def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor = None):
            """attention_mask: `(batch, sequence_length)`, 1 for tokens to attend to, 0 for padding."""
            bsz, tgt_len, _ = hidden_states.shape
            query_states = self._shape(self.q_proj(hidden_states))
            key_states = self._shape(self.k_proj(hidden_states))
            value_states = self._shape(self.v_proj(hidden_states))

            if attention_mask is None:
                attention_mask = torch.ones(bsz, tgt_len, dtype=torch.long, device=hidden_states.device)
            causal_mask = attention_mask[:, : key_states.shape[-2]]

            attn_output = _flash_attention_forward(
                query_states, key_states, value_states, causal_mask, softmax_scale=self.scaling)
            return self.out_proj(attn_output.reshape(bsz, tgt_len, self.embed_dim))

    torch.manual_seed(0)
    return WhisperFlashAttention2(32, 4)


def fixed() -> nn.Module:
    class WhisperFlashAttention2(_WhisperFlashAttention2Base):
        def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor = None):
            """attention_mask: `(batch, sequence_length)`, 1 for tokens to attend to, 0 for padding."""
            bsz, tgt_len, _ = hidden_states.shape
            query_states = self._shape(self.q_proj(hidden_states))
            key_states = self._shape(self.k_proj(hidden_states))
            value_states = self._shape(self.v_proj(hidden_states))

            if attention_mask is None:
                attention_mask = torch.ones(bsz, tgt_len, dtype=torch.long, device=hidden_states.device)
            causal_mask = attention_mask[:, : key_states.shape[-3]]

            attn_output = _flash_attention_forward(
                query_states, key_states, value_states, causal_mask, softmax_scale=self.scaling)
            return self.out_proj(attn_output.reshape(bsz, tgt_len, self.embed_dim))

    torch.manual_seed(0)
    return WhisperFlashAttention2(32, 4)


def example():
    g = torch.Generator().manual_seed(8)
    x = torch.randn(2, 10, 32, generator=g)
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 7:] = 0
    return (x,), {"attention_mask": mask}
