import torch
import torch.nn as nn
import torch.nn.functional as F


class InvertedEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.n_heads, D // self.n_heads).unbind(2)
        scores = torch.einsum("blhe,bshe->bhls", q, k) / (D // self.n_heads) ** 0.5
        A = self.dropout(torch.softmax(scores, dim=-1))
        new_x = self.out(torch.einsum("bhls,bshd->blhd", A, v).reshape(B, N, D))
        x = self.norm1(x + self.dropout(new_x))
        y = self.dropout(F.gelu(self.conv1(x.transpose(-1, 1))))
        y = self.dropout(self.conv2(y).transpose(-1, 1))
        return self.norm2(x + y)


class iTransformer(nn.Module):
    """
    Inverted transformer (https://arxiv.org/abs/2310.06625). The whole history of one variate is one
    token, and attention runs between variates; their order has no meaning, hence no positions.

    x_enc: [B, seq_len, N] -> [B, pred_len, N]
    """

    def __init__(self, seq_len=96, pred_len=24, d_model=64, n_heads=4, d_ff=128, e_layers=2, dropout=0.1,
                 use_norm=True):
        super().__init__()
        self.pred_len = pred_len
        self.use_norm = use_norm
        self.value_embedding = nn.Linear(seq_len, d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            [InvertedEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(e_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.projector = nn.Linear(d_model, pred_len)

    def forward(self, x_enc):
        if self.use_norm:
            # Normalization from Non-stationary Transformer
            means = x_enc.mean(1, keepdim=True).detach()
            x_enc = x_enc - means
            stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
            x_enc = x_enc / stdev

        enc_out = self.dropout(self.value_embedding(x_enc.permute(0, 2, 1)))
        for layer in self.layers:
            enc_out = layer(enc_out)
        dec_out = self.projector(self.norm(enc_out)).permute(0, 2, 1)

        if self.use_norm:
            dec_out = dec_out * stdev + means
        return dec_out
