import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    """Decoder attention over the encoder output.

    In evaluation the keys and values of the memory are projected once and kept, since the memory stays
    the same over the steps of the decoding loop.
    """

    def __init__(self, d_model=128, n_heads=4, dropout=0.1):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self._memory_kv = None

    def _shape(self, t):
        return t.view(t.size(0), t.size(1), self.n_heads, self.d_head).transpose(1, 2)

    def _project_memory(self, memory):
        return self._shape(self.k_proj(memory)), self._shape(self.v_proj(memory))

    def _get_memory_kv(self, memory):
        if self.training:
            self._memory_kv = None
            return self._project_memory(memory)
        kv = self._memory_kv
        if kv is None or kv[0].size(0) != memory.size(0) or kv[0].size(2) != memory.size(1):
            self._memory_kv = self._project_memory(memory)
        return self._memory_kv

    def forward(self, x, memory, memory_mask=None):
        """
        x: (B, T, D) decoder states
        memory: (B, S, D) encoder output
        memory_mask: bool (B, S), True for the source tokens, False for padding
        """
        q = self._shape(self.q_proj(x))
        k, v = self._get_memory_kv(memory)
        if memory_mask is not None:
            memory_mask = memory_mask[:, None, None, :]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=memory_mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out_proj(out.transpose(1, 2).reshape(x.shape))
