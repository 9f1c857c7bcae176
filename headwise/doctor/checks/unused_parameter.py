"""Whether a gradient reaches every parameter.

It is tested without masks, with them, in train mode with dropout disabled, and with every flag. A parameter whose
gradient is 0 in all of these is changed, to see whether the output depends on it anyway: then its gradient is cut off.
A difference in rounding only is not reported (the bias of the keys shifts all scores of a row by the same amount).
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import Result, tensors_in
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import REACHED, Probe, gap, gradients, quiet

FINDINGS = ("unused-parameter", "gradient-blocked")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    wanted: dict[str, Tensor] = {name: x for name, x in probe.module.named_parameters() if x.requires_grad}
    if not wanted:
        raise NotApplicable("it has no parameters that require a gradient")
    called: set[str] = set()
    hooks = [
        part.register_forward_hook(lambda *_, name=name: called.add(name))
        for name, part in probe.module.named_modules()
    ]
    waiting = set(wanted)
    ran = 0
    trained: set[str] | None = None  # those with a gradient in train mode
    used: dict[str, Tensor] = {}  # matrix -> where it had a gradient
    for training, options in _calls(probe, inputs):
        reached = _reached(probe, inputs, wanted, training, options)
        if reached is not None:
            ran += 1
            waiting -= reached.keys()
            trained = set(reached) if training else trained
            for name, where in reached.items():
                if where.ndim >= 2:
                    used[name] = used[name] | where if name in used else where
    for hook in hooks:
        hook.remove()
    if not ran:
        yield Finding(
            "gradient-blocked",
            "bug",
            f"autograd finds no parameter that the output depends on: none of {len(wanted)} gets a gradient",
            "remove torch.no_grad, detach() and .data from forward",
            numbers={"parameters": len(wanted), "blocked": len(wanted)},
        )
        return
    blocked: dict[str, float] = {}
    unused: dict[str, list[str]] = {}
    for name in (name for name in wanted if name in waiting):
        change = _matters(patient, name, inputs, before)
        if change > REACHED * 1e3:
            blocked[name] = change
        elif change == 0:
            unused.setdefault(name.rpartition(".")[0] or name, []).append(name)
    if blocked:
        yield _blocked(probe, blocked, len(wanted))
    for names in unused.values():
        yield _unused(patient, probe, names, wanted, called)
    if trained is not None and not blocked:
        yield from _only_in_eval(patient, probe, inputs, set(wanted) - waiting - trained)
    yield from _idle(patient, probe, inputs, before, used)


def _calls(probe: Probe, inputs: Inputs) -> Iterator[tuple[bool, dict[str, Any]]]:
    yield False, {}
    for mask in hiding(inputs, 1):
        yield False, mask
    yield True, {}
    for flag, value in probe.interface.flags.items():
        yield False, {"given": {flag: not value}}


def _reached(
    probe: Probe, inputs: Inputs, wanted: dict[str, Tensor], training: bool, options: dict[str, Any]
) -> dict[str, Tensor] | None:
    """The parameters with a gradient, and where it is not 0; None if it does not run this way, or gives no
    gradient at all.
    """
    probe.module.train(training)
    try:
        with quiet(), Dice(still=True), torch.enable_grad():
            result = probe.interface.run(inputs, grad=True, **options)
            outs = [x for x in (result.output, *_streams(result)) if x.requires_grad]
            if not result.output.requires_grad:
                return None
            reached: dict[str, Tensor] = {}
            for x in outs:
                for name, g in zip(wanted, gradients(x, wanted.values(), keep=True), strict=True):
                    if g is not None and bool((g != 0).any()):
                        reached[name] = reached[name] | (g != 0) if name in reached else g != 0
    except Exception:
        return None
    finally:
        probe.module.eval()
    return reached


def _streams(result: Result) -> list[Tensor]:
    """Outputs beside the first, such as those of a second stream of tokens: of its width, and not weights."""
    width = result.output.shape[-1]
    return [
        x
        for _, x in tensors_in(result.raw)
        if x is not result.weights and x.ndim >= 3 and x.shape[-1] == width and x.shape[0] == len(result.output)
    ]


def _matters(patient: Patient, name: str, inputs: Inputs, before: Tensor, there: Tensor | None = None) -> float:
    """How far the output changes when the parameter holds other numbers, everywhere or `there`."""
    other = Probe(patient)
    x = dict(other.module.named_parameters())[name]
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        noise = torch.randn(x.shape, generator=draw).to(x.dtype)
        noise = noise if there is None else noise * there
        x.add_(noise * max(0.5, float(x.abs().amax()) if x.numel() else 0.5))
    out = other.attempt(inputs)
    return gap(before, out) if isinstance(out, Tensor) else torch.inf


def _only_in_eval(patient: Patient, probe: Probe, inputs: Inputs, names: set[str]) -> Iterator[Finding]:
    """Parameters whose gradient is cut off in train mode alone, although the output depends on them there."""
    lost = []
    for name in sorted(names):
        other = Probe(patient)
        other.module.train()
        with Dice(still=True):
            before = other.attempt(inputs)
        x = dict(other.module.named_parameters())[name]
        with torch.no_grad():
            x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(11)).to(x.dtype) * 0.5)
        with Dice(still=True):
            after = other.attempt(inputs)
        if isinstance(before, Tensor) and isinstance(after, Tensor) and gap(before, after) > REACHED * 1e3:
            lost.append(name)
    if lost:
        yield Finding(
            "gradient-blocked",
            "bug",
            f"in train mode {_listed(lost)} get{'s' if len(lost) == 1 else ''} no gradient, although the output "
            f"depends "
            "on it there; in eval mode there is one",
            "remove the detach(), .data or torch.no_grad that acts in train mode",
            where=_origin(probe.module, lost[0]),
            numbers={"blocked": len(lost)},
        )


_TABLES = re.compile(r"embed|table|pos(ition)?(_|\.|$)|rel(ative)?_|bias|bucket|experts?|token", re.IGNORECASE)


def _idle(patient: Patient, probe: Probe, inputs: Inputs, before: Tensor, used: dict[str, Tensor]) -> Iterator[Finding]:
    """Rows or columns of a matrix that never get a gradient, and do not change the output: a part of a packed weight.

    Whole heads only: single units of an MLP may be inactive for a few tokens.
    """
    if "projection-zero" in patient.excused:  # nothing behind a projection of zeros has a gradient
        return
    interface = probe.interface
    heads = interface.heads or 1
    embeddings = {
        f"{path}.{name}" if path else name
        for path, part in probe.module.named_modules()
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag))
        for name, _ in part.named_parameters(recurse=False)
    }
    for name, where in used.items():
        if where.ndim != 2 or name in embeddings or _TABLES.search(name.removesuffix(".weight")):
            continue
        for dim in (0, 1):
            dead = ~where.any(1 - dim)
            count, of = int(dead.sum()), len(dead)
            head = max(1, interface.width // heads)
            if not count or count == of or count < min(head, of // 4) or count < 2:
                continue
            first = int(dead.nonzero()[0])
            change = _matters(patient, name, inputs, before, dead[:, None] if dim == 0 else dead[None])
            if change > 0:
                continue
            runs = _runs(dead)
            kind = "rows" if dim == 0 else "columns"
            yield Finding(
                "unused-parameter",
                "bug" if count % head == 0 else "risk",
                f"{count} of the {of} {kind} of {name} {list(where.shape)} never get a gradient ({kind} {runs}), and "
                f"other "
                "numbers there do not change the output: this part of the weight is not used",
                "use every part of the weight once (is another part used in its place?), or make the weight smaller",
                where=_origin(probe.module, name),
                numbers={"idle": count, "of": of, "first": first},
            )
            return


def _runs(dead: Tensor) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    at = dead.nonzero().flatten().tolist()
    runs: list[list[int]] = []
    for x in at:
        if runs and x == runs[-1][1] + 1:
            runs[-1][1] = x
        else:
            runs.append([x, x])
    said = [f"{a}-{b}" if b > a else str(a) for a, b in runs]
    return ", ".join(said[:4]) + (" …" if len(said) > 4 else "")


def _blocked(probe: Probe, changes: dict[str, float], of: int) -> Finding:
    names, largest = list(changes), max(changes, key=lambda name: changes[name])
    return Finding(
        "gradient-blocked",
        "bug",
        f"{_listed(names)} get{'s' if len(names) == 1 else ''} no gradient, although other numbers in {largest} "
        f"change the output by {changes[largest]:.2g} of its size",
        "remove the detach(), .data, torch.no_grad or rounding between parameter and output",
        where=_origin(probe.module, names[0]),
        numbers={"change": changes[largest], "blocked": len(names), "parameters": of},
    )


def _unused(patient: Patient, probe: Probe, names: list[str], wanted: dict[str, Tensor], called: set[str]) -> Finding:
    """The finding about parameters of one submodule that never get a gradient."""
    owner, attribute = _owner(probe.module, names[0])
    holder = names[0].rpartition(".")[0]
    ran = holder in called and type(probe.module.get_submodule(holder)).__module__.startswith("torch.")
    optional = not ran and _mentioned(owner, attribute)
    listed = _listed([f"{name} {list(wanted[name].shape)}" for name in names])
    never = f"{listed} never get{'s' if len(names) == 1 else ''} a gradient"
    if ran:
        evidence = f"{never}: {holder} is computed, but its result is not used"
    elif optional:
        evidence = f"{never} in any way of calling that was tried; some other option may use it"
    else:
        evidence = f"{never}: forward does not use {'it' if len(names) == 1 else 'them'}"
    matrix = any(wanted[name].ndim >= 2 and min(wanted[name].shape[-2:]) > 1 for name in names)
    own = not type(probe.module.get_submodule(holder)).__module__.startswith(
        "torch."
    )  # not of a norm that is left over
    several = matrix or (
        own and not patient.is_library and any(wanted[name].numel() > 1 and not name.endswith("bias") for name in names)
    )
    return Finding(
        "unused-parameter",
        "bug" if several and not optional else "risk",
        evidence,
        "use it where it belongs (is another one used in its place?), or remove it",
        where=_origin(probe.module, names[0]),
        numbers={"weights": sum(wanted[name].numel() for name in names)},
    )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# --- Where a parameter is created and used ---------------------------------------------------------------------------


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The innermost submodule, not one of torch's own, that has the parameter, and the name of its attribute."""
    path = name.split(".")
    owner, attribute = module, path[0]
    part: nn.Module = module
    for i, step in enumerate(path[:-1]):
        part = part.get_submodule(step)
        if not type(part).__module__.startswith("torch."):
            owner, attribute = part, path[i + 1]
    return owner, attribute


