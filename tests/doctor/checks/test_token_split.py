"""Maps whose tokens are taken apart by a reshape."""

from __future__ import annotations

from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, found, one, seeded


class Maps(Attention):
    """x: [B, C, H, W]"""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(self.norm(x))
        return x + self.attend(tokens, tokens, None).transpose(1, 2).reshape(x.shape)

    def tokens(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class Reshaped(Maps):
    def tokens(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.reshape(b, h * w, c)


def test_a_map_that_is_reshaped() -> None:
    finding = one("token_split", seeded(Reshaped))
    assert (finding.name, finding.severity) == ("token-split", "bug")
    assert found("token_split", seeded(Maps)) == []
    assert found("token_split", seeded(Attention)) == []
