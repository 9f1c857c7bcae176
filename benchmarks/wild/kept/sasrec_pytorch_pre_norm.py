"""Only the queries see the pre-norm; keys and values are the raw sequence and the residual is the normed query.

pmixer/SASRec.pytorch #48 (2025)
https://github.com/pmixer/SASRec.pytorch/pull/48
"""
import torch
import torch.nn as nn


class PointWiseFeedForward(torch.nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super(PointWiseFeedForward, self).__init__()
        self.conv1 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = torch.nn.Dropout(p=dropout_rate)
        self.relu = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = torch.nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        outputs = self.dropout2(self.conv2(self.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2))))))
        return outputs.transpose(-1, -2)


class _SASRecBase(torch.nn.Module):
    """Self-attentive sequential recommendation.

    Every block is a pre-norm residual block: g'(x) = x + Dropout(g(LayerNorm(x))) for the attention and for the
    feed forward network.
    """

    def __init__(self, item_num, maxlen=20, hidden_units=32, num_blocks=2, num_heads=1, dropout_rate=0.2):
        super().__init__()
        self.item_emb = torch.nn.Embedding(item_num + 1, hidden_units)
        self.pos_emb = torch.nn.Embedding(maxlen + 1, hidden_units)
        self.emb_dropout = torch.nn.Dropout(p=dropout_rate)
        self.attention_layernorms = torch.nn.ModuleList()
        self.attention_layers = torch.nn.ModuleList()
        self.forward_layernorms = torch.nn.ModuleList()
        self.forward_layers = torch.nn.ModuleList()
        self.last_layernorm = torch.nn.LayerNorm(hidden_units, eps=1e-8)
        for _ in range(num_blocks):
            self.attention_layernorms.append(torch.nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(torch.nn.MultiheadAttention(hidden_units, num_heads, dropout_rate))
            self.forward_layernorms.append(torch.nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))

    def forward(self, log_seqs):
        """log_seqs: (batch, length) ids of the last items of every user, the most recent one last."""
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        poss = torch.arange(1, log_seqs.shape[1] + 1, device=log_seqs.device)
        seqs = self.emb_dropout(seqs + self.pos_emb(poss))
        tl = seqs.shape[1]  # time dim len for enforce causality
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=seqs.device))
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            seqs = self.attention_block(i, seqs, attention_mask)
            seqs = torch.transpose(seqs, 0, 1)
            seqs = seqs + self.forward_layers[i](self.forward_layernorms[i](seqs))
        return self.last_layernorm(seqs)


def broken() -> nn.Module:
    class SASRec(_SASRecBase):
        def attention_block(self, i, seqs, attention_mask):
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            return Q + mha_outputs

    torch.manual_seed(0)
    return SASRec(30)


def fixed() -> nn.Module:
    class SASRec(_SASRecBase):
        def attention_block(self, i, seqs, attention_mask):
            x = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](x, x, x, attn_mask=attention_mask)
            return seqs + mha_outputs

    torch.manual_seed(0)
    return SASRec(30)


def example():
    return (torch.tensor([[5, 9, 2, 14, 8, 21, 3, 17], [11, 6, 30, 2, 9, 9, 1, 25]]),), {}
