"""Masks that a module makes itself: causal ones, their corner, windows and how they count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.calling.spec import Spec
from headwise.doctor.checks.built_in_mask import _by_behaviour, check
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.checks.specimens import Causal, found, one, seeded
from tests.doctor.checks.styles import Einsum, Plain, assert_at


def with_spec(module: nn.Module, **stated: object) -> list[Finding]:
    return list(check(Patient(module, spec=Spec(**stated))))  # type: ignore[arg-type]


def lower(q: int, k: int, diagonal: int = 0) -> Tensor:
    return torch.ones(q, k, dtype=torch.bool).tril(diagonal)


class Filled(Plain):
    """What its `allowed` says."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k)
        return scores.masked_fill(~self.allowed(q.shape[2], k.shape[2]), -torch.inf)

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k)


class Added(Einsum):
    """Causal by a triangle of numbers, which is added."""

    fill = float("-inf")

    def scaled(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        return super().scaled(scores) + torch.full((n, n), self.fill).triu(1)


# Causal masks that let through, or are the wrong way round.


class OneAhead(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, 1)


class TwoAhead(Added):
    def scaled(self, scores: Tensor) -> Tensor:
        later = torch.ones_like(scores[0, 0]).triu(3).bool()
        return (scores / 2).masked_fill_(later, -1e30)


class OnlyEarlier(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, -1)


class Reversed(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k).T


class ReversedFill(Added):
    def scaled(self, scores: Tensor) -> Tensor:
        keep = torch.tril(torch.ones_like(scores[0, 0]))
        return torch.where(keep == 1, torch.tensor(-1e9), scores / 2)


@pytest.mark.parametrize(
    ("module", "name", "severity", "words"),
    [
        (OneAhead, "causal-leak", "bug", "attend to 1 later position: its diagonal is 1, expected 0"),
        (TwoAhead, "causal-leak", "bug", "attend to 2 later positions: its diagonal is 2, expected 0"),
        (OnlyEarlier, "causal-leak", "bug", "from itself, so the first position has no allowed key: its output is NaN"),
        (Reversed, "mask-polarity", "bug", "is reversed"),
        (ReversedFill, "mask-polarity", "bug", "is reversed"),
    ],
)
def test_a_causal_mask_off_its_diagonal(module: type[nn.Module], name: str, severity: str, words: str) -> None:
    finding = one("built_in_mask", seeded(module))
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


def test_the_line_that_fills() -> None:
    assert_at(one("built_in_mask", seeded(OneAhead)), Filled, "return scores.masked_fill(")
    assert_at(one("built_in_mask", seeded(TwoAhead)), TwoAhead, "masked_fill_(later, -1e30)")
    assert_at(one("built_in_mask", seeded(ReversedFill)), ReversedFill, "torch.where(keep == 1")


class AddsLittle(Added):
    fill = -5000.0


class FillsLittle(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k).masked_fill(~lower(q.shape[2], k.shape[2]), -1500.0)


@pytest.mark.parametrize(("module", "fill"), [(FillsLittle, -1500.0), (AddsLittle, -5000.0)])
def test_a_fill_that_is_rather_small(module: type[nn.Module], fill: float) -> None:
    finding = one("built_in_mask", seeded(module))
    assert (finding.name, finding.severity) == ("mask-fill-too-small", "risk")
    assert finding.numbers["fill"] == pytest.approx(fill, rel=1e-2)


# More keys than queries.


class Corner(Plain):
    """A causal decoder over a memory that is longer: the mask begins in the upper left corner."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(x, memory, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        return scores.masked_fill(~self.allowed(q.shape[2], k.shape[2]), -torch.inf)

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k)


class FusedCorner(Corner):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


class BottomRight(Corner):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, k - q)


@pytest.mark.parametrize("module", [Corner, FusedCorner])
def test_a_causal_mask_in_the_wrong_corner(module: type[nn.Module]) -> None:
    finding = one("built_in_mask", seeded(module))
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert "with 5 queries and 7 keys, query 0 attends to key 0 alone" in finding.evidence
    assert "tril(diagonal=2)" in finding.fix
    code = "scaled_dot_product_attention" if module is FusedCorner else "return scores.masked_fill("
    assert_at(finding, module, code)


class CornerAsSaid(Corner):
    """The mask has top-left alignment, as in torch."""


class OtherCornerThanSaid(BottomRight):
    """The mask has top-left alignment, as in torch."""


def test_a_corner_that_is_stated() -> None:
    assert found("built_in_mask", seeded(CornerAsSaid)) == []
    assert one("built_in_mask", seeded(OtherCornerThanSaid)).name == "causal-corner"


# Windows.


class Windowed(Filled):
    """Causal; how many a window lets through is left to `earlier`."""

    def __init__(self, name: str = "sliding_window", size: int = 3, earlier: int = 2) -> None:
        super().__init__()
        setattr(self, name, size)
        self._earlier = earlier

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k) & ~lower(q, k, -self._earlier - 1)


class BothSides(Added):
    """To both sides, by distances."""

    def __init__(self, name: str = "window_size", size: int = 4, reach: int = 2) -> None:
        super().__init__()
        setattr(self, name, size)
        self._reach = reach

    def scaled(self, scores: Tensor) -> Tensor:
        at = torch.arange(scores.shape[-1])
        far = (at - at[:, None]).abs() > self._reach
        return torch.where(far, -torch.inf, super(Added, self).scaled(scores))


class NormsOnBothEnds(Windowed):
    """Sublayer with a norm before and after, and a sliding window."""


class Including(Windowed):
    """Attends to the last `window` tokens, the position itself included."""


class Neighbours(Windowed):
    """Sees the `window` tokens before it, and itself."""


class SpeaksOfItself(Windowed):
    """Every position sees those before it, including itself."""


@pytest.mark.parametrize(
    ("module", "severity", "words"),
    [
        (lambda: Windowed(earlier=3), "bug", "sliding_window = 3 a position sees itself and 3 earlier positions"),
        (lambda: Windowed(earlier=1), "bug", "sliding_window = 3 a position sees itself and 1 earlier positions"),
        (lambda: Windowed("radius", earlier=2), "bug", "radius = 3 a position sees itself and 2 earlier positions"),
        (lambda: Windowed("window", earlier=3), "risk", "expected 2 earlier positions, as in Hugging Face's"),
        (lambda: Including("window", earlier=3), "bug", "expected 2 earlier positions"),
        (lambda: Neighbours("window", earlier=2), "bug", "expected 3 earlier positions"),
        (
            lambda: BothSides(reach=3),
            "bug",
            "sees 3 earlier and 3 later positions; expected 4 or 2 or 1 on each side",
        ),
    ],
)
def test_a_window_of_another_width(module: object, severity: str, words: str) -> None:
    torch.manual_seed(0)
    finding = one("built_in_mask", module())  # type: ignore[operator]
    assert (finding.name, finding.severity) == ("window-off-by-one", severity)
    assert words in finding.evidence
    assert finding.numbers["window"] in (3, 4)


def test_the_line_of_a_window() -> None:
    torch.manual_seed(0)
    assert_at(one("built_in_mask", Windowed(earlier=3)), Filled, "return scores.masked_fill(")
    assert_at(one("built_in_mask", BothSides(reach=3)), BothSides, "torch.where(far")


def test_a_window_that_is_stated() -> None:
    torch.manual_seed(0)
    assert [f.name for f in with_spec(Windowed("_", earlier=2), window=3)] == ["window-off-by-one"]
    assert with_spec(Windowed("_", earlier=3), window=3) == []  # neighbours, the position itself excluded


# Healthy.


@pytest.mark.parametrize(
    "module",
    [
        Filled,
        Added,
        BottomRight,
        Causal,
        lambda: Windowed(earlier=2),
        lambda: Windowed("radius", earlier=3),
        lambda: Including("window", earlier=2),
        lambda: SpeaksOfItself("radius", earlier=3),  # what is said of the causal mask is not said of the window
        lambda: Neighbours("window", earlier=3),
        lambda: BothSides(size=4, reach=2),
        lambda: BothSides("one_sided_window", size=2, reach=2),  # Longformer's other way to count
    ],
)
def test_a_healthy_one(module: object) -> None:
    torch.manual_seed(0)
    assert found("built_in_mask", module()) == []  # type: ignore[operator]


class Diagonal(Filled):
    """Everyone but oneself: no causal mask, and none of its mistakes."""

    def allowed(self, q: int, k: int) -> Tensor:
        return ~torch.eye(q, k, dtype=torch.bool)


class Blocks(Filled):
    """Two positions at a time see one another and what came before."""

    def allowed(self, q: int, k: int) -> Tensor:
        return torch.arange(k) // 2 <= torch.arange(q)[:, None] // 2


@pytest.mark.parametrize("module", [Diagonal, Blocks])
def test_other_masks_are_not_judged(module: type[nn.Module]) -> None:
    assert found("built_in_mask", seeded(module)) == []


def test_without_a_mask_of_its_own_there_is_nothing_to_check() -> None:
    with pytest.raises(NotChecked, match="makes no mask"):
        found("built_in_mask", seeded(Plain))


class InChunks(nn.Module):
    """Causal attention for three queries at a time."""

    def __init__(self, start_over: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.start_over = start_over

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        outs = []
        for start in range(0, n, 3):
            part = q[:, :, start : start + 3]
            allowed = torch.ones(part.shape[2], n, dtype=torch.bool).tril(0 if self.start_over else start)
            scores = (part @ k.mT / 8**0.5).masked_fill(~allowed, float("-inf"))
            outs.append(scores.softmax(-1) @ v)
        return self.out(torch.cat(outs, 2).transpose(1, 2).reshape(b, n, m))


def test_chunks_of_a_sequence_have_no_corner_of_their_own() -> None:
    assert list(check(Patient(seeded(InChunks)))) == []


def test_chunks_that_each_begin_at_key_0() -> None:
    (finding,) = check(Patient(seeded(lambda: InChunks(start_over=True))))
    assert (finding.name, finding.severity, finding.numbers) == ("causal-corner", "bug", {"first": 3.0})
    assert "position 3 attends to key 0 alone" in finding.evidence


# Inverted windows, and windows that are not there.


class OutsideOnly(Windowed):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, -3)


class OutsideOnBothSides(BothSides):
    def scaled(self, scores: Tensor) -> Tensor:
        at = torch.arange(scores.shape[-1])
        near = (at - at[:, None]).abs() <= self._reach
        return torch.where(near, -1e9, super(Added, self).scaled(scores))


class SaysALocalWindow(Windowed):
    """Local attention: a window of `sliding_window` tokens, itself included."""

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k)


class SwitchedOff(SaysALocalWindow):
    use_window = True

    def __init__(self) -> None:
        super().__init__()
        self.use_sliding_window = False


class MaskMaker:
    def __init__(self, sliding_window: int, earlier: int) -> None:
        self.sliding_window, self._earlier = sliding_window, earlier

    def __bool__(self) -> bool:
        return True

    def make(self, q: int, k: int) -> Tensor:
        return lower(q, k) & ~lower(q, k, -self._earlier - 1)


class HasAMaker(Filled):
    """Each token sees sliding_window tokens, itself included."""

    def __init__(self, earlier: int = 3) -> None:
        super().__init__()
        self.maker = MaskMaker(3, earlier)

    def allowed(self, q: int, k: int) -> Tensor:
        return self.maker.make(q, k)


class CommentsOnIt(Windowed):
    def __init__(self, earlier: int) -> None:
        super().__init__("unused", 3, earlier)
        self.window = 3  # how many tokens to the left a token may see, beside itself; -1: all


class StepByStep(Plain):
    """A window of `sliding_window` tokens, itself included, token by token."""

    def __init__(self, early: int = 0) -> None:
        super().__init__()
        self.sliding_window, self._early = 3, early

    def forward(self, x: Tensor) -> Tensor:
        outs = []
        for n in range(1, x.shape[1] + 1):
            first = max(0, n - self.sliding_window)
            if n == self.sliding_window:
                first += self._early
            outs.append(self.attend(x[:, n - 1 : n], x[:, first:n], None))
        return torch.cat(outs, 1)


def test_a_window_turned_inside_out() -> None:
    for kind in (OutsideOnly, OutsideOnBothSides):
        finding = one("built_in_mask", seeded(kind))
        assert (finding.name, finding.severity) == ("mask-polarity", "bug")
        assert "outside of a window" in finding.evidence


def test_a_window_that_is_not_applied() -> None:
    finding = one("built_in_mask", seeded(SaysALocalWindow))
    assert (finding.name, finding.severity) == ("window-ignored", "bug")
    assert "with sliding_window = 3 a position attends to 8 earlier positions" in finding.evidence
    assert found("built_in_mask", seeded(SwitchedOff)) == []


def test_a_window_that_a_part_states() -> None:
    assert one("built_in_mask", seeded(HasAMaker)).numbers == {"window": 3.0, "left": 3.0, "right": 0.0}
    assert found("built_in_mask", seeded(HasAMaker, 2)) == []


def test_a_comment_says_how_it_counts() -> None:
    assert one("built_in_mask", seeded(CommentsOnIt, 2)).severity == "bug"
    assert found("built_in_mask", seeded(CommentsOnIt, 3)) == []


def test_a_window_step_by_step() -> None:
    finding = one("built_in_mask", seeded(StepByStep, 1))
    assert (finding.name, finding.numbers["row"]) == ("window-off-by-one", 2.0)
    assert found("built_in_mask", seeded(StepByStep)) == []


class Around(nn.Module):
    """The module has no window; its only layer has one, and is called several times."""

    def __init__(self, early: int = 0) -> None:
        super().__init__()
        self.layer = StepByStep(early)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x[:, :n])[:, -1:] for n in range(1, x.shape[1] + 1)], 1)


def test_a_window_of_the_only_layer_step_by_step() -> None:
    finding = one("built_in_mask", seeded(Around, 1))
    assert (finding.name, finding.numbers["row"]) == ("window-off-by-one", 2.0)
    assert found("built_in_mask", seeded(Around)) == []


class LowersEverything(Added):
    """A mask of 0 and -inf where one of 1 and 0 is expected."""

    def scaled(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        mask = torch.full((n, n), -torch.inf).triu(1)
        return super(Added, self).scaled(scores) + (1 - mask) * -1e9


def test_a_mask_that_lowers_allowed_keys_too() -> None:
    finding = one("built_in_mask", seeded(LowersEverything))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")
    assert "every score is lowered to -1e+09" in finding.evidence


class WindowOfTheModel(Plain):
    """The mask with the window of `sliding_window` comes from the model around it; a gate closes now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.sliding_window = 3

    def forward(self, x: Tensor) -> Tensor:
        outs = [self.attend(x[:, n : n + 1], x[:, : n + 1], None) * (n != 5) for n in range(x.shape[1])]
        return torch.cat(outs, 1) + x


def test_a_layer_that_sees_all_is_not_judged_by_its_window() -> None:
    at = torch.arange(9)
    patient = Patient(seeded(WindowOfTheModel))
    assert list(_by_behaviour(patient, "", "sliding_window", 3, at[:, None] - at)) == []


class TwoSides(Plain):
    """Each token attends to the tokens at most `window` away, and to the first token."""

    def __init__(self, *, signed: bool = False) -> None:
        super().__init__()
        self.window, self.signed = 2, signed

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        apart = at[:, None] - at
        near = apart <= self.window if self.signed else apart.abs() <= self.window
        return self.attend(x, x, near | (at == 0))


def test_a_window_without_one_of_its_sides() -> None:
    torch.manual_seed(0)
    finding = one("built_in_mask", TwoSides(signed=True))
    assert (finding.name, finding.severity) == ("window-off-by-one", "bug")
    assert "3 earlier and 6 later positions" in finding.evidence
    assert found("built_in_mask", TwoSides()) == []


class OnlyEarlierOrNothing(OnlyEarlier):
    """A learned key and value before the others stand for an empty past."""

    def __init__(self) -> None:
        super().__init__()
        self.no_key, self.no_value = nn.Parameter(torch.randn(4, 1, 4)), nn.Parameter(torch.randn(4, 1, 4))

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        k = torch.cat([self.no_key.expand(len(k), -1, -1, -1), k], 2)
        v = torch.cat([self.no_value.expand(len(v), -1, -1, -1), v], 2)
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k)


def test_a_key_of_nothing_is_a_key_of_the_first_query() -> None:
    assert found("built_in_mask", seeded(OnlyEarlierOrNothing)) == []


class StrictWindow(Filled):
    """The token itself is excluded."""

    def __init__(self, width: int = 32, heads: int = 4, window: int = 3) -> None:
        super().__init__(width, heads)
        self.window = window

    def allowed(self, q: int, k: int) -> Tensor:
        gap = torch.arange(q)[:, None] - torch.arange(k)
        return (gap >= 1) & (gap <= self.window) | (gap == 0) & (torch.arange(q) == 0)[:, None]


def test_a_window_without_the_position_itself() -> None:
    assert "window-off-by-one" not in {x.name for x in found("built_in_mask", seeded(StrictWindow))}


def test_before_and_after_of_norms_are_no_sides_of_a_window() -> None:
    assert found("built_in_mask", seeded(NormsOnBothEnds)) == []
