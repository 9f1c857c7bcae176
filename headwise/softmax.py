"""The softmax of attention: empty rows, learned sinks, the log-sum-exp, and how results over parts of the keys merge.

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
    """Two tensors [..., rows] that turn rows of scores into weights: the highest score, and the log of the sum."""

    highest: Tensor  # the highest score of a row; 0 for an empty row
    log_sum: Tensor  # log Σ exp(s - highest); -inf for an empty row

    @classmethod
    def of(cls, scores: Tensor) -> Normaliser:
        """The normaliser of rows of scores [..., rows, keys]."""
        if not scores.shape[-1]:
            return cls.empty(scores[..., :0].sum(-1))
        highest = finite(scores.amax(-1))
        return cls(highest, (scores - highest[..., None]).exp_().sum(-1).log_())

    @classmethod
    def of_lse(cls, lse: Tensor) -> Normaliser:
        """The normaliser of rows of which only the log-sum-exp [..., rows] is known."""
        return cls(torch.zeros_like(lse), lse)

    @classmethod
    def empty(cls, like: Tensor) -> Normaliser:
        """The normaliser of empty rows, with the shape of `like`."""
        return cls(torch.zeros_like(like), torch.full_like(like, EMPTY))

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of the rows, log Σ exp(s), natural logarithm."""
        return self.highest + self.log_sum

    def merged(self, other: Normaliser) -> Normaliser:
        """The normaliser of rows that have the keys of this normaliser and those of the other one."""
        mine, theirs = self._or_lowest(), other._or_lowest()
        highest = torch.maximum(mine, theirs)
        log_sum = torch.logaddexp(self.log_sum + (mine - highest), other.log_sum + (theirs - highest))
        return Normaliser(highest.masked_fill(log_sum == EMPTY, 0.0), log_sum)

    def with_sinks(self, sinks: Tensor | None) -> Normaliser:
        """The normaliser of rows [..., H, Q] with learned sinks [H]. -inf = no sink."""
        if sinks is None:
            return self
        sinks = sinks.to(self.highest.dtype)[..., None].expand_as(self.highest)
        return self.merged(Normaliser(finite(sinks), torch.where(sinks == EMPTY, EMPTY, torch.zeros_like(sinks))))

    def weights(self, scores: Tensor) -> Tensor:
        """The weights exp(s - lse) of scores [..., rows, keys]; `keys` are some or all keys of the rows."""
        return (scores - self.highest[..., None]).sub_(finite(self.log_sum)[..., None]).exp_()

    def on_sinks(self, sinks: Tensor) -> Tensor:
        """The weights that rows [..., H, Q] give to learned sinks [H]; this is their normaliser, sinks included."""
        return self.weights(sinks.to(self.highest.dtype)[..., None, None])[..., 0]

    def share(self, total: Normaliser) -> Tensor:
        """exp(lse - lse of the total): the share of the weight that falls on these keys. 0 for an empty row."""
        return torch.exp((self.highest - total.highest) + (self.log_sum - finite(total.log_sum)))

    def _or_lowest(self) -> Tensor:
        """The highest score of each row; for an empty row the lowest finite number."""
        return self.highest.masked_fill(self.log_sum == EMPTY, torch.finfo(self.highest.dtype).min)


def attention_weights(scores: Tensor, sinks: Tensor | None = None, *, overwrite: bool = False) -> Tensor:
    """The weights of whole rows of scores [B, H, Q, K], with sinks [H].

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
    """The weights of whole rows of scores [..., rows, keys] without sinks, in `out`, and their normaliser.

    The weights are 0 for an empty row. Every exp is computed once.
    """
    weights, highest = torch.softmax(scores, dim=-1, out=out), scores.amax(-1)
    log_sum = -weights.amax(-1).log_()  # the heaviest weight is exp(highest - lse)
    empty = highest == EMPTY
    if bool(empty.any()):
        weights[empty] = 0.0
        log_sum.masked_fill_(empty, EMPTY)
    return weights, Normaliser(finite(highest), log_sum)


def emptied(x: Tensor, empty: Tensor | None) -> Tensor:
    """A copy of x [..., rows, n] with 0 in rows where `empty`, bool [..., rows], is True; None = no row is empty."""
    return x if empty is None else x.masked_fill(empty[..., None], 0.0)


def empty_rows(scores: Tensor) -> Tensor | None:
    """Which rows of scores [..., rows, keys] are empty, bool [..., rows]; None if the first key shows that none is."""
    looks = scores.device.type == "cpu" and not is_traced()  # elsewhere a check would wait
    if looks and not bool((scores[..., :1] == EMPTY).any()):
        return None if scores.shape[-1] else scores.new_ones(scores.shape[:-1], dtype=torch.bool)
    return (scores == EMPTY).all(-1)


def finite(lse: Tensor) -> Tensor:
    """Log-sum-exps, or highest scores, with 0 in place of -inf: they may be subtracted from the scores of a row."""
    return lse.masked_fill(lse == EMPTY, 0.0)


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The output [..., rows, E] and log-sum-exp [..., rows] over two sets of keys, from the results for each set."""
    total, share = _merged(lse, more_lse)
    return (out * share[..., None] + more_out * (1.0 - share)[..., None]).to(out.dtype), total


def merge_parts(out: Tensor, lse: Tensor) -> Tensor:
    """The output [..., rows, E] over many sets of keys, from outputs and log-sum-exps of each set, [sets, ...].

    No set may have empty rows.
    """
    return (out * lse.softmax(0)[..., None]).sum(0)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output [B, H, Q, E] and log-sum-exp [B, H, Q] with sinks [H], from those without sinks."""
    if sinks is None:
        return out, lse
    total, share = _merged(lse, sinks.to(lse.dtype)[None, :, None])
    return (out * share[..., None]).to(out.dtype), total


def sinks_gradient(sinks: Tensor, total: Normaliser, out: Tensor, d_out: Tensor) -> Tensor:
    """The gradient of sinks [H], from the normaliser of all rows [B, H, Q], the output and its gradient [B, H, Q, E].

    A sink is a key whose value is 0: dL/ds = A (dA - Σ A dA), with dA = 0 and Σ A dA = dO · O.
    """
    share = total.on_sinks(sinks)
    return -(share * (d_out.to(share.dtype) * out).sum(-1)).sum((0, 2)).to(sinks.dtype)


def _merged(lse: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """(the log-sum-exp over both sets of keys, the share of the first set in the weight: 1 where both are empty)."""
    # exp(lse - total) would be wrong by the rounding of the total, which grows with it; this would spoil backward.
    total = torch.logaddexp(lse, more_lse)
    return total, torch.sigmoid(lse - more_lse).masked_fill(total == EMPTY, 1.0)
