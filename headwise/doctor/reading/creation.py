"""Where the code of a module creates and uses a parameter."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator
from typing import TypeGuard

from torch import nn

from headwise.doctor.finding import Where
from headwise.doctor.lines import source_of


def owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The innermost submodule, not one of torch's own, that has the parameter, and the name of its attribute."""
    path = name.split(".")
    found, attribute = module, path[0]
    part: nn.Module = module
    for i, step in enumerate(path[:-1]):
        part = part.get_submodule(step)
        if not type(part).__module__.startswith("torch."):
            found, attribute = part, path[i + 1]
    return found, attribute


def functions(module: nn.Module) -> Iterator[tuple[str, int, ast.FunctionDef]]:
    """File, first line and syntax tree of every method of its class and base classes."""
    for kind in type(module).__mro__:
        if kind in (nn.Module, object):
            continue
        source = source_of(kind)
        if source is None:
            continue
        try:
            tree = ast.parse(textwrap.dedent(source.text))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield source.file or "", source.line, node


def mentioned(module: nn.Module, attribute: str) -> bool:
    """Whether a method other than initialisation uses it, unless constants switch that off; True if the source cannot
    be read.
    """
    found = False
    replaced: set[str] = set()
    for _, _, function in functions(module):
        found = True
        if function.name in replaced or "init" in function.name or "reset" in function.name:
            continue
        if any(isinstance(x, ast.Attribute) and x.attr == attribute for x in ast.walk(function)):
            return _by_option(function, attribute)
        if not _reads(function, {"super"}):
            replaced.add(function.name)  # a method of a base class that is overridden does not run
    return not found


def left_out(module: nn.Module, name: str) -> str | None:
    """The outermost part on the way to a parameter, not one of torch's own, that no method of its holder uses; None if
    each one is used.
    """
    part, path = module, name.split(".")
    for i, step in enumerate(path[:-1]):
        holder, part = part, part.get_submodule(step)
        of_torch = type(part).__module__.startswith("torch.") or type(holder).__module__.startswith("torch.")
        if not of_torch and not mentioned(holder, step):
            return ".".join(path[: i + 1])
    return None


def by_setting(module: nn.Module, argument: str, absent: Collection[str] = ()) -> bool:
    """Whether forward uses an argument, or what it is unpacked to, only under conditions on the module's settings, or
    on arguments that are absent from the call.
    """
    function = next((x for _, _, x in functions(module) if x.name == "forward"), None)
    if function is None:
        return False
    nodes = list(ast.walk(function))
    switches = [x for x in nodes if isinstance(x, ast.If) and _reads(x.test, {"self", *absent})]
    settled = [x for switch in switches for branch in switch.body for x in ast.walk(branch)]
    unpacked = [x for x in nodes if isinstance(x, ast.Assign) and x not in settled and _reads(x.value, {argument})]
    names = {argument, *(x.id for each in unpacked for t in each.targets for x in ast.walk(t) if _is_name(x))}
    ignored = [x for each in (*filter(_is_of_none, nodes), *unpacked) for x in ast.walk(each)]
    uses = [x for x in nodes if _is_name(x) and x.id in names and x not in ignored]
    return bool(uses) and all(x in settled for x in uses)


def _is_of_none(node: ast.AST) -> bool:
    """Whether it is a comparison with None, which does not use the value."""
    return isinstance(node, ast.Compare) and any(
        isinstance(x, ast.Constant) and x.value is None for x in node.comparators
    )


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(_is_name(x) and x.id in names for x in ast.walk(node))


def _by_option(function: ast.FunctionDef, attribute: str) -> bool:
    """Whether its use may depend on how the module is called or set up: False if the conditions around it are
    constants.
    """
    conditions: list[ast.expr] = []

    def inside(node: ast.AST, above: tuple[ast.expr, ...]) -> None:
        if isinstance(node, ast.Attribute) and node.attr == attribute:
            conditions.extend(above)
        test = node.test if isinstance(node, (ast.If, ast.IfExp, ast.While)) else None
        for child in ast.iter_child_nodes(node):
            inside(child, above if test is None or child is test else (*above, test))

    inside(function, ())
    arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    names = {x.id for test in conditions for x in ast.walk(test) if _is_name(x)}
    return not conditions or bool(names & arguments) or not names


def origin(module: nn.Module, name: str) -> Where | None:
    """The line of the constructor that creates it."""
    holder, attribute = owner(module, name)
    for file, first, function in functions(holder):
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            if any(isinstance(part, ast.Attribute) and part.attr == attribute for part in parts):
                return Where.at(file, first + node.lineno - 1)
    return None
