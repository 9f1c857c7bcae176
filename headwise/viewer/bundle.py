"""Bundles the ES modules of static/ into the single script of a page, without a build step.

Each module becomes a function that is called once and returns its exports, so names cannot clash. The modules are
ordinary ES modules; only these forms are supported, and others are refused:

    import { a, b as c } from "./views/head.js";
    import STYLE from "./page.css" with { type: "text" };      a file as a string; a script as the string of its bundle
    export const | function | async function | class name      no default exports, no re-exports, no cycles
    export { a as b, c };                                      at the end of a module
"""

from __future__ import annotations

import json
import posixpath
import re
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable  # its place since Python 3.11; Python 3.14 has no other

STATIC = files(__name__.rpartition(".")[0]) / "static"

_IMPORT = re.compile(
    r'^import\s+(?:\{(?P<names>[^{}]*)\}|(?P<text>\w+))\s+from\s+"(?P<path>[^"]+)"(?P<as_text>\s+with\s+\{[^{}]*\})?;',
    re.MULTILINE,
)
_EXPORT = re.compile(r"^export\s+(?=(?:const|class|(?:async\s+)?function\*?)\s+(?P<name>[\w$]+))", re.MULTILINE)
_EXPORTS = re.compile(r"\bexport\s*\{(?P<names>[^{}]*)\};?\s*\Z")
_OTHER = re.compile(r"^(?:import|export)\b(?!\s*\().*", re.MULTILINE)
_AS_TEXT = re.compile(r'\s+with\s+\{\s*type:\s*"text"\s*\}')


def assemble(entry: str, root: Traversable = STATIC) -> str:
    """Join a module and all modules that it imports into one script. `entry`: the module's path under `root`.

    Raises:
        ValueError: a module is missing, imports form a cycle, or a form of import or export is not supported.
    """
    modules: dict[str, str] = {}
    _add(entry, root, modules, ())
    script = '"use strict";\n' + "\n".join(modules.values())
    if found := re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError(f"{entry}: a script in a page cannot contain {found[0]!r}. Split it into two parts")
    return script


def read(path: str, root: Traversable = STATIC) -> str:
    """Return the text of a file under `root`. Raises ValueError if it is missing."""
    try:
        return root.joinpath(*path.split("/")).read_text("utf-8")
    except OSError:
        raise ValueError(f"the file {path} does not exist in {root}") from None


def _add(path: str, root: Traversable, modules: dict[str, str], within: tuple[str, ...]) -> None:
    """Add a module to `modules`, after the modules that it imports. `within`: the modules that import it."""
    if path in within:
        raise ValueError(f"imports form a cycle: {' → '.join((*within, path))}")
    if path in modules:
        return

    def replace(found: re.Match[str]) -> str:
        wanted = _resolve(found["path"], path)
        if found["as_text"] is None:
            if found["names"] is None:
                raise ValueError(f"{path}: default exports are not supported. Received: {found[0]}")
            _add(wanted, root, modules, (*within, path))
            listed = (" ".join(name.split()) for name in found["names"].split(",") if name.strip())
            names = ", ".join(": ".join(name.split(" as ")) for name in listed)
            return f"const {{ {names} }} = {_variable(wanted)};"
        if found["text"] is None or not _AS_TEXT.fullmatch(found["as_text"]):
            raise ValueError(f'{path}: a file is imported as a whole, with {{ type: "text" }}. Received: {found[0]}')
        text = assemble(wanted, root) if wanted.endswith(".js") else read(wanted, root)
        return f"const {found['text']} = {_string(text)};"

    source = _IMPORT.sub(replace, read(path, root))
    exports = [found["name"] for found in _EXPORT.finditer(source)]
    source = _EXPORT.sub("", source)
    if listed := _EXPORTS.search(source):
        source = source[: listed.start()]
        exports += [": ".join(reversed(name.split(" as "))) for name in listed["names"].strip().split(",")]
    if other := _OTHER.search(source):
        raise ValueError(f"{path}: this form of import or export is not supported: {other[0]}")
    body = f"// {path}\n{source.strip()}\nreturn {{ {', '.join(exports)} }};"
    modules[path] = f"const {_variable(path)} = (() => {{\n{body}\n}})();"


def _resolve(path: str, importer: str) -> str:
    if not path.startswith(("./", "../")):
        raise ValueError(f'{importer}: a path must begin with "./" or "../". Received: {path}')
    found = posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
    if found.startswith(".."):
        raise ValueError(f"{importer}: a path must stay in the folder. Received: {path}")
    return found


def _variable(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path)


def _string(text: str) -> str:
    """Return the text as a JavaScript string that cannot end the HTML element around the script."""
    return json.dumps(text).replace("<", r"\u003c")
