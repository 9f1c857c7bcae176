import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        # query: (B, 1, H), keys: (B, S, H)
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores, dim=-1).transpose(1, 2)
        context = torch.bmm(weights, keys)
        return context, weights


class AttnDecoderRNN(nn.Module):
    """GRU decoder with additive attention.

    encoder_outputs: (B, S, H), encoder_hidden: (1, B, H), target: (B, T) ids for teacher forcing.
    Returns log-probabilities (B, T, V), the last hidden state and the attention maps (B, T, S).
    """

    def __init__(self, hidden_size=64, output_size=100, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward_step(self, token, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(token))
        query = hidden.permute(1, 0, 2)
        context, attn_weights = self.attention(query, encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, attn_weights

    def forward(self, encoder_outputs, encoder_hidden, target):
        hidden = encoder_hidden
        outputs, attentions = [], []
        for t in range(target.size(1)):
            logits, hidden, attn = self.forward_step(target[:, t:t + 1], hidden, encoder_outputs)
            outputs.append(logits)
            attentions.append(attn)
        log_probs = F.log_softmax(torch.cat(outputs, dim=1), dim=-1)
        return log_probs, hidden, torch.cat(attentions, dim=1)
