"""Makes command-line options and YAML of a task's options, from their dataclass. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from headwise.cli.files import reason
from headwise.errors import ArgumentError, FileError
from headwise.files import parsed
from headwise.language import Sentence
from headwise.renamed import renamed
from headwise.tasks.options.train import TrainOptions

_KINDS: dict[type, click.ParamType] = {int: click.INT, float: click.FLOAT, str: click.STRING}
_METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT"}
_WIDTH = 100  # characters per line of YAML


def in_order(options: type[TrainOptions]) -> tuple[list[dataclasses.Field[Any]], list[dataclasses.Field[Any]]]:
    """Return two lists of fields: the task's own options, most derived class first; the options of all tasks."""
    by_name = {field.name: field for field in dataclasses.fields(options)}
    common = [field.name for field in dataclasses.fields(TrainOptions)]
    own: dict[str, None] = {}
    for kind in options.__mro__:
        own |= dict.fromkeys(name for name in vars(kind).get("__annotations__", {}) if name in by_name)
    return [by_name[name] for name in own if name not in common], [by_name[name] for name in common]


def click_options(options: type[TrainOptions]) -> list[click.Option]:
    """Make one click option for each field.

    The default of an option is None, or () if it can be repeated: that means "not given".
    """
    kinds = get_type_hints(options)
    return [_click_option(field, kinds[field.name]) for part in in_order(options) for field in part]


def _click_option(field: dataclasses.Field[Any], kind: Any) -> click.Option:
    flag = f"--{field.name.replace('_', '-')}"
    kind = _without_none(kind)
    shared: dict[str, Any] = {"help": field.metadata["help"] + _shown(field), "default": None}
    if kind is bool:
        return click.Option([f"{flag}/--no-{flag[2:]}", field.name], **shared)
    if get_origin(kind) is Literal:
        return click.Option([flag, field.name], type=click.Choice([str(each) for each in get_args(kind)]), **shared)
    several = get_origin(kind) is tuple
    single = get_args(kind)[0] if several else kind
    metavar = field.metadata.get("metavar") or _METAVARS[single]
    return click.Option([flag, field.name], type=_KINDS[single], multiple=several, metavar=metavar, **shared)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return next(each for each in get_args(kind) if each is not type(None))
    return kind


def _shown(field: dataclasses.Field[Any]) -> str:
    """Return the default value as text for --help; "" if the default is None or empty."""
    default = field.default
    if default is dataclasses.MISSING:
        return "  [required]"
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        default = f"{'' if default else 'no-'}{field.name.replace('_', '-')}"
    return f"  [default: {', '.join(default) if isinstance(default, tuple) else default}]"


def given_among(options: type[TrainOptions], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line: name -> value."""
    names = [field.name for field in dataclasses.fields(options)]
    return {name: parameters[name] for name in names if parameters[name] is not None and parameters[name] != ()}


def read_config(path: Path, word: str, options: type[TrainOptions]) -> dict[str, Any]:
    """Read options from a YAML file, or from `options` in the config.yaml of a run folder: name -> value.

    Raises:
        FileError: the file cannot be read, or is not YAML.
        ArgumentError: the file has an option that the task does not have, or the options of another task.
    """
    import yaml

    try:
        content = parsed(yaml.safe_load, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(
            Sentence("--config {path}: {reason}. Expected a YAML file of options").format(
                path=path, reason=reason(error)
            )
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise FileError(
            Sentence("--config {path}: not YAML: {reason}").format(path=path, reason=" ".join(str(error).split()))
        ) from error
    content = {} if content is None else content
    if isinstance(content, dict) and isinstance(content.get("options"), dict) and "task" in content:
        if content["task"] != word:
            raise ArgumentError(
                Sentence("--config {path}: expected the options of {word}. Received: task={content!r}").format(
                    path=path, word=word, content=content["task"]
                )
            )
        content = content["options"]
    if not isinstance(content, dict):
        raise FileError(
            Sentence("--config {path}: expected lines such as epochs: 3. Received: {name}").format(
                path=path, name=type(content).__name__
            )
        )
    content = renamed(content)
    known = [field.name for part in in_order(options) for field in part]
    for name in content:
        if name not in known:
            raise ArgumentError(
                Sentence("--config {path}: unknown option {name!r}{near} Expected one of: {known}").format(
                    path=path, name=name, near=near(str(name), known), known=", ".join(known)
                )
            )
    kinds = get_type_hints(options)
    return {name: _convert(value, _without_none(kinds[name])) for name, value in content.items() if value is not None}


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value to its field's type: YAML reads `precision: 32` and `text: 1` as numbers, 1e-3 as text."""
    if isinstance(value, int) and not isinstance(value, bool) and _is_text(kind):
        return str(value)
    if isinstance(value, str) and kind is float:
        try:
            return float(value)
        except ValueError:
            return value  # the checks of the options report it
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_convert(each, get_args(kind)[0]) for each in value)
    return value


def _is_text(kind: Any) -> bool:
    return kind is str or (get_origin(kind) is Literal and isinstance(get_args(kind)[0], str))


def as_yaml(word: str, options: type[TrainOptions], given: Mapping[str, Any]) -> str:
    """Write every option, its help text and its value as YAML, from which `read_config` reads the same values."""
    parts = [f"# headwise train {word} DATA --config FILE. Options on the command line override those in this file.\n"]
    own, common = in_order(options)
    for title, some in ((Sentence("Options of {word}").format(word=word), own), ("Options of every task", common)):
        parts.append(f"\n# --- {title} ---\n")
        for field in some:
            default = None if field.default is dataclasses.MISSING else field.default
            comment = textwrap.wrap(field.metadata["help"] + _choices(options, field.name), _WIDTH - 2)
            lines = [f"# {line}" for line in comment]
            parts.append("\n".join(["", *lines, _yaml_line(field.name, given.get(field.name, default)), ""]))
    return "".join(parts)


def _yaml_line(name: str, value: Any) -> str:
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    written: str = yaml.safe_dump([plain], allow_unicode=True, default_flow_style=True, width=float("inf"))
    return f"{name}: {written.strip()[1:-1]}"


def _choices(options: type[TrainOptions], name: str) -> str:
    kind = _without_none(get_type_hints(options)[name])
    return f" One of: {', '.join(map(str, get_args(kind)))}." if get_origin(kind) is Literal else ""


def near(name: str, known: Sequence[str]) -> Sentence:
    """Return the end of a message on an unknown name: ", did you mean 'lr'?", or "." if no known name is similar."""
    found = difflib.get_close_matches(name, known, n=1)
    return Sentence(", did you mean {name!r}?").format(name=found[0]) if found else Sentence(".")
