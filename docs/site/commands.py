"""The pages of the command and of the pytest plugin, from what `--help` says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from headwise import pytest_plugin
from headwise.cli import command

COMMAND = (
    "Every command prints this with `--help`. Exit codes: 0 success, 2 bad input, 130 interrupted; 1 where a command "
    "says so."
)
PLUGIN = "pytest loads it where headwise is installed. [The doctor](../doctor.md#in-a-test-suite) shows it at work."


def command_page() -> str:
    """All commands, one section each."""
    return "\n\n".join(["# The command headwise", COMMAND, *_sections(command, "headwise")]) + "\n"


def plugin_page() -> str:
    """The options, settings and fixtures of the pytest plugin."""
    parser = _Parser()
    pytest_plugin.pytest_addoption(parser)  # type: ignore[arg-type]
    fixture = pytest_plugin.assert_healthy.__doc__
    tables = [
        *("## Options", _table(("option", "what it does"), parser.options)),
        *(
            "## Settings",
            "In `pyproject.toml`, under `[tool.pytest.ini_options]`.",
            _table(("setting", "what it holds"), parser.settings),
        ),
        *("## Fixtures", f"`assert_healthy`: {fixture}"),
    ]
    return "\n\n".join(["# The pytest plugin", PLUGIN, _plain(pytest_plugin.__doc__ or ""), *tables]) + "\n"


def _sections(verb: click.Command, path: str) -> Iterator[str]:
    context = click.Context(
        verb, info_name=path, max_content_width=100, terminal_width=100, help_option_names=["-h", "--help"]
    )
    if isinstance(verb, click.Group):
        for name in verb.list_commands(context):
            part = verb.get_command(context, name)
            if part is not None and not part.hidden:
                yield from _sections(part, f"{path} {name}")
        return
    yield f"## {path}"
    yield "```text\n" + " ".join([path, *verb.collect_usage_pieces(context)]) + "\n```"
    yield _plain(verb.help or "")
    options = [
        (p.get_help_record(context) or ("", "")) for p in verb.get_params(context) if isinstance(p, click.Option)
    ]
    yield _table(("option", "what it does"), [record for record in options if record[0]])


def _plain(text: str) -> str:
    """A help text as Markdown: what `\\b` keeps as it is becomes a block of code."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"```text\n{part[2:]}\n```" if part.startswith("\b\n") else part for part in parts)


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [" | ".join(head), "---|---", *(f"`{name}` | {' '.join(_cell(text).split())}" for name, text in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(text: str) -> str:
    return (
        text.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("*", "\\*")
        .replace("_", "\\_")
        .replace("[", "\\[")
    )


class _Parser:
    """Takes what the plugin tells pytest."""

    def __init__(self) -> None:
        self.options: list[tuple[str, str]] = []
        self.settings: list[tuple[str, str]] = []

    def getgroup(self, name: str, description: str) -> _Parser:
        return self

    def addoption(self, name: str, *, help: str, metavar: str = "", **rest: object) -> None:
        self.options.append((f"{name} {metavar}".strip(), help))

    def addini(self, name: str, help: str, **rest: object) -> None:
        self.settings.append((name, help))
