"""The chunked backward uses each chunk's own output instead of the merged one, so query and key gradients are wrong.

tenstorrent/tt-metal #53205 (2026)
https://github.com/tenstorrent/tt-metal/issues/53205
"""
import torch
import torch.nn as nn


def _sdpa_fw(q, k, v, scale):
    scores = torch.matmul(q, k.transpose(-2, -1)) * scale
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.matmul((scores - lse).exp(), v), lse


def _sdpa_bw(grad, out, q, k, v, lse, scale):
    """Backward of softmax attention given its output and logsumexp (FlashAttention, algorithm 4)."""
    p = (torch.matmul(q, k.transpose(-2, -1)) * scale - lse).exp()
    dv = torch.matmul(p.transpose(-2, -1), grad)
    dp = torch.matmul(grad, v.transpose(-2, -1))
    u = (grad * out).sum(dim=-1, keepdim=True)
    ds = p * (dp - u) * scale
    return torch.matmul(ds, k), torch.matmul(ds.transpose(-2, -1), q), dv


def _ring_forward(q, k, v, scale, ring_size):
    """Softmax attention over `ring_size` chunks of the keys, merged by their logsumexp."""
    steps = [_sdpa_fw(q, kc, vc, scale) for kc, vc in zip(k.chunk(ring_size, dim=2), v.chunk(ring_size, dim=2))]
    lse = torch.logsumexp(torch.stack([step_lse for _, step_lse in steps]), dim=0)
    out = sum((step_lse - lse).exp() * step_out for step_out, step_lse in steps)
    return out, lse


class _RingSelfAttention(nn.Module):
    """Self-attention (not causal) whose keys go round a ring of `ring_size` devices."""

    def __init__(self, ring_sdpa, embed_dim=32, num_heads=4, ring_size=2):
        super().__init__()
        self.num_heads, self.ring_size = num_heads, ring_size
        self.ring_sdpa = ring_sdpa
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        out = self.ring_sdpa.apply(q, k, v, q.shape[-1] ** -0.5, self.ring_size)
        return self.out_proj(out.transpose(1, 2).flatten(2))


def broken() -> nn.Module:
    class RingAttentionSDPA(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale, ring_size):
            out, lse = _ring_forward(q, k, v, scale, ring_size)
            ctx.save_for_backward(q, k, v, out, lse)
            ctx.scale, ctx.ring_size = scale, ring_size
            return out

        @staticmethod
        def backward(ctx, grad_out):
            q, k, v, final_out, final_lse = ctx.saved_tensors
            dq, dks, dvs = torch.zeros_like(q), [], []
            for kc, vc in zip(k.chunk(ctx.ring_size, dim=2), v.chunk(ctx.ring_size, dim=2)):
                # recompute the step, then scale the incoming gradient by the weight it had in the merge
                step_out, step_lse = _sdpa_fw(q, kc, vc, ctx.scale)
                weight = (step_lse - final_lse).exp()
                dq_step, dk, dv = _sdpa_bw(weight * grad_out, step_out, q, kc, vc, step_lse, ctx.scale)
                dq = dq + dq_step
                dks.append(dk)
                dvs.append(dv)
            return dq, torch.cat(dks, dim=2), torch.cat(dvs, dim=2), None, None

    torch.manual_seed(0)
    return _RingSelfAttention(RingAttentionSDPA)


def fixed() -> nn.Module:
    class RingAttentionSDPA(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale, ring_size):
            out, lse = _ring_forward(q, k, v, scale, ring_size)
            ctx.save_for_backward(q, k, v, out, lse)
            ctx.scale, ctx.ring_size = scale, ring_size
            return out

        @staticmethod
        def backward(ctx, grad_out):
            q, k, v, final_out, final_lse = ctx.saved_tensors
            dq, dks, dvs = torch.zeros_like(q), [], []
            for kc, vc in zip(k.chunk(ctx.ring_size, dim=2), v.chunk(ctx.ring_size, dim=2)):
                # the step's probabilities and the row sums are those of the merged softmax
                dq_step, dk, dv = _sdpa_bw(grad_out, final_out, q, kc, vc, final_lse, ctx.scale)
                dq = dq + dq_step
                dks.append(dk)
                dvs.append(dv)
            return dq, torch.cat(dks, dim=2), torch.cat(dvs, dim=2), None, None

    torch.manual_seed(0)
    return _RingSelfAttention(RingAttentionSDPA)
