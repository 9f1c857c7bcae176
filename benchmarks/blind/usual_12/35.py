import torch
import torch.nn as nn
import torch.nn.functional as F


class DocumentMaskedAttention(nn.Module):
    """Attention for pre-training on concatenated documents.

    Args:
        x: (batch, seq, dim), each row a concatenation of documents.
        tokens: (batch, seq) token ids; a document ends with ``eos_id``. Tokens must not look
            across a document border.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, eos_id: int = 2, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.eos_id = eos_id
        self.dropout = dropout
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def document_ids(self, tokens):
        is_eos = (tokens == self.eos_id).long()
        return is_eos.cumsum(dim=1) - is_eos

    def build_mask(self, tokens):
        doc = self.document_ids(tokens)
        pos = torch.arange(tokens.shape[1], device=tokens.device)
        causal = pos[:, None] >= pos[None, :]
        document = doc[:, :, None] >= doc[:, None, :]
        return (causal & document).unsqueeze(1)

    def forward(self, x, tokens):
        B, T, C = x.shape
        q, k, v = (
            t.reshape(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
            for t in self.qkv_proj(x).split(C, dim=-1)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.build_mask(tokens), dropout_p=self.dropout if self.training else 0.0
        )
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))
