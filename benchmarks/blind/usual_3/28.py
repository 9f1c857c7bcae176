import torch
import torch.nn as nn


class SelfAttentivePooling(nn.Module):
    """Structured self-attentive sentence embedding (Lin et al., 2017).

    Reads the hidden states of a BiLSTM and pools them with ``hops`` attention
    distributions over the words.

    Args:
        tokens: LongTensor (batch, time), ``pad_idx`` fills up short sentences
    Returns:
        sentence matrix (batch, hops, 2 * hidden), attention (batch, hops, time)
    """

    def __init__(self, vocab_size=500, emb_dim=32, hidden=32, attn_dim=24, hops=4, pad_idx=0):
        super().__init__()
        self.pad_idx = pad_idx
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=pad_idx)
        self.lstm = nn.LSTM(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.ws1 = nn.Linear(2 * hidden, attn_dim, bias=False)
        self.ws2 = nn.Linear(attn_dim, hops, bias=False)

    def forward(self, tokens):
        mask = (tokens != self.pad_idx).float()
        lengths = mask.sum(dim=1).long().clamp(min=1)

        emb = self.embedding(tokens)
        packed = nn.utils.rnn.pack_padded_sequence(
            emb, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = self.lstm(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=tokens.size(1))

        scores = self.ws2(torch.tanh(self.ws1(states)))   # batch, time, hops
        scores = scores * mask.unsqueeze(-1)
        attention = torch.softmax(scores, dim=1).transpose(1, 2)
        return torch.bmm(attention, states), attention
