"""Calls that change what later calls give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded


class KeepsItsOwnKeys(Attention):
    """The keys of the first call serve all of the same size."""

    kept: Tensor | None = None

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if self.kept is None or self.kept.shape != memory.shape:
            self.kept = memory.detach()
        return super().attend(x, self.kept, allowed)


class StaleMask(Attention):
    """The causal mask is made in the first call, for its length, and cut for shorter ones from the wrong corner."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.mask is None or len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.mask[-n:, :n])


class StaleScale(Attention):
    """Divides by the root of the length of the first call."""

    length: int = 0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        self.length = self.length or q.shape[2]
        return super().score(q, k) * (q.shape[2] / self.length)


class Forgetful(KeepsItsOwnKeys):
    """Keeps its keys until it is told not to."""

    def reset_cache(self) -> None:
        self.kept = None


class LosesItsDropout(Attention):
    def __init__(self) -> None:
        super().__init__(dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.dropout.p = 0.0
        return self.attend(x, x, None)


class TrainsOnce(Attention):
    """A call in train mode leaves another scale behind."""

    factor = 1.0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.training:
            self.factor = 2.0
        return super().score(q, k) * self.factor


class KeepsItsPadding(Attention):
    """padding_mask: [B, K], True = a real token. It is kept as long as its shape fits."""

    kept: Tensor | None = None

    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return super().both(mask, None)
        if self.kept is None or self.kept.shape != padding_mask.shape:
            self.kept = padding_mask
        return super().both(mask, self.kept)


class KeepsItsTriangle(Attention):
    """Causal. The triangle of the first call is used again."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.kept is None:
            self.kept = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.kept)


class KeepsByLength(KeepsItsTriangle):
    def forward(self, x: Tensor) -> Tensor:
        if self.kept is not None and len(self.kept) != x.shape[1]:
            self.kept = None
        return super().forward(x)


class CutsItsTriangle(KeepsItsTriangle):
    """Grows, and is cut to the length."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.kept is None or len(self.kept) < n:
            self.kept = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.kept[:n, :n])


class KeepsItsKeys(Cross):
    """The memory of the first call."""

    kept: Tensor | None = None

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        if self.kept is None or self.kept.shape[:2] != memory.shape[:2]:
            self.kept = memory
        return super().forward(x, self.kept, memory_mask)


class Local(Attention):
    def __init__(self, window: int, shared: dict[str, Tensor], by_window: bool) -> None:
        super().__init__()
        self.window, self.shared, self.by_window = window, shared, by_window

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        key = f"{n} {self.window if self.by_window else ''}"
        if key not in self.shared:
            distance = torch.arange(n)[:, None] - torch.arange(n)
            self.shared[key] = (distance >= 0) & (distance < self.window)
        return x + self.attend(x, x, self.shared[key])


class Stack(nn.Module):
    """Layers that share their masks, by length alone or by length and window."""

    def __init__(self, by_window: bool = False) -> None:
        super().__init__()
        shared: dict[str, Tensor] = {}
        self.layers = nn.ModuleList(Local(window, shared, by_window) for window in (2, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (KeepsItsOwnKeys, "other numbers"),
        (StaleMask, "fewer tokens"),
        (StaleScale, "more tokens"),
        (TrainsOnce, "the same input, which was one in train mode,"),
        (KeepsItsPadding, "another padding_mask"),
        (KeepsItsKeys, "other numbers"),
    ],
)
def test_state_of_an_earlier_call(module: type[nn.Module], said: str) -> None:
    finding = one("state_kept", seeded(module))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert f"after a call, one with {said} differs by" in finding.evidence


def test_a_table_that_does_not_grow() -> None:
    assert "one with more tokens raises RuntimeError" in one("state_kept", seeded(KeepsItsTriangle)).evidence


def test_a_layer_that_uses_another_s_mask() -> None:
    finding = one("state_kept", seeded(Stack))
    assert finding.evidence.startswith("layers.1 with the same input gives another output alone")
    assert found("state_kept", seeded(Stack, by_window=True)) == []


def test_a_method_that_resets_it_makes_it_a_risk() -> None:
    finding = one("state_kept", seeded(Forgetful))
    assert (finding.name, finding.severity) == ("state-kept", "risk")
    assert "reset_cache() may be meant" in finding.evidence


def test_a_dropout_that_one_call_in_eval_mode_ends() -> None:
    finding = one("state_kept", seeded(LosesItsDropout))
    assert (finding.name, finding.severity) == ("train-eval-differ", "bug")
    assert "after one call in eval mode it no longer is" in finding.evidence


# Healthy.


class GrowsItsMask(Attention):
    """A table that is made for the longest input so far, and cut for others."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.mask is None or len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.mask[:n, :n])


class KeepsItsWeights(Attention):
    """To look at, not to use again."""

    last: Any = None

    def normalise(self, scores: Tensor) -> Tensor:
        self.last = scores.softmax(-1)
        return self.last


class Counts(Attention):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.attend(x, x, None)


class WithDropout(Attention):
    def __init__(self) -> None:
        super().__init__(dropout=0.2)


class Normed(Attention):
    """Batch norm counts in train mode, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm(x.mT).mT, x, None)


