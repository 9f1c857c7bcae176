"""Makes the steps of RoPE: frequencies, angles, cosines and sines, and the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.errors import WorksheetError
from headwise.language import Sentence
from headwise.nn.positions import DynamicNTK, Linear, Llama3, Rope, Rope2D, Yarn
from headwise.worksheet.builder import Builder
from headwise.worksheet.description import ONE, Axis, Matrix, numbered

SCALINGS = (Linear, DynamicNTK, Yarn, Llama3)


@dataclass(frozen=True)
class Turn:
    """The rotation of the tokens of one sequence by RoPE: cosines and sines [S × P], and how dimensions are paired."""

    cos: Matrix
    sin: Matrix
    interleaved: bool

    def pair(self, dim: int) -> tuple[int, int, bool] | None:
        """Return (index of the pair, the other dimension, whether `dim` comes first), from 0; None = not rotated."""
        pairs = len(self.cos.cols)
        if dim >= 2 * pairs:
            return None
        if self.interleaved:
            return dim // 2, dim ^ 1, dim % 2 == 0
        return dim % pairs, (dim + pairs) % (2 * pairs), dim < pairs


def frequencies(b: Builder, scheme: Rope | Rope2D, length: int) -> tuple[Matrix, Matrix | None]:
    """Add a worksheet step for the frequencies; return (θ [1 × P] in radians per position, amplitude or None for 1)."""
    base = b.option("Rope_base", scheme.base, digits=0)
    if isinstance(scheme, Rope2D):
        quarter = scheme.head_dim // 4
        half = numbered("P", 2 * quarter)
        # Rows use the frequencies with even index, columns the frequencies with odd index.
        texts = [f"{base.name}^(-2*{2 * p}/{scheme.head_dim})" for p in range(quarter)]
        texts += [f"{base.name}^(-2*{2 * p + 1}/{scheme.head_dim})" for p in range(quarter)]
        theta = b.cells("Theta", ONE, half, *texts, digits=6)
        b.step(
            "RoPE frequencies",
            "Each pair of dimensions has its own frequency. The first half of the pairs is rotated by the row, the "
            "rest by the column.",
            "θ = base^(−2i/D), i = 0, 2 … for rows, 1, 3 … for columns",
            [base],
            [theta],
        )
        return theta, None
    pairs = numbered("P", scheme.rotary_dim // 2)
    exponent = f"(-2*(j-1)/{scheme.rotary_dim})"
    scaling = scheme.scaling
    if scaling is None:
        theta = b.cells("Theta", ONE, pairs, f"{base.name}^{exponent}", digits=6)
        shown: list[list[Matrix]] = [[base], [theta]]
        how = "θᵢ = base^(−2i/D), i = 0, 1 …"
    else:
        if type(scaling) not in SCALINGS:
            raise WorksheetError(
                f"a worksheet does not show the scaling {type(scaling).__name__}; expected one of "
                + ", ".join(each.__name__ for each in SCALINGS)
            )
        theta, shown, how = _scaled(b, scheme, pairs, base, exponent, length)
    amplitude = None
    if scheme.amplitude != 1.0:
        amplitude = b.option("Rope_amplitude", scheme.amplitude)
        shown[0].append(amplitude)
    b.step(
        "RoPE frequencies",
        "Each pair of dimensions is rotated with its own frequency, in radians per position: the first is the highest.",
        how,
        *shown,
    )
    return theta, amplitude


def _scaled(
    b: Builder, scheme: Rope, pairs: Axis, base: Matrix, exponent: str, length: int
) -> tuple[Matrix, list[list[Matrix]], str]:
    """Make the frequencies θ of a scaled RoPE; return (θ, the matrices to show, the formula in symbols)."""
    scaling, dim = scheme.scaling, scheme.rotary_dim
    plain = f"{base.name}^{exponent}"
    assert scaling is not None
    factor = b.option("Rope_factor", scaling.factor)  # type: ignore[attr-defined]  # each of SCALINGS has one
    if isinstance(scaling, Linear):
        theta = b.cells("Theta", ONE, pairs, f"{plain}/{factor.name}", digits=6)
        return theta, [[base, factor], [theta]], "θᵢ = base^(−2i/D) / factor"
    original = b.option("Rope_original_length", scaling.original_length, digits=0)  # type: ignore[attr-defined]
    options = [base, factor, original]
    if isinstance(scaling, DynamicNTK):
        count = b.option("Rope_length", length, digits=0)
        grown = f"{base.name}*(1+{factor.name}*MAX(0,{count.name}-{original.name})/{original.name})^({dim}/{dim - 2})"
        larger = b.cells("Rope_grown_base", ONE, ONE, grown)
        theta = b.cells("Theta", ONE, pairs, f"{larger.name}^{exponent}", digits=6)
        return (
            theta,
            [[*options, count], [larger], [theta]],
            "base' = base · (1 + factor · (L − L₀)/L₀)^(D/(D−2)) for L > L₀",
        )
    unscaled = b.cells("Theta_plain", ONE, pairs, plain, digits=6)
    if isinstance(scaling, Llama3):
        low = b.option("Rope_low_freq_factor", scaling.low_freq_factor)
        high = b.option("Rope_high_freq_factor", scaling.high_freq_factor)
        turns = f"{original.name}*{unscaled.name}[1,j]/(2*PI())"
        share = f"MAX(0,MIN(1,({turns}-{low.name})/({high.name}-{low.name})))"
        bounds = [low, high]
        rows: list[list[Matrix]] = []
    else:
        assert isinstance(scaling, Yarn)
        fast = b.option("Rope_beta_fast", scaling.beta_fast)
        slow = b.option("Rope_beta_slow", scaling.beta_slow)

        def dimension(turns: Matrix) -> str:
            return f"{dim}*LN({original.name}/({turns.name}*2*PI()))/(2*LN({base.name}))"

        first, last = dimension(fast), dimension(slow)
        if scaling.truncate:
            first, last = f"INT({first})", f"-INT(-({last}))"
        begin = b.cells("Rope_begin", ONE, ONE, f"MAX(0,{first})")
        end = b.cells("Rope_end", ONE, ONE, f"MIN({dim - 1},{last})")
        # If low and high are equal, the ramp is a step, without a division by 0.
        wide = f"IF({begin.name}={end.name},0.001,{end.name}-{begin.name})"
        share = f"1-MAX(0,MIN(1,(j-1-{begin.name})/({wide})))"
        bounds, rows = [fast, slow], [[begin, end]]
    stays = b.cells("Theta_stays", ONE, pairs, share, digits=3)
    text = f"(1-{stays.name}[1,j])*{unscaled.name}[1,j]/{factor.name}+{stays.name}[1,j]*{unscaled.name}[1,j]"
    theta = b.cells("Theta", ONE, pairs, text, digits=6)
    shown = [[*options, *bounds], *rows, [unscaled], [stays], [theta]]
    return theta, shown, "θ'ᵢ = (1 − γᵢ) · θᵢ / factor + γᵢ · θᵢ,  γ = share of the frequency that is kept"


def make_turn(
    b: Builder,
    scheme: Rope | Rope2D,
    ids: Tensor,
    tokens: Axis,
    theta: Matrix,
    amplitude: Matrix | None,
    suffix: str = "",
) -> Turn:
    """Add a worksheet step for the angles; return the rotation of a sequence at positions `ids`.

    `ids`: [S], or [S, 2] (row, column).
    """
    coords = Axis("A", ("row", "column")) if ids.ndim == 2 else ONE
    places = b.given("positions", f"Position{suffix}", ids, tokens, coords, digits=0)
    if ids.ndim == 2:
        half = len(theta.cols) // 2
        texts = [f"{places.name}[i,{1 if p < half else 2}]*{theta.name}[1,j]" for p in range(2 * half)]
    else:
        texts = [f"{places.name}[i,1]*{theta.name}[1,j]"]
    angles = b.cells(f"Angle{suffix}", tokens, theta.cols, *texts)
    times = "" if amplitude is None else f"{amplitude.name}*"
    cos = b.cells(f"Cosine{suffix}", tokens, theta.cols, f"{times}COS({angles.name}[i,j])")
    sin = b.cells(f"Sine{suffix}", tokens, theta.cols, f"{times}SIN({angles.name}[i,j])")
    whose = {"": "", "_q": " of the queries", "_k": " of the keys"}[suffix]
    b.step(
        Sentence("RoPE angles{whose}").format(whose=whose),
        "The angle is the token's position times the frequency of the pair. A rotation needs its cosine and sine.",
        "φ = position · θ,  cos φ,  sin φ",
        [places, angles],
        [cos, sin],
    )
    return Turn(cos, sin, isinstance(scheme, Rope) and scheme.interleaved)


def turned(b: Builder, heads: Sequence[Matrix], turn: Turn, names: Sequence[str], start: int = 0) -> list[Matrix]:
    """Make the matrices of the heads with the dimensions from `start` on rotated. `names`: names of the results."""
    made = []
    for x, name in zip(heads, names, strict=True):
        texts = []
        for dim in range(len(x.cols)):
            pair = turn.pair(dim - start) if dim >= start else None
            own = f"{x.name}[i,{dim + 1}]"
            if pair is None:
                texts.append(own)
                continue
            at, other, first = pair
            sign = "-" if first else "+"
            partner = f"{x.name}[i,{other + start + 1}]"
            texts.append(f"{own}*{turn.cos.name}[i,{at + 1}]{sign}{partner}*{turn.sin.name}[i,{at + 1}]")
        made.append(b.cells(name, x.rows, x.cols, *texts))
    return made


def pairs_in_words(turn: Turn, dims: int) -> str:
    """Return a sentence for the reader that says which dimensions form a pair."""
    first = turn.pair(0)
    assert first is not None
    rest = dims - 2 * len(turn.cos.cols)
    left = Sentence(" The last {rest} are not rotated.").format(rest=rest) if rest else ""
    second = (
        "neighbours, d1 and d2"
        if turn.interleaved
        else Sentence("half a head apart, d1 and d{first}").format(first=first[1] + 1)
    )
    return Sentence("Pairs are {second} and so on.{left}").format(second=second, left=left)
