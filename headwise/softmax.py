"""The softmax of attention: empty rows, learned sinks, the log-sum-exp, and how results for sets of keys are merged.

A row of scores s is described by two numbers, its highest score and log Σ exp(s - highest). Their sum is the
log-sum-exp; kept apart, the two stay exact where the sum would round, such as with a bias of finfo.min:

    A = exp((s - highest) - log_sum)

An empty row, one that may attend to nothing, has only scores of -inf. Its weights and its output are 0, its log-sum-exp
is -inf. A learned sink is an additional key: the learned number is its score, and its value is 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.tracing import is_traced

EMPTY = -math.inf  # the score of a forbidden pair, and the log-sum-exp of an empty row


class Normaliser(NamedTuple):
    """Two tensors [..., rows] that turn rows of scores into weights: highest score, and log Σ exp(score - highest)."""

    highest: Tensor  # the highest score of a row; 0 for an empty row
    log_sum: Tensor  # log Σ exp(s - highest); -inf for an empty row

    @classmethod
    def of(cls, scores: Tensor) -> Normaliser:
        """Compute the normaliser of rows of scores [..., rows, keys]."""
        if not scores.shape[-1]:
            return cls.empty(scores[..., :0].sum(-1))
        highest = finite(scores.amax(-1))
        return cls(highest, (scores - highest[..., None]).exp_().sum(-1).log_())

    @classmethod
    def of_lse(cls, lse: Tensor) -> Normaliser:
        """Make the normaliser of rows of which only the log-sum-exp [..., rows] is known."""
        return cls(torch.zeros_like(lse), lse)

    @classmethod
    def empty(cls, like: Tensor) -> Normaliser:
        """Make the normaliser of empty rows (without an allowed key), with the shape of `like`."""
        return cls(torch.zeros_like(like), torch.full_like(like, EMPTY))

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of the rows, log Σ exp(s), natural logarithm."""
        return self.highest + self.log_sum

    def merged(self, other: Normaliser) -> Normaliser:
        """Compute the normaliser over the keys of both: the keys of this normaliser, and those of `other`."""
        mine, theirs = self._or_lowest(), other._or_lowest()
        highest = torch.maximum(mine, theirs)
        log_sum = torch.logaddexp(self.log_sum + (mine - highest), other.log_sum + (theirs - highest))
        return Normaliser(highest.masked_fill(log_sum == EMPTY, 0.0), log_sum)

    def with_sinks(self, sinks: Tensor | None) -> Normaliser:
        """Add learned sinks [H] (one more key per head) to the normaliser of rows [..., H, Q]. -inf = no sink."""
        if sinks is None:
            return self
        sinks = sinks.to(self.highest.dtype)[..., None].expand_as(self.highest)
        return self.merged(Normaliser(finite(sinks), torch.where(sinks == EMPTY, EMPTY, torch.zeros_like(sinks))))

    def weights(self, scores: Tensor) -> Tensor:
        """Compute the weights exp(s - lse) of scores [..., rows, keys]; `keys` are some or all keys of the rows."""
        return (scores - self.highest[..., None]).sub_(finite(self.log_sum)[..., None]).exp_()

    def on_sinks(self, sinks: Tensor) -> Tensor:
        """Compute the weights that rows [..., H, Q] give to learned sinks [H], which this normaliser must include."""
        return self.weights(sinks.to(self.highest.dtype)[..., None, None])[..., 0]

    def share(self, total: Normaliser) -> Tensor:
        """Compute exp(lse - lse of `total`), the fraction of the weight that falls on these keys; 0 for empty rows."""
        return torch.exp((self.highest - total.highest) + (self.log_sum - finite(total.log_sum)))

    def _or_lowest(self) -> Tensor:
        """Return the highest score of each row; for an empty row the lowest finite number."""
        return self.highest.masked_fill(self.log_sum == EMPTY, torch.finfo(self.highest.dtype).min)