@pytest.mark.parametrize(
    "module",
    [
        Attention,
        Causal,
        Cross,
        KeepsByLength,
        CutsItsTriangle,
        GrowsItsMask,
        KeepsItsWeights,
        Counts,
        WithDropout,
        Normed,
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("state_kept", seeded(module)) == []


class Rescales(Attention):
    """Positions are squeezed into `max_len` when there are more."""

    for_good = True

    def __init__(self, max_len: int = 32) -> None:
        super().__init__()
        self.max_len = self.seen = max_len

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        self.seen = max(self.max_len, n, self.seen if self.for_good else 0)
        return self.attend(x + torch.arange(n)[:, None] * self.max_len / self.seen, x, None)


class RescalesForOneCall(Rescales):
    for_good = False


def test_what_only_a_long_call_leaves_behind() -> None:
    finding = one("state_kept", seeded(Rescales))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert "when the first had 33" in finding.evidence
    assert found("state_kept", seeded(RescalesForOneCall)) == []


class OfIds(Attention):
    """ids: [B, N], 0 = padding"""

    kept: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.attend(x, x, self.mask(ids))

    def mask(self, ids: Tensor) -> Tensor:
        return (ids != 0)[:, None, None]


class KeepsTheMaskOfItsFirstIds(OfIds):
    def mask(self, ids: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape[-1] != ids.shape[1] or len(self.kept) != len(ids):
            self.kept = super().mask(ids)
        return self.kept


def test_padding_of_earlier_ids() -> None:
    finding = one("state_kept", seeded(KeepsTheMaskOfItsFirstIds))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert "one with other padding differs" in finding.evidence
    assert found("state_kept", seeded(OfIds)) == []


class KeepsItsAudio(Cross):
    """The projected audio of the first call serves every later one of its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.audio: Tensor | None = None

    def forward(self, x: Tensor, audio: Tensor) -> Tensor:
        if self.audio is None or self.audio.shape != audio.shape:
            self.audio = audio.detach()
        return super().forward(x, self.audio)


def test_a_memory_that_is_kept() -> None:
    finding = one("state_kept", seeded(KeepsItsAudio))
    assert (finding.name, finding.severity) == ("state-kept", "bug")


class Decodes(Cross):
    """use_cache: keep the projected memory until reset_cache()."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None

    def reset_cache(self) -> None:
        self.memory = None

    def forward(self, x: Tensor, memory: Tensor, use_cache: bool = False) -> Tensor:
        if use_cache and self.memory is None:
            self.memory = memory.detach()
        return super().forward(x, self.memory if use_cache else memory)


class ForgetsToForget(Decodes):
    def reset_cache(self) -> None:
        """Clears something else."""


def test_a_reset_that_leaves_something() -> None:
    finding = one("state_kept", seeded(ForgetsToForget))
    assert "reset_cache() does not clear all" in finding.evidence
    assert found("state_kept", seeded(Decodes)) == []


class Prefix(Attention):
    """The first `prefix_len` tokens see one another, all others the past."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("allowed", torch.ones(32, 32, dtype=torch.bool).tril())

    def forward(self, x: Tensor, prefix_len: int = 0) -> Tensor:
        allowed = self.cut(x.shape[1])
        if prefix_len:
            allowed[:prefix_len, :prefix_len] = True
        return self.attend(x, x, allowed)

    def cut(self, length: int) -> Tensor:
        return self.allowed[:length, :length].clone()


class KeepsThePrefix(Prefix):
    """The first `prefix_len` tokens see one another, all others the past."""

    def cut(self, length: int) -> Tensor:
        return self.allowed[:length, :length]


class Incremental(Attention):
    """With use_cache it keeps its keys until reset()."""

    always = False

    def __init__(self) -> None:
        super().__init__()
        self.past: Tensor | None = None

    def reset(self) -> None:
        self.past = None

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        whole = x if self.past is None or not (use_cache or self.always) else torch.cat([self.past, x], 1)
        if use_cache:
            self.past = whole.detach()
        n = whole.shape[1]
        return self.attend(x, whole, torch.ones(n, n, dtype=torch.bool).tril()[-x.shape[1] :])


class ReadsItAlways(Incremental):
    """With use_cache it keeps its keys until reset()."""

    always = True


@pytest.mark.parametrize(("module", "option"), [(KeepsThePrefix, "prefix_len=2"), (ReadsItAlways, "use_cache=True")])
def test_an_option_that_acts_on_later_calls(module: type[nn.Module], option: str) -> None:
    finding = one("state_kept", seeded(module))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert f"when the first had {option}" in finding.evidence


@pytest.mark.parametrize("module", [Prefix, Incremental])
def test_an_option_of_one_call(module: type[nn.Module]) -> None:
    assert found("state_kept", seeded(module)) == []


class Starts(Cross):
    """use_cache: keep the memory until start()."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None

    def start(self) -> None:
        """Clears something else."""

    def forward(self, x: Tensor, memory: Tensor, use_cache: bool = False) -> Tensor:
        if use_cache and self.memory is None:
            self.memory = memory.detach()
        return super().forward(x, self.memory if use_cache else memory)


class Spectral(Attention):
    """Train mode changes the buffers of its norm, as it is to do."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))


def test_a_start_that_leaves_something_and_a_norm_that_counts() -> None:
    assert "start() does not clear all" in one("state_kept", seeded(Starts)).evidence
    assert found("state_kept", seeded(Spectral)) == []
