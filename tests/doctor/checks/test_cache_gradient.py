"""Gradients of a call that fills a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.doctor.checks.specimens import Attention, found, one, seeded


class Fills(Attention):
    """Causal; the cache is a dict."""

    detaches = False

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Any:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache.update(k=k.detach(), v=v.detach())
            if self.detaches:
                k, v = cache["k"], cache["v"]
        n, past = x.shape[1], k.shape[2] - x.shape[1]
        allowed = torch.ones(n, k.shape[2], dtype=torch.bool, device=x.device).tril(past)
        return self.out(self.merge(self.fill(self.score(q, k), allowed).softmax(-1) @ v))


class AttendsToDetached(Fills):
    """Causal; differentiable with or without a cache, which is a dict."""

    detaches = True


class AttendsToDetachedInDecoding(Fills):
    """Causal; the cache is a dict."""

    detaches = True


def test_keys_and_values_that_are_detached() -> None:
    finding = one("cache_gradient", seeded(AttendsToDetached))
    assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
    assert "k.weight" in finding.evidence
    assert one("cache_gradient", seeded(AttendsToDetachedInDecoding)).severity == "risk"
    assert found("cache_gradient", seeded(Fills)) == []
