"""End-to-end memory network (Sukhbaatar et al., 2015) for bAbI-style question answering."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MemN2N(nn.Module):
    """
    Adjacent weight tying: the output embedding of one hop is the input embedding of the next
    one, the question uses the first embedding and the answer layer the last.

    Inputs
        stories: (B, M, S) word ids, sentences in reading order; 0 pads words on the right and
                 all-zero sentences fill up short stories at the end
        queries: (B, S') word ids, padded with 0 on the right
    Output
        (B, vocab_size) logits over the answer word
    """

    def __init__(self, vocab_size=200, dim=40, hops=3, memory_size=50):
        super().__init__()
        self.hops = hops
        self.memory_size = memory_size
        self.embeddings = nn.ModuleList(nn.Embedding(vocab_size, dim, padding_idx=0) for _ in range(hops + 1))
        self.times = nn.ParameterList(
            [nn.Parameter(torch.randn(memory_size, dim) * 0.1) for _ in range(hops + 1)]
        )
        for emb in self.embeddings:
            nn.init.normal_(emb.weight, std=0.1)
            with torch.no_grad():
                emb.weight[0].zero_()

    @staticmethod
    def position_encoding(words, dim, dtype):
        """l[j, k] = (1 - j/J) - (k/d) (1 - 2j/J) with the true sentence length J."""
        steps = torch.arange(1, words.size(-1) + 1, device=words.device, dtype=dtype)
        length = words.ne(0).sum(dim=-1, keepdim=True).clamp(min=1).to(dtype)
        j = (steps / length).unsqueeze(-1)
        k = torch.arange(1, dim + 1, device=words.device, dtype=dtype) / dim
        return (1 - j) - k * (1 - 2 * j)

    def encode(self, emb, words):
        vectors = emb(words)  # padding has a zero vector, so it drops out of the sum
        weight = self.position_encoding(words, vectors.size(-1), vectors.dtype)
        return (vectors * weight).sum(dim=-2)

    def forward(self, stories, queries):
        # keep the most recent sentences when the story is too long
        present = stories.ne(0).any(dim=-1)
        count = present.sum(dim=1, keepdim=True)
        order = torch.arange(stories.size(1), device=stories.device).unsqueeze(0)
        age = count - 1 - order  # 0 is the newest sentence
        usable = present & (age < self.memory_size)
        age = age.clamp(min=0, max=self.memory_size - 1)

        u = self.encode(self.embeddings[0], queries)
        for hop in range(self.hops):
            m = self.encode(self.embeddings[hop], stories) + self.times[hop][age]
            c = self.encode(self.embeddings[hop + 1], stories) + self.times[hop + 1][age]
            score = torch.einsum("bd,bmd->bm", u, m)
            score = score.masked_fill(~usable, torch.finfo(score.dtype).min)
            p = score.softmax(dim=-1) * usable.to(score.dtype)  # an empty story reads nothing
            u = u + torch.einsum("bm,bmd->bd", p, c)
        return F.linear(u, self.embeddings[self.hops].weight)
