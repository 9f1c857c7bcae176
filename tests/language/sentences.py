"""The sentences that headwise shows, found in its code: what a catalogue has to translate.

They are the templates that `Sentence`, `said` and `Heading` are given, and every other string of the files of `SPOKEN`.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[2] / "headwise"

PLACE = r"(?<!\{)\{[\w.]+(?:![rsa])?(?::[^{}]*)?\}"  # of a value: "{rows:,}"
LEAST = 7  # letters of its own in a sentence with values

GIVEN = ("said", "Sentence", "Heading", "working", "say")  # functions and classes whose first argument is shown
TOLD = "(?!Attribute)[A-Z].*Error|NotChecked|NotApplicable|EditRefused|TrainingInterrupted"  # the same, with values

# Where every sentence is shown to a reader, but for exceptions. Elsewhere it is what `said` and `Heading` are given.
SPOKEN = [
    *(f"doctor/{name}.py" for name in ("diagnosis", "finding", "limits", "patient", "subject")),
    "doctor/laws/*.py",
    "doctor/reading/anatomy.py",
    "doctor/probing/probe.py",
    "doctor/comparing/comparison_report.py",
    "doctor/gradients/gradient_report.py",
    "doctor/telling/report.py",
    "worksheet/*.py",
    "export/card.py",
    "cli/speaking.py",
    "cli/groups.py",
    *(f"kernels/{name}.py" for name in ("decode", "flex", "kernel", "plan", "sdpa", "tiled")),
]


def of_the_code() -> Iterator[str]:
    """The sentences in the Python files."""
    for path in sorted(ROOT.rglob("*.py")):
        yield from _strings(path)[0]


def of_files(pattern: str, *, every: bool = False) -> Iterator[str]:
    """The strings of some files, long or short, with numbers in place of values: those that `said` is given, or all."""
    for path in sorted(ROOT.glob(pattern)):
        tree = ast.parse(path.read_text("utf-8"))
        for node in _within(tree, _docstrings(tree)) if every else _given(tree, errors=False):
            yield _shape(node) or ""


def f_strings() -> Iterator[str]:
    """Sentences that cannot be translated, because they are f-strings: as "file:line: sentence"."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        spoken = any(path.match(pattern) for pattern in SPOKEN)
        for node in _within(tree, _docstrings(tree)) if spoken else _given(tree):
            if not isinstance(node, ast.Constant) and is_sentence(_shape(node) or ""):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {_shape(node)}"


def words_of_the_code() -> set[str]:
    """Every string of the Python files: what a catalogue may hold besides sentences, such as the name of a column."""
    return {text for path in ROOT.rglob("*.py") for text in _strings(path)[1]}


def of_the_command(command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    """The help of a command, of its options and of its subcommands."""
    context = click.Context(command, parent=parent, **command.context_settings)  # click keeps its help option: -h too
    for text in (command.help, *(getattr(each, "help", None) for each in command.get_params(context))):
        yield from paragraphs(text or "")
    yield from paragraphs(command.short_help or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from of_the_command(found, context)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text, each in one line; not those that click leaves as they are."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.strip() and not paragraph.startswith("\b"):
            yield " ".join(re.split(r"\s{2,}(?=\[)", paragraph.strip())[0].split())


@functools.cache  # of strings: the trees of all files would make each collection of garbage slow
def _strings(path: Path) -> tuple[list[str], set[str]]:
    """The sentences of a file, and all its strings."""
    tree = ast.parse(path.read_text("utf-8"))
    found = [
        node.value for node in _given(tree) if isinstance(node, ast.Constant) and re.search("[a-z]{2}", node.value)
    ]
    if path.parent.name == "cli":  # the errors of the command are its own sentences
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func).endswith("Error"))
        found += [x.value for call in calls for x in call.args[:1] if isinstance(x, ast.Constant)]
    if any(path.match(pattern) for pattern in SPOKEN):
        every = (node.value for node in _within(tree, _docstrings(tree)) if isinstance(node, ast.Constant))
        found += filter(is_sentence, every)
    return found, {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str)}


def is_sentence(text: str) -> bool:
    """Whether a text is for people: three words or more, and no pattern, tag, formula or list of names.

    Shorter texts may stand in a catalogue, too, but need not: "second bytes" could be a key of a table.
    """
    own = re.sub(PLACE, "", text)
    words = set(re.findall(r"(?<![\w'])[A-Za-z][a-z]{2,}(?![\w(^])", own))
    if len(own.split()) < 3 or len(words) < 2:
        return False
    if own != text and sum(letter.isalpha() for letter in own) < LEAST:
        return False
    if re.search(r"\\[bwWsd.(\[]|\(\?|\)\?|`\?|\.\*|\[\^|</|<\w|=\"|-src|\n {4}|[a-z]\?:", text) or text.startswith(
        "\n"
    ):
        return False
    # "t5-scaled: beside a T5 bias" is the name of a case.
    return not re.fullmatch(
        r"[a-z0-9]+(-[a-z0-9]+)+: .*|[\w./-]+( #\d+)+|(not )?(bold|dim|italic|underline|black)\b.*", text
    )


def _given(tree: ast.AST, *, errors: bool = True) -> Iterator[ast.expr]:
    """The strings that are given to `said`, `Sentence`, `Heading` and errors with values; of `raise`, too, or not."""
    if isinstance(tree, ast.Call) and tree.args:
        first = tree.args[0]
        name = _name(tree.func)
        told = name in GIVEN or (tree.keywords and re.fullmatch(TOLD, name))
        if told or (name == "echo" and isinstance(first, ast.Constant | ast.JoinedStr)):
            yield from _within(first)
    if isinstance(tree, ast.Raise) and not errors:
        return
    for node in ast.iter_child_nodes(tree):
        yield from _given(node, errors=errors)


def _docstrings(tree: ast.AST) -> set[ast.expr]:
    return {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }


def _within(node: ast.AST, skipped: set[ast.expr] = frozenset()) -> Iterator[ast.expr]:  # type: ignore[assignment]
    """The strings in a part of the code, without those of exceptions, assertions and patterns.

    The reason of a NotApplicable is for whoever reads the code.
    """
    if node in skipped or isinstance(node, ast.Assert | ast.Compare):
        return
    if isinstance(node, ast.Call) and re.search(r"(Error|Refused|NotApplicable|^re\.\w+)$", _name(node.func)):
        return
    if isinstance(node, ast.expr) and _shape(node) is not None:
        yield node
        for value in _values(node):
            yield from _within(value, skipped)
        return
    for child in ast.iter_child_nodes(node):
        yield from _within(child, skipped)


def _shape(node: ast.AST) -> str | None:
    """The text of a string, an f-string or a sum of both; None for anything else."""
    pieces = list(_pieces(node))
    if not any(isinstance(piece, str) for piece in pieces):
        return None
    marked = "".join(piece if isinstance(piece, str) else "{value}" for piece in pieces)
    numbers = itertools.count()
    return re.sub(PLACE, lambda _: f"{{{next(numbers)}}}", marked)


def _pieces(node: ast.AST) -> Iterator[str | ast.expr]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
    elif isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
        yield node


def _values(node: ast.AST) -> list[ast.expr]:
    return [] if isinstance(node, ast.Constant) else [each for each in _pieces(node) if isinstance(each, ast.expr)]


def _name(node: ast.expr) -> str:
    return (
        node.id
        if isinstance(node, ast.Name)
        else f"{_name(node.value)}.{node.attr}"
        if isinstance(node, ast.Attribute)
        else ""
    )