def _functions(owner: nn.Module) -> Iterator[tuple[str, int, ast.FunctionDef]]:
    """File, first line and syntax tree of every method of its class and base classes."""
    for kind in type(owner).__mro__:
        if kind in (nn.Module, object):
            continue
        try:
            lines, first = inspect.getsourcelines(kind)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            file = inspect.getsourcefile(kind) or ""
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield file, first, node


def _mentioned(owner: nn.Module, attribute: str) -> bool:
    """Whether a method other than initialisation uses it; True if the source cannot be read."""
    found = False
    replaced: set[str] = set()
    for _, _, function in _functions(owner):
        found = True
        if function.name in replaced or "init" in function.name or "reset" in function.name:
            continue
        nodes = list(ast.walk(function))
        if any(isinstance(node, ast.Attribute) and node.attr == attribute for node in nodes):
            return _by_option(function, attribute)
        if not any(isinstance(node, ast.Name) and node.id == "super" for node in nodes):
            replaced.add(function.name)  # a method of a base class that is overridden does not run
    return not found


def uses(module: nn.Module, attribute: str) -> bool:
    """Whether forward reads an attribute of the module in every call."""
    for _, _, function in _functions(module):
        if function.name == "forward":
            mentioned = any(isinstance(x, ast.Attribute) and x.attr == attribute for x in ast.walk(function))
            return mentioned and not _under_conditions(function, attribute)
    return False


