import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttnDecoder(nn.Module):
    """
    Decoder step with global attention, "general" score.

    inputs:
        token:       (batch,) previous target token
        hidden:      (1, batch, hidden)
        enc_outputs: (src_len, batch, hidden)
        src_mask:    (batch, src_len), 0 on <pad>
    """

    def __init__(self, vocab_size=6000, emb_dim=128, hidden_dim=256, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.rnn = nn.GRU(emb_dim, hidden_dim)
        self.W_a = nn.Linear(hidden_dim, hidden_dim, bias=False)
        self.W_c = nn.Linear(2 * hidden_dim, hidden_dim, bias=False)
        self.fc = nn.Linear(hidden_dim, vocab_size)
        self.dropout = nn.Dropout(dropout)

    def attend(self, dec_state, enc_outputs, src_mask):
        memory = enc_outputs.permute(1, 0, 2)
        energy = torch.bmm(self.W_a(memory), dec_state.unsqueeze(2)).squeeze(2)
        if src_mask is not None:
            energy = energy.masked_fill(src_mask == 0, 1e-10)
        alpha = F.softmax(energy, dim=1)
        context = torch.bmm(alpha.unsqueeze(1), memory).squeeze(1)
        return context, alpha

    def forward(self, token, hidden, enc_outputs, src_mask=None):
        emb = self.dropout(self.embedding(token)).unsqueeze(0)
        output, hidden = self.rnn(emb, hidden)
        dec_state = output.squeeze(0)
        context, alpha = self.attend(dec_state, enc_outputs, src_mask)
        attentional = torch.tanh(self.W_c(torch.cat((context, dec_state), dim=1)))
        return self.fc(attentional), hidden, alpha
