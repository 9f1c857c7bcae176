import torch
import torch.nn as nn
import torch.nn.functional as F


class AttnDecoder(nn.Module):
    """GRU decoder with Bahdanau attention for the translation tutorial (one step per call)."""

    def __init__(self, vocab_size=1000, embed_size=32, hidden_size=64, dropout_p=0.1):
        super(AttnDecoder, self).__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)
        self.gru = nn.GRU(embed_size + hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, vocab_size)
        self.dropout = nn.Dropout(dropout_p)

    def attend(self, query, keys):
        # query: (B, 1, H)   keys: (B, S, H)
        energy = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(energy, dim=-1)
        context = torch.bmm(weights.transpose(1, 2), keys)
        return context, weights

    def forward(self, token, hidden, encoder_outputs):
        """
        token: (B, 1) ids of the previous words
        hidden: (1, B, H)
        encoder_outputs: (B, S, H)
        """
        embedded = self.dropout(self.embedding(token))
        query = hidden.permute(1, 0, 2)
        context, attn_weights = self.attend(query, encoder_outputs)
        gru_in = torch.cat((embedded, context), dim=2)
        output, hidden = self.gru(gru_in, hidden)
        return self.out(output), hidden, attn_weights.squeeze(-1)
