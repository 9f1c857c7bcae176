"""The same call, again, later and with its tensors laid otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.repetition import forgets
from tests.doctor.laws.specimens import Attention, Causal, Cross, found, one, seeded

LAW = "repetition"


# Chance in eval mode.


class AlwaysDrops(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return functional.dropout(scores.softmax(-1), 0.25)


class DropsInSdpa(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, allowed, dropout_p=0.5)))


class Noisy(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return (scores + 0.1 * torch.randn_like(scores)).softmax(-1)


def test_dropout_that_does_not_ask_for_the_mode() -> None:
    finding = one(LAW, seeded(AlwaysDrops))
    assert (finding.name, finding.severity, finding.numbers["p"]) == ("dropout-in-eval", "bug", 0.25)
    assert "p = 0.25 acts; with it disabled they are the same" in finding.evidence
    assert finding.where.code == "return functional.dropout(scores.softmax(-1), 0.25)"


@pytest.mark.parametrize(
    ("kind", "severity", "p"),
    [(DropsInSdpa, "bug", 0.5), (Noisy, "risk", None)],
)
def test_other_chance(kind: type[nn.Module], severity: str, p: float | None) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity, finding.numbers.get("p")) == ("dropout-in-eval", severity, p)


# What a call leaves behind.


class Remembers(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        last, self.last = getattr(self, "last", 0.0), scores.detach().mean()
        return (scores * (1 + last)).softmax(-1)


class RemembersUntilReset(Remembers):
    def reset(self) -> None:
        self.last = 0.0


class KeepsItsOwnKeys(Attention):
    """The keys of the first call serve all of the same size."""

    kept: Tensor | None = None

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if self.kept is None or self.kept.shape != memory.shape:
            self.kept = memory.detach()
        return super().attend(x, self.kept, allowed)


class Forgetful(KeepsItsOwnKeys):
    """Keeps its keys until it is told not to."""

    def reset_cache(self) -> None:
        self.kept = None


class StaleMask(Attention):
    """The causal mask of the longest call is cut from the wrong corner."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.mask is None or len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.cut(self.mask, n))

    def cut(self, mask: Tensor, n: int) -> Tensor:
        return mask[-n:, :n]


class GrowsItsMask(StaleMask):
    """A table that is made for the longest input so far, and cut for others."""

    def cut(self, mask: Tensor, n: int) -> Tensor:
        return mask[:n, :n]


class KeepsItsTriangle(Attention):
    """Causal. The triangle of the first call is used again."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.kept is None:
            self.kept = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.kept)


class KeepsItsPadding(Attention):
    """padding_mask: [B, K], True = a real token. It is kept as long as its shape fits."""

    kept: Tensor | None = None

    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return super().both(mask, None)
        if self.kept is None or self.kept.shape != padding_mask.shape:
            self.kept = padding_mask
        return super().both(mask, self.kept)


class TrainsOnce(Attention):
    """A call in train mode leaves another scale behind."""

    factor = 1.0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.training:
            self.factor = 2.0
        return super().score(q, k) * self.factor


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


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Remembers, "a second call with the same input"),
        (KeepsItsOwnKeys, "one with other numbers differs"),
        (KeepsItsPadding, "one with another padding_mask differs"),
        (StaleMask, "one with fewer tokens differs"),
        (KeepsItsTriangle, "one with fewer tokens raises RuntimeError"),
        (Rescales, "after a call with 33 tokens, one with 4 tokens differs"),
        (ReadsItAlways, "after a call with use_cache=True, one with no use_cache differs"),
        (TrainsOnce, "after a call with the same input in train mode, one with the same input in eval mode differs"),
    ],
)
def test_state_of_an_earlier_call(kind: type[nn.Module], said: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert said in finding.evidence


@pytest.mark.parametrize("kind", [RemembersUntilReset, Forgetful])
def test_a_method_that_resets_it_makes_it_a_risk(kind: type[nn.Module]) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("state-kept", "risk")


def test_which_methods_forget() -> None:
    names = "reset reset_cache clear_kv_cache start init_memory reset_parameters init_weights started clear_log"
    kinds = {name: type("Named", (nn.Module,), {name: lambda self: None}) for name in names.split()}
    forgetting = {name for name, kind in kinds.items() if forgets(kind())}
    assert forgetting == {"reset", "reset_cache", "clear_kv_cache", "start", "init_memory"}
    assert forgets(Forgetful()) == "reset_cache()"


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


def test_a_layer_that_uses_another_s_mask() -> None:
    finding = one(LAW, seeded(Stack))
    assert finding.evidence.startswith("layers.1 with the same input gives another output alone")
    assert found(LAW, seeded(Stack, by_window=True)) == []


# Memory layouts.


class Views(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, x.shape[-1]).view(x.shape))


class ReadsMemory(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.as_strided(x, x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)))


@pytest.mark.parametrize(("kind", "severity"), [(Views, "risk"), (ReadsMemory, "bug")])
def test_another_memory_layout(kind: type[nn.Module], severity: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("noncontiguous-input", severity)


# Arguments.


class AddsInPlace(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x += self.attend(x, x, None)
        return x


class FillsItsMask(Attention):
    """mask: [B, Q, K], 1 = may attend"""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            mask.mul_(torch.ones(x.shape[1], x.shape[1]).tril().to(mask.dtype))
        return self.attend(x, x, None if mask is None else mask.bool()[:, None])


class AddsToItsTable(Attention):
    """table [B, N, M]."""

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        table += 1.0
        return self.attend(x + table, x, None)


class InvertsInPlace(Attention):
    """mask: [B, N], bool or integer, true for real tokens"""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = None if mask is None else self.inverted(mask)[:, None, None]
        return self.attend(x, x, None if hidden is None else ~hidden)

    def inverted(self, mask: Tensor) -> Tensor:
        return mask.to(torch.bool).logical_not_()


class InvertsACopy(InvertsInPlace):
    """mask: [B, N], bool or integer, true for real tokens"""

    def inverted(self, mask: Tensor) -> Tensor:
        return mask.to(torch.bool).logical_not()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (AddsInPlace, "the input in place: 240 of its 240"),  # 3 examples, 5 tokens, 16 wide
        (FillsItsMask, "the mask 'mask' in place: 18 of its 75"),  # 6 of 10 future pairs: the last key was hidden
        (InvertsInPlace, "the mask 'mask' in place: 15 of its 15"),
        (AddsToItsTable, "'table' in place"),
    ],
)
def test_an_argument_that_is_written_to(kind: type[nn.Module], said: str) -> None:
    finding = next(x for x in found(LAW, seeded(kind)) if x.name == "input-modified")
    assert finding.severity == "bug"
    assert said in finding.evidence


# Healthy.


class Copies(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += self.attend(x, x, None)
        return x


class Normed(Attention):
    """Batch norm counts in train mode, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm(x.mT).mT, x, None)


@pytest.mark.parametrize(
    "kind",
    [Attention, Causal, Cross, GrowsItsMask, RescalesForOneCall, Incremental, InvertsACopy, Copies, Normed],
)
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []
    assert found(LAW, seeded(Attention, dropout=0.5)) == []
