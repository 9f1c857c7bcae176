"""The documents keep their word: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import click
import pytest

from headwise.cli import command
from headwise.doctor.catalogue import CATALOGUE
from headwise.export import FORMATS
from headwise.language import read_catalogue

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "docs/llms.txt", "examples/*.md")
    for path in sorted(ROOT.glob(pattern))
]
# The Chinese of a document: its code is that of the English, and runs there.
CHINESE = ROOT / "docs" / "zh"
TRANSLATED = {
    ROOT / "docs" / path.relative_to(CHINESE): path
    for path in sorted(CHINESE.glob("**/*.md"))
    if path.stem != "glossary"
}


@dataclass(frozen=True)
class Block:
    document: str
    line: int  # of its first line of code, from 1
    language: str
    code: str
    shown: str | None = None  # what the document says that this code prints: a block of text right after it


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start(2)) + 1
        follows = re.match(r"\n```text\n(.*?)^```$", text[match.end() + 1 :], re.MULTILINE | re.DOTALL)
        shown = follows[1] if follows and re.search(r"^print\(.*\Z", match[2].rstrip(), re.MULTILINE) else None
        yield Block(str(document.relative_to(ROOT)), line, match[1], match[2], shown)


COPIES = {*TRANSLATED.values(), ROOT / "README.zh.md"}
BLOCKS = [block for document in DOCUMENTS if document not in COPIES for block in blocks(document)]


def what_runs(block: Block) -> str:
    """Comments are translated; what runs is not."""
    return re.sub(r" *#.*|\"\"\".*?\"\"\"", "", block.code)


def ids(block: Block) -> str:
    return f"{block.document}:{block.line}"


@pytest.mark.parametrize("document", sorted({block.document for block in BLOCKS if block.language == "python"}))
def test_python_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document run in order and share their names, as a reader would type them."""
    monkeypatch.chdir(tmp_path)  # what they write is written here
    monkeypatch.setattr("headwise.kernels.native.instruction_set", lambda: "avx512")  # plans print the same everywhere
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for block in BLOCKS:
        if block.document == document and block.language == "python":
            padded = "\n" * (block.line - 1) + block.code  # a traceback then shows the document's own line
            with contextlib.redirect_stdout(io.StringIO()) as printed, patch.dict(FORMATS):
                exec(compile(padded, str(ROOT / document), "exec"), vars(main))
            if block.shown is not None:
                assert printed.getvalue() == block.shown


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in ("sh", "bash", "console")], ids=ids)
def test_shell_blocks_name_commands_and_options_that_exist(block: Block) -> None:
    for line in re.sub(r"\\\n", " ", block.code).splitlines():
        words = line.removeprefix("$ ").split("#")[0].split()
        if not words:
            continue
        program, *rest = words
        if program.startswith(("scripts/", ".ci/", "benchmarks/")):
            assert os.access(ROOT / program, os.X_OK), f"{program} is not a program of this repository"
        elif Path(program).name == "headwise":
            verb: click.Command = command.commands[rest[0]] if rest and not rest[0].startswith("-") else command
            if isinstance(verb, click.Group) and len(rest) > 1 and not rest[1].startswith("-"):
                task = verb.get_command(click.Context(verb), rest[1])
                assert task is not None, f"headwise {rest[0]} {rest[1]}"
                verb = task
            known = {option for parameter in verb.params for option in parameter.opts} | {"-h", "--help"}
            assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known
        elif Path(program).name == "python":
            files = [word for word in rest if word.endswith(".py")]
            assert all((ROOT / file).is_file() for file in files)
        else:
            assert program in ("pip", "git", "cd", "apt-get", "sudo") or shutil.which(program), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_headings_that_are_there(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    missing = [
        f"{file}#{heading}"
        for file, heading in targets
        if heading not in headings(document.parent / file if file else document)
    ]
    assert missing == []


@functools.cache
def headings(document: Path) -> set[str]:
    """The names that GitHub and the site give to the headings of a document."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_both_readmes_show_the_same_code() -> None:
    def code(name: str) -> list[str]:
        return [what_runs(block) for block in blocks(ROOT / name) if block.language in ("python", "sh")]

    assert code("README.md")
    assert code("README.md") == code("README.zh.md")


@pytest.mark.parametrize("english", TRANSLATED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_translation_has_the_code_and_the_sections_of_its_document(english: Path) -> None:
    def sections(document: Path) -> list[str]:
        prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        return re.findall(r"^#+(?= )", prose, re.MULTILINE)

    def numbers(text: str) -> list[str]:
        return re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text, re.ASCII)

    assert sections(TRANSLATED[english]) == sections(english)
    for block, its_block in zip(blocks(english), blocks(TRANSLATED[english]), strict=True):
        assert (its_block.language, its_block.shown) == (block.language, block.shown)
        if block.language in ("", "text") and re.search(r"[\u4e00-\u9fff]", its_block.code):  # a command's words
            assert numbers(its_block.code) == numbers(block.code)
        else:
            assert what_runs(its_block) == what_runs(block)


def test_the_table_of_findings_is_that_of_the_catalogue_in_chinese() -> None:
    titles = read_catalogue("zh")
    expected = [f"| `{entry.name}` | {entry.way or ''} | ".replace("|  |", "| |") for entry in CATALOGUE.values()]
    rows = re.findall(r"^\| `[a-z0-9-]+` \| \d* ?\| .*$", (ROOT / "docs/zh/doctor.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(expected)
    for row, begins, entry in zip(rows, expected, CATALOGUE.values(), strict=True):
        assert row.startswith(begins)
        assert row.endswith(f"| {titles[entry.title]} |")