def _under_conditions(function: ast.FunctionDef, attribute: str) -> list[ast.expr]:
    """The conditions around its uses."""
    found: list[ast.expr] = []

    def inside(node: ast.AST, above: tuple[ast.expr, ...]) -> None:
        if isinstance(node, ast.Attribute) and node.attr == attribute:
            found.extend(above)
        tests = (*above, node.test) if isinstance(node, (ast.If, ast.IfExp, ast.While)) else above
        for child in ast.iter_child_nodes(node):
            inside(child, above if child is getattr(node, "test", None) else tests)

    inside(function, ())
    return found


def _by_option(function: ast.FunctionDef, attribute: str) -> bool:
    """Whether its use may depend on how the module is called or set up: False if the conditions around it are
    constants.
    """
    arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    conditions = _under_conditions(function, attribute)
    names = {x.id for test in conditions for x in ast.walk(test) if isinstance(x, ast.Name)}
    return not conditions or bool(names & arguments) or not names


def _origin(module: nn.Module, name: str) -> Where | None:
    """The line of the constructor that creates it."""
    owner, attribute = _owner(module, name)
    for file, first, function in _functions(owner):
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            if any(isinstance(part, ast.Attribute) and part.attr == attribute for part in parts):
                return Where.at(file, first + node.lineno - 1)
    return None
