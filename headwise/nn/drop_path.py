"""Stochastic depth: in training, some examples skip a branch of a residual network."""

from __future__ import annotations

from torch import Tensor, nn

from headwise.nn import options


class DropPath(nn.Module):
    """Drops a whole branch, separately for each example. Huang et al. 2016 (Stochastic Depth), equation 2.

    x + DropPath(p)(branch(x)) is x with probability p, else x + branch(x) / (1 - p): its expectation is the output of
    eval mode, where nothing is dropped. (The paper scales in eval mode instead, equation 5.)

    Args:
        probability: p, the probability that the branch is dropped for an example.

    Raises:
        ArgumentError: a probability outside of [0, 1).
    """

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.probability = options.probability("probability", probability)

    def forward(self, x: Tensor) -> Tensor:
        """Set each example of x [B, ...] to 0 with probability p, else divide it by 1 - p; in eval mode return x."""
        if not self.training or self.probability == 0.0:
            return x
        kept = 1.0 - self.probability
        return x * (x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(kept) / kept)

    def extra_repr(self) -> str:
        """Return the options for the repr of the module."""
        return str(self.probability)
