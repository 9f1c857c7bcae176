"""Puts the ES modules of static/ together into the one script that a page carries, without a build step.

Each module becomes a function that is called once and returns what it exports, so names cannot clash. The modules are
ordinary ones, which editors understand, of which this knows what they use and refuses the rest:

    import { a, b as c } from "./views/head.js";
    import STYLE from "./page.css" with { type: "text" };      a file as a string; a script as the string of its bundle
    export const | function | async function | class name      no default exports, no re-exports, no cycles
"""

from __future__ import annotations

import json
import posixpath
import re
from importlib.abc import Traversable
from importlib.resources import files

STATIC = files(__name__.rpartition(".")[0]) / "static"

_IMPORT = re.compile(
    r'^import\s+(?:\{(?P<names>[^{}]*)\}|(?P<text>\w+))\s+from\s+"(?P<path>[^"]+)"(?P<as_text>\s+with\s+\{[^{}]*\})?;',
    re.MULTILINE,
)
_EXPORT = re.compile(r"^export\s+(?=(?:const|class|(?:async\s+)?function\*?)\s+(?P<name>[\w$]+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b(?!\s*\().*", re.MULTILINE)
_AS_TEXT = re.compile(r'\s+with\s+\{\s*type:\s*"text"\s*\}')


def assemble(entry: str, root: Traversable = STATIC) -> str:
    """The script that `entry`, the path of a module under `root`, makes with all that it imports.

    Raises:
        ValueError: a module that is not there, imports itself in a circle, or is written in a way that is not known.
    """
    modules: dict[str, str] = {}
    _add(entry, root, modules, ())
    script = '"use strict";\n' + "\n".join(modules.values())
    if found := re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError(f"{entry}: a script in a page cannot hold {found[0]!r}; write it in two parts")
    return script


def read(path: str, root: Traversable = STATIC) -> str:
    """The text of a file under `root`. ValueError if it is not there."""
    try:
        return root.joinpath(*path.split("/")).read_text("utf-8")
    except OSError:
        raise ValueError(f"there is no file {path} in {root}") from None


def _add(path: str, root: Traversable, modules: dict[str, str], within: tuple[str, ...]) -> None:
    """Put the module and what it imports into `modules`, each behind all that it needs."""
    if path in within:
        raise ValueError(f"modules import one another in a circle: {' → '.join((*within, path))}")
    if path in modules:
        return

    def replace(found: re.Match[str]) -> str:
        wanted = _resolve(found["path"], path)
        if found["as_text"] is None:
            if found["names"] is None:
                raise ValueError(f"{path}: there are no default exports: {found[0]}")
            _add(wanted, root, modules, (*within, path))
            names = ", ".join(": ".join(name.split(" as ")) for name in _names(found["names"]))
            return f"const {{ {names} }} = {_variable(wanted)};"
        if found["text"] is None or not _AS_TEXT.fullmatch(found["as_text"]):
            raise ValueError(f'{path}: a file is imported whole, with {{ type: "text" }}: {found[0]}')
        text = assemble(wanted, root) if wanted.endswith(".js") else read(wanted, root)
        return f"const {found['text']} = {_string(text)};"

    source = _IMPORT.sub(replace, read(path, root))
    exports = [found["name"] for found in _EXPORT.finditer(source)]
    source = _EXPORT.sub("", source)
    if other := _OTHER.search(source):
        raise ValueError(f"{path}: an import or export of a kind that is not known: {other[0]}")
    body = f"// {path}\n{source.strip()}\nreturn {{ {', '.join(exports)} }};"
    modules[path] = f"const {_variable(path)} = (() => {{\n{body}\n}})();"


def _resolve(path: str, importer: str) -> str:
    if not path.startswith(("./", "../")):
        raise ValueError(f'{importer}: a path begins with "./" or "../": {path}')
    found = posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
    if found.startswith(".."):
        raise ValueError(f"{importer}: this path leads out of the folder: {path}")
    return found


def _names(listed: str) -> list[str]:
    return [" ".join(name.split()) for name in listed.split(",") if name.strip()]


def _variable(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path)


def _string(text: str) -> str:
    """A JavaScript string in which nothing can end the element that the script stands in."""
    return json.dumps(text).replace("<", r"\u003c")
