"""Makes the steps of a layer's parts besides attention: linear maps, norms, residual connections, feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from headwise.errors import WorksheetError
from headwise.language import Sentence
from headwise.nn.feed_forward import GATED, FeedForward
from headwise.worksheet.builder import Builder
from headwise.worksheet.description import ONE, SCIENTIFIC, Axis, Kind, Matrix, numbered

GELU_TANH = "0.5*{x}*(1+TANH(SQRT(2/PI())*({x}+0.044715*{x}^3)))"
# GELU is x · Φ(x). Φ, the normal distribution, is NORMSDIST in every version of Excel and LibreOffice.
ACTIVATIONS = {
    "relu": ("MAX(0,{x})", "max(0, x)"),
    "gelu": ("{x}*NORMSDIST({x})", "x · Φ(x)"),
    "gelu_tanh": (GELU_TANH, "½x (1 + tanh(√(2/π)(x + 0.044715 x³)))"),
    "silu": ("{x}/(1+EXP(-({x})))", "x / (1 + e⁻ˣ)"),
}


def projection(
    b: Builder,
    x: Matrix,
    weight: Tensor,
    bias: Tensor | None,
    cols: Axis,
    name: str,
    suffix: str = "",
    *,
    kind: Kind = "result",
    result: str | None = None,
) -> list[Matrix]:
    """Make the matrices of x W + b, and return [W, b, result]; without bias [W, result]. `weight`: [out, in]."""
    shown = [b.given("parameter", f"W_{name}{suffix}", weight.mT, x.cols, cols)]
    text = f"MMULT({x.name},{shown[0].name})"
    if bias is not None:
        shown.append(b.given("parameter", f"b_{name}{suffix}", bias, ONE, cols))
        text += f"+{shown[1].name}"
    shown.append(b.whole(result or f"{name}{suffix}", x.rows, cols, text, kind=kind))
    return shown


def in_rows(*groups: Sequence[Matrix]) -> list[list[Matrix]]:
    """Arrange the matrices of projections in rows on a page: weight and result side by side, the bias below."""
    return [list(row) for weight, *bias, made in groups for row in ([weight, made], bias)]


def check_linear(module: nn.Module, name: str) -> nn.Linear:
    """Return the module if it is exactly an nn.Linear, which a matrix product can show; else raise WorksheetError."""
    if type(module) is not nn.Linear:
        raise WorksheetError(
            f"{name} must be an nn.Linear. Received: {type(module).__name__}. Merge adapters and wrappers into the "
            "weight"
        )
    return module


def normalised(
    b: Builder, norm: nn.Module, xs: Sequence[Matrix], names: Sequence[str], label: str, title: str
) -> list[Matrix]:
    """Add a worksheet step for a LayerNorm or RMSNorm; return each matrix after it.

    All matrices `xs` share the parameters of the norm, whose names contain `label`.
    """
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm), type(norm)
    if norm.eps is None:
        raise WorksheetError(f"{title}: eps must be a number. Received: eps=None")
    width = xs[0].cols
    eps = b.option(f"Eps_{label}", norm.eps, digits=SCIENTIFIC)
    shown: list[Matrix] = [eps]
    gain = shift = None
    if norm.weight is not None:
        gain = b.given("parameter", f"Gain_{label}", norm.weight, ONE, width)
        shown.append(gain)
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
        shift = b.given("parameter", f"Shift_{label}", norm.bias, ONE, width)
        shown.append(shift)
    groups, made = [], []
    for x, name in zip(xs, names, strict=True):
        own, called = f"{x.name}[i,j]", label if len(xs) == 1 else b.local(x)
        if isinstance(norm, nn.LayerNorm):
            mean = b.cells(f"Mean_{called}", x.rows, ONE, f"AVERAGE({x.name}[i,:])")
            spread = b.cells(f"Variance_{called}", x.rows, ONE, f"DEVSQ({x.name}[i,:])/{len(width)}")
            text = f"({own}-{mean.name}[i,1])/SQRT({spread.name}[i,1]+{eps.name})"
            columns = [mean, spread]
        else:
            spread = b.cells(f"Mean_square_{called}", x.rows, ONE, f"SUMSQ({x.name}[i,:])/{len(width)}")
            text = f"{own}/SQRT({spread.name}[i,1]+{eps.name})"
            columns = [spread]
        text += f"*{gain.name}[1,j]" if gain else ""
        text += f"+{shift.name}[1,j]" if shift else ""
        made.append(b.cells(name, x.rows, x.cols, text))
        groups.append([*columns, made[-1]])
    if isinstance(norm, nn.LayerNorm):
        sentence = "Each row is normalised to mean 0 and variance 1, then each column gets its learned gain and shift."
        symbols = "y = (x − mean) / √(variance + ε) · gain + shift"
    else:
        sentence = "Each row is normalised to a mean square of 1, then each column gets its learned gain."
        symbols = "y = x / √(mean of x² + ε) · gain"
    b.step(title, sentence, symbols, *([each] for each in shown), *groups)
    return made


def added(b: Builder, x: Matrix, branch: Matrix, name: str, kind: Kind = "result") -> Matrix:
    """Add a worksheet step for x + the output of a branch (the residual connection); return the sum."""
    made = b.cells(name, x.rows, x.cols, f"{x.name}[i,j]+{branch.name}[i,j]", kind=kind)
    b.step(
        "Add the input",
        "The output of the branch is added to its input: the residual connection.",
        f"{name} = {x.name} + {branch.name}",
        [made],
    )
    return made


def feed_forward(b: Builder, module: FeedForward, x: Matrix) -> Matrix:
    """Add worksheet steps for a feed-forward network: two linear maps, or three with a gate; return the output."""
    hidden = numbered("F", module.hidden_dim)
    up = check_linear(module.up, "mlp.up")
    gate = None if module.gate is None else check_linear(module.gate, "mlp.gate")
    shown = projection(b, x, up.weight, up.bias, hidden, "Up")
    grid: list[list[Matrix]] = [[each] for each in shown]
    inside = shown[-1]
    if gate is not None:
        more = projection(b, x, gate.weight, gate.bias, hidden, "Gate_up")
        grid += [[each] for each in more]
        inside = more[-1]
    b.step("Feed-forward: widen", "Each token is mapped separately to more dimensions.", "U = X W_up + b", *grid)
    text, symbols = ACTIVATIONS[GATED.get(module.activation, module.activation)]
    text = text.format(x=f"{inside.name}[i,j]")
    if gate is not None:
        text = f"{shown[-1].name}[i,j]*{text}"
        symbols = f"U ⊙ act(G),  act(x) = {symbols}"
    active = b.cells("Active", x.rows, hidden, text)
    b.step(
        Sentence("Feed-forward: {activation}").format(activation=module.activation),
        "A nonlinear function of each number: without it, the two linear maps would be a single one.",
        f"A = {symbols}" if gate is not None else f"act(x) = {symbols}",
        [active],
    )
    down = check_linear(module.down, "mlp.down")
    shown = projection(b, active, down.weight, down.bias, x.cols, "Down")
    b.step(
        "Feed-forward: narrow",
        "Each token is mapped back to the width of the model.",
        "Y = A W_down + b",
        *[[each] for each in shown],
    )
    return shown[-1]


def residual(
    b: Builder, layer: Any, x: Matrix, norm: nn.Module, label: str, branch: Any, *, add: bool = True
) -> Matrix:
    """Add worksheet steps for x plus a branch of x (without `add` only the branch), with a norm; return the result.

    The norm is before the branch or after the sum, as in `ResidualLayer._add`.
    """
    if layer.norm_first:
        (read,) = normalised(
            b,
            norm,
            [x],
            [f"Norm_{label}"],
            label,
            Sentence("Norm before the {part}").format(part=Sentence(label.replace("_", " "))),
        )
        found = branch(read)
        return added(b, x, found, f"After_{label}") if add else found
    found = branch(x)
    total = added(b, x, found, f"Sum_{label}") if add else found
    (made,) = normalised(
        b,
        norm,
        [total],
        [f"After_{label}"],
        label,
        Sentence("Norm after the {part}").format(part=Sentence(label.replace("_", " "))),
    )
    return made
