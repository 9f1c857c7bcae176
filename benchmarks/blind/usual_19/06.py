import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongDecoder(nn.Module):
    """One decoding step of a seq2seq model with Luong "general" attention.

    forward(token, hidden, encoder_outputs) -> logits, hidden, attention weights
    """

    def __init__(self, vocab_size=100, hidden_size=64, n_layers=1, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.embedding_dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(hidden_size, hidden_size, n_layers, batch_first=True)
        self.attn = nn.Linear(hidden_size, hidden_size, bias=False)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)
        self.out = nn.Linear(hidden_size, vocab_size)

    def attend(self, rnn_output, encoder_outputs):
        # (B, 1, H) x (B, H, S) -> (B, 1, S)
        scores = torch.bmm(rnn_output, self.attn(encoder_outputs).transpose(1, 2))
        return F.softmax(scores, dim=1)

    def forward(self, token, hidden, encoder_outputs):
        # token: (B,), hidden: (n_layers, B, H), encoder_outputs: (B, S, H)
        embedded = self.embedding_dropout(self.embedding(token)).unsqueeze(1)
        rnn_output, hidden = self.gru(embedded, hidden)

        attn_weights = self.attend(rnn_output, encoder_outputs)
        context = torch.bmm(attn_weights, encoder_outputs)

        concat_input = torch.cat((rnn_output, context), dim=-1).squeeze(1)
        concat_output = torch.tanh(self.concat(concat_input))
        return self.out(concat_output), hidden, attn_weights.squeeze(1)
