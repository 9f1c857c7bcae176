import torch
import torch.nn as nn

VERY_NEGATIVE_NUMBER = -1e30


class BiDAFAttention(nn.Module):
    """Attention flow layer of BiDAF.

    For every context word a summary of the query (context-to-query), and one summary of the
    context (query-to-context). Output is [h; u; h * u; h * h~], (batch, T, 4 * hidden).

    Masks are (batch, length), nonzero for words.
    """

    def __init__(self, hidden=64):
        super().__init__()
        self.w_context = nn.Linear(hidden, 1, bias=False)
        self.w_query = nn.Linear(hidden, 1, bias=False)
        self.w_product = nn.Parameter(torch.empty(1, 1, hidden))
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.xavier_uniform_(self.w_product)

    def similarity(self, context, query):
        s0 = self.w_context(context)                                          # (b, T, 1)
        s1 = self.w_query(query).transpose(1, 2)                              # (b, 1, J)
        s2 = torch.matmul(context * self.w_product, query.transpose(1, 2))    # (b, T, J)
        return s0 + s1 + s2 + self.bias

    def forward(self, context, query, context_mask=None, query_mask=None):
        s = self.similarity(context, query)
        if query_mask is not None:
            s = s.masked_fill(query_mask.unsqueeze(1) == 0, VERY_NEGATIVE_NUMBER)

        a = torch.softmax(s, dim=1)
        u = torch.bmm(a, query)

        best = s.max(dim=2).values
        if context_mask is not None:
            best = best.masked_fill(context_mask == 0, VERY_NEGATIVE_NUMBER)
        b = torch.softmax(best, dim=-1)
        h = torch.bmm(b.unsqueeze(1), context).expand_as(context)

        return torch.cat([context, u, context * u, context * h], dim=-1)
