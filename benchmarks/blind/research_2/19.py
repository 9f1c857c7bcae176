import torch
import torch.nn as nn


class RevIN(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def norm(self, x):
        self.mean = x.mean(dim=1, keepdim=True).detach()
        self.stdev = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + self.eps).detach()
        return (x - self.mean) / self.stdev

    def denorm(self, x):
        return x * self.stdev + self.mean


class _MultiheadAttention(nn.Module):
    def __init__(self, d_model, n_heads, attn_dropout=0.):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.scale = self.d_k ** -0.5
        self.attn_dropout = nn.Dropout(attn_dropout)
        self.to_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        bs, q_len, d_model = x.shape
        q_s = self.W_Q(x).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        k_s = self.W_K(x).view(bs, -1, self.n_heads, self.d_k).permute(0, 2, 3, 1)
        v_s = self.W_V(x).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)

        attn_scores = torch.matmul(q_s, k_s) * self.scale
        attn_weights = self.attn_dropout(torch.softmax(attn_scores, dim=-1))
        output = torch.matmul(attn_weights, v_s)  # [bs x n_heads x q_len x d_k]
        output = output.contiguous().view(bs, q_len, d_model)
        return self.to_out(output)


class TSTEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = _MultiheadAttention(d_model, n_heads, dropout)
        self.norm_attn = nn.LayerNorm(d_model)
        self.norm_ffn = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))

    def forward(self, src):
        src = self.norm_attn(src + self.dropout(self.self_attn(src)))
        return self.norm_ffn(src + self.dropout(self.ff(src)))


class PatchTST(nn.Module):
    """Channel-independent patch transformer. x: [bs x seq_len x n_vars] -> [bs x pred_len x n_vars]"""

    def __init__(self, seq_len=96, pred_len=24, patch_len=16, stride=8, d_model=32, n_heads=4, n_layers=2,
                 d_ff=64, dropout=0.1):
        super().__init__()
        self.revin = RevIN()
        self.patch_len, self.stride = patch_len, stride
        self.pad = nn.ReplicationPad1d((0, stride))
        patch_num = (seq_len - patch_len) // stride + 2
        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(patch_num, d_model).uniform_(-0.02, 0.02))
        self.layers = nn.ModuleList([TSTEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.head = nn.Linear(patch_num * d_model, pred_len)

    def forward(self, x):
        x = self.revin.norm(x)
        x = self.pad(x.permute(0, 2, 1))
        bs, n_vars, _ = x.shape
        x = x.unfold(dimension=-1, size=self.patch_len, step=self.stride)
        u = self.W_P(x).reshape(bs * n_vars, -1, self.W_pos.shape[-1]) + self.W_pos
        for layer in self.layers:
            u = layer(u)
        out = self.head(u.reshape(bs, n_vars, -1)).permute(0, 2, 1)
        return self.revin.denorm(out)
