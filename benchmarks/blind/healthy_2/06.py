import torch
import torch.nn as nn
import torch.nn.functional as F


class BERTBlock(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        assert hidden % heads == 0
        self.heads = heads
        self.p = dropout
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.attn_norm = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)
        self.ffn_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, keep):
        b, n, d = x.shape

        def heads(t):
            return t.view(b, n, self.heads, d // self.heads).transpose(1, 2)

        ctx = F.scaled_dot_product_attention(
            heads(self.query(x)), heads(self.key(x)), heads(self.value(x)),
            attn_mask=keep, dropout_p=self.p if self.training else 0.0,
        )
        ctx = ctx.transpose(1, 2).reshape(b, n, d)
        x = self.attn_norm(x + self.dropout(self.output(ctx)))
        return self.ffn_norm(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class BERT4Rec(nn.Module):
    """Bidirectional sequential recommender trained with a cloze objective.

    ids: 0 = padding, 1..num_items = items, num_items + 1 = [MASK].
    ``forward`` scores real items only: column j of the output belongs to item j + 1.
    """

    def __init__(self, num_items=3000, hidden=64, heads=2, layers=2, max_len=100, dropout=0.1):
        super().__init__()
        self.num_items = num_items
        self.mask_token = num_items + 1
        self.max_len = max_len
        self.item_embedding = nn.Embedding(num_items + 2, hidden, padding_idx=0)
        self.position_embedding = nn.Embedding(max_len, hidden)
        self.embed_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([BERTBlock(hidden, heads, dropout) for _ in range(layers)])
        self.transform = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.bias = nn.Parameter(torch.zeros(num_items))

    def forward(self, seq):
        b, n = seq.shape
        if n > self.max_len:
            raise ValueError("sequence longer than max_len")
        pos = torch.arange(n, device=seq.device)
        x = self.item_embedding(seq) + self.position_embedding(pos)
        x = self.dropout(self.embed_norm(x))
        keep = seq.ne(0)[:, None, None, :]
        # an empty history may look at its padding instead of at nothing
        keep = keep | ~keep.any(dim=-1, keepdim=True)
        for block in self.blocks:
            x = block(x, keep)
        x = self.transform(x)
        return F.linear(x, self.item_embedding.weight[1:self.num_items + 1], self.bias)

    def cloze_loss(self, seq, mask_prob=0.2):
        """Replace random items by [MASK] and predict them back."""
        chosen = (torch.rand(seq.shape, device=seq.device) < mask_prob) & seq.ne(0)
        # at least the newest item of every left-padded row
        chosen[:, -1] |= ~chosen.any(dim=1) & seq[:, -1].ne(0)
        scores = self(seq.masked_fill(chosen, self.mask_token))
        return F.cross_entropy(scores[chosen], seq[chosen] - 1)

    @torch.no_grad()
    def recommend(self, seq, k=10):
        """Ids of the k best next items for left-padded histories."""
        was_training = self.training
        self.eval()
        query = seq.new_full((seq.size(0), 1), self.mask_token)
        seq = torch.cat([seq, query], dim=1)[:, -self.max_len:]
        top = self(seq)[:, -1].topk(k, dim=-1).indices + 1
        self.train(was_training)
        return top
