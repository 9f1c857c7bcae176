"""Windows that go round the sequence, and chunks that see the next one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded


class Neighbours(Attention):
    """Blocks of 4 tokens; each attends to the block before, to itself and to the block after."""

    def forward(self, x: Tensor) -> Tensor:
        blocks = x.unflatten(1, (-1, 4))
        q, k, v = (f(blocks).unflatten(-1, (self.heads, -1)).transpose(2, 3) for f in (self.q, self.k, self.v))
        k, v = self.around(k), self.around(v)
        real = self.around(torch.ones(1, blocks.shape[1], 1, 4, 1)).mT > 0
        out = (self.fill(self.score(q, k), self.allowed(real)).softmax(-1) @ v).transpose(2, 3).flatten(3)
        return self.out(out).flatten(1, 2)

    def around(self, x: Tensor) -> Tensor:
        """[B, blocks, H, 4, D] -> [B, blocks, H, 12, D]"""
        padded = functional.pad(x, (0, 0, 0, 0, 0, 0, 1, 1))
        return torch.cat([padded[:, :-2], x, padded[:, 2:]], 3)

    def allowed(self, real: Tensor) -> Tensor | None:
        return real


class GoesRound(Neighbours):
    def around(self, x: Tensor) -> Tensor:
        return torch.cat([x.roll(1, 1), x, x.roll(-1, 1)], 3)

    def allowed(self, real: Tensor) -> Tensor | None:
        return None


class RollsAndMasks(GoesRound):
    def allowed(self, real: Tensor) -> Tensor | None:
        real = real.clone()
        real[:, 0, ..., :4] = False
        real[:, -1, ..., -4:] = False
        return real


class Circular(GoesRound):
    """Of the hours of a day, which are periodic."""


class Chunks(Attention):
    """Chunks of 4 frames; a frame attends to its chunk and to what was before it."""

    def __init__(self) -> None:
        super().__init__()
        self.chunk_size = 4

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        end = at // self.chunk_size * self.chunk_size + self.chunk_size
        return self.attend(x, x, self.before(at[None], end[:, None]))

    def before(self, key: Tensor, end: Tensor) -> Tensor:
        return key < end


class OneMore(Chunks):
    def before(self, key: Tensor, end: Tensor) -> Tensor:
        return key <= end


class LooksAhead(OneMore):
    """Chunks of 4 frames with a look-ahead of one."""


class Streams(Attention):
    """Chunks of 4 frames, one after the other, with a cache of the 4 frames before."""

    def __init__(self) -> None:
        super().__init__()
        self.left_context = 4

    def forward(self, x: Tensor) -> Tensor:
        cache, out = x[:, :0], []
        for chunk in x.split(4, dim=1):
            seen = torch.cat([cache, chunk], 1)
            out.append(self.attend(chunk, seen, None))
            cache = self.kept(seen)
        return torch.cat(out, 1)

    def kept(self, seen: Tensor) -> Tensor:
        return seen[:, -self.left_context :]


class KeepsTheOldest(Streams):
    def kept(self, seen: Tensor) -> Tensor:
        return seen[:, : self.left_context]


class KeepsSinks(KeepsTheOldest):
    """The first frames are attention sinks."""


def test_a_window_that_goes_round() -> None:
    finding = one("window_shape", seeded(GoesRound))
    assert (finding.name, finding.severity) == ("window-wraps", "bug")
    assert "query 0 attends to 0 … 7 and 12 … 15" in finding.evidence  # of 16 tokens
    assert finding.numbers == {"queries": 8.0, "keys": 12.0}


def test_a_chunk_with_one_key_of_the_next() -> None:
    finding = one("window_shape", seeded(OneMore))
    assert (finding.name, finding.severity) == ("window-off-by-one", "bug")
    assert "queries 0 to 3 also to key 4" in finding.evidence


def test_a_cache_of_the_oldest_frames() -> None:
    finding = one("window_shape", seeded(KeepsTheOldest))
    assert (finding.name, finding.severity) == ("oldest-kept", "bug")
    assert "of 16 tokens the last attends to 0 … 3 and 12 … 15" in finding.evidence


HEALTHY = [Neighbours, RollsAndMasks, Circular, Chunks, LooksAhead, Streams, KeepsSinks, Attention, Causal]


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found("window_shape", seeded(kind)) == []


def test_a_memory_has_no_window() -> None:
    with pytest.raises(NotApplicable, match="not one sequence"):
        found("window_shape", seeded(Cross))
