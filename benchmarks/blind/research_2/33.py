import torch
import torch.nn as nn
import torch.nn.functional as F


class DataEmbedding_inverted(nn.Module):
    def __init__(self, c_in, d_model, dropout=0.1):
        super().__init__()
        self.value_embedding = nn.Linear(c_in, d_model)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, x, x_mark=None):
        x = x.permute(0, 2, 1)
        if x_mark is not None:
            x = torch.cat([x, x_mark.permute(0, 2, 1)], 1)
        return self.dropout(self.value_embedding(x))


class AttentionLayer(nn.Module):
    def __init__(self, d_model, n_heads, attention_dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.attention_dropout = attention_dropout
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, L, C = x.shape
        H = self.n_heads
        queries = self.query_projection(x).view(B, L, H, -1)
        keys = self.key_projection(x).view(B, L, H, -1)
        values = self.value_projection(x).view(B, L, H, -1)
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        A = torch.softmax(queries.shape[-1] ** -0.5 * scores, dim=-1)
        A = F.dropout(A, p=self.attention_dropout)
        V = torch.einsum("bhls,bshd->blhd", A, values)
        return self.out_projection(V.reshape(B, L, C))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.attention = AttentionLayer(d_model, n_heads, dropout)
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.attention(x)))
        y = self.dropout(F.gelu(self.conv1(x.transpose(-1, 1))))
        y = self.dropout(self.conv2(y).transpose(-1, 1))
        return self.norm2(x + y)


class iTransformer(nn.Module):
    """Inverted transformer: every variate is a token. x_enc: [B, seq_len, N] -> [B, pred_len, N]"""

    def __init__(self, seq_len=96, pred_len=24, d_model=64, n_heads=4, e_layers=2, d_ff=128, dropout=0.1):
        super().__init__()
        self.pred_len = pred_len
        self.enc_embedding = DataEmbedding_inverted(seq_len, d_model, dropout)
        self.layers = nn.ModuleList([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(e_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.projector = nn.Linear(d_model, pred_len)

    def forward(self, x_enc, x_mark_enc=None):
        means = x_enc.mean(1, keepdim=True).detach()
        x_enc = x_enc - means
        stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x_enc = x_enc / stdev

        N = x_enc.shape[-1]
        enc_out = self.enc_embedding(x_enc, x_mark_enc)
        for layer in self.layers:
            enc_out = layer(enc_out)
        dec_out = self.projector(self.norm(enc_out)).permute(0, 2, 1)[:, :, :N]
        return dec_out * stdev + means