def attention_weights(scores: Tensor, sinks: Tensor | None = None, *, overwrite: bool = False) -> Tensor:
    """Compute the weights of rows of scores [B, H, Q, K], with all keys of the rows, and sinks [H].

    An empty row has weights 0, and gradients 0. With `overwrite` the weights may be written over the scores, and no
    gradient goes through them.
    """
    # An empty row is computed as if it were full of zeros, then set to 0: and so are its gradients, which -inf would
    # make NaN.
    empty = empty_rows(scores)
    scores = emptied(scores, empty)
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, emptied(sink, empty)], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1, out=scores if overwrite else None)
    return emptied(weights, empty)


def weigh(scores: Tensor, out: Tensor) -> tuple[Tensor, Normaliser]:
    """Compute the weights of rows of scores [..., rows, keys] with all keys; write them to `out`.

    Return `out` and the normaliser of the rows. There are no sinks. The weights are 0 for an empty row. Every exp is
    computed once.
    """
    weights, highest = torch.softmax(scores, dim=-1, out=out), scores.amax(-1)
    log_sum = -weights.amax(-1).log_()  # the heaviest weight is exp(highest - lse)
    empty = highest == EMPTY
    if bool(empty.any()):
        weights[empty] = 0.0
        log_sum.masked_fill_(empty, EMPTY)
    return weights, Normaliser(finite(highest), log_sum)


def emptied(x: Tensor, empty: Tensor | None) -> Tensor:
    """Copy x [..., rows, n], with 0 in rows where `empty`, bool [..., rows], is True; x itself if `empty` is None."""
    return x if empty is None else x.masked_fill(empty[..., None], 0.0)


def empty_rows(scores: Tensor) -> Tensor | None:
    """Find the empty rows of scores [..., rows, keys]: bool [..., rows]; None if the first key shows that none is."""
    looks = scores.device.type == "cpu" and not is_traced()  # elsewhere a check would wait
    if looks and not bool((scores[..., :1] == EMPTY).any()):
        return None if scores.shape[-1] else scores.new_ones(scores.shape[:-1], dtype=torch.bool)
    return (scores == EMPTY).all(-1)


def finite(lse: Tensor) -> Tensor:
    """Replace -inf in log-sum-exps or highest scores by 0, so that they may be subtracted from the scores of a row."""
    return lse.masked_fill(lse == EMPTY, 0.0)


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge results for two sets of keys: return output [..., rows, E] and log-sum-exp [..., rows] over all keys."""
    total, share = _merged(lse, more_lse)
    return (out * share[..., None] + more_out * (1.0 - share)[..., None]).to(out.dtype), total


def merge_parts(out: Tensor, lse: Tensor) -> Tensor:
    """Merge outputs and log-sum-exps of many sets of keys, [sets, ...]: return the output [..., rows, E] over all keys.

    No set may have empty rows.
    """
    return (out * lse.softmax(0)[..., None]).sum(0)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Add sinks [H] to an output [B, H, Q, E] and log-sum-exp [B, H, Q] that were computed without sinks."""
    if sinks is None:
        return out, lse
    total, share = _merged(lse, sinks.to(lse.dtype)[None, :, None])
    return (out * share[..., None]).to(out.dtype), total


def sinks_gradient(sinks: Tensor, total: Normaliser, out: Tensor, d_out: Tensor) -> Tensor:
    """Compute the gradient of sinks [H]: from the rows' normaliser [B, H, Q], the output and its gradient [B, H, Q, E].

    A sink is a key whose value is 0: dL/ds = A (dA - Σ A dA), with dA = 0 and Σ A dA = dO · O.
    """
    share = total.on_sinks(sinks)
    return -(share * (d_out.to(share.dtype) * out).sum(-1)).sum((0, 2)).to(sinks.dtype)


def _merged(lse: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return (log-sum-exp over two sets of keys, the first set's fraction of the weight: 1 where both are empty)."""
    # exp(lse - total) would be wrong by the rounding of the total, which grows with it; this would spoil backward.
    total = torch.logaddexp(lse, more_lse)
    return total, torch.sigmoid(lse - more_lse).masked_fill(total == EMPTY, 1.0)
