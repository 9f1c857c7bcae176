"""Text of others (names of layers, labels, files) is printed as it is, but never as a command to the terminal."""

from __future__ import annotations

import ast
import io
import json
import sys
import warnings
from pathlib import Path

import pytest
from rich.text import Text

from headwise.language import printable
from headwise.records import CallSite, Coverage, Seen
from headwise.tables import Heading, Table, make_console, width, wrap
from headwise.tasks import Classify
from tests.viewer.conftest import placed, record

from .conftest import Run

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x7fend"
SHOWN = "\\u001b]0;title\\u0007\\u001b[2J\\u009b31m\\u000d\\u007fend"
ROOT = Path(__file__).parents[2] / "headwise"


def controls(text: str) -> list[str]:
    return [letter for letter in text if letter != "\n" and (letter < " " or "\x7f" <= letter <= "\x9f")]


def test_what_controls_a_terminal_is_written_out() -> None:
    assert printable(HOSTILE) == SHOWN
    assert json.loads(f'"{SHOWN}"') == HOSTILE
    assert printable("file\u202egpj.exe\u2066\u2028") == "file\\u202egpj.exe\\u2066\\u2028"
    assert printable("one\ttwo\n猫 שלום 👩‍💻") == "one\ttwo\n猫 שלום 👩‍💻"


def test_tables_are_as_wide_as_what_they_show() -> None:
    table = Table([Heading("name", "left")], [[[HOSTILE]], [[[(HOSTILE, "bold")]]]], HOSTILE, HOSTILE, [HOSTILE])
    assert str(table).count(SHOWN) == 5
    out = io.StringIO()
    make_console(file=out, width=100).print(table)
    assert out.getvalue().count(SHOWN) == 5
    assert not controls(str(table) + out.getvalue())


def test_chinese_is_wrapped_between_its_letters() -> None:
    text = "softmax 取在分数 [3, 8, 5, 5] 的轴 2 上，那是“查询”；键在另一个轴上（café），"
    text += "所以权重之和不是 1…… 见 a/long/path/of/a_file.py"
    out = io.StringIO()
    make_console(file=out, width=24, highlight=False).print(Text(text))
    for lines in (wrap(text, 24), out.getvalue().splitlines()):
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")  # nothing is lost
        assert all(width(line) <= 24 for line in lines[:-1])
        assert all(width(line) >= 12 for line in lines[:-2])  # no line ends long before it is full
        assert not any(line[0] in "，；）”…" for line in lines)


def test_a_console_prints_no_text_as_a_command() -> None:
    out = io.StringIO()
    make_console(file=out, width=100, force_terminal=True, highlight=False, color_system="standard").print(
        f"[red]{HOSTILE}"
    )
    assert out.getvalue().startswith("\x1b[31m")  # its own colour
    assert out.getvalue().count("\x1b") == 2


def test_names_of_layers(run: Run, tmp_path: Path) -> None:
    seen = Seen(
        [placed(record(length=6), f"a{HOSTILE}", 0)],
        Coverage((CallSite(f"b{HOSTILE}", "refused", 2, f"c{HOSTILE}"),), (f"d{HOSTILE}",)),
    )
    seen.tokens = [HOSTILE, *"bcdef"]
    seen.save(tmp_path / "run.hw")
    printed = run("stats", "run.hw")
    assert not controls(printed.out + printed.err)
    for letter in "abcd":
        assert f"{letter}\\u001b]0;title" in printed.out
    assert not controls(str(seen.summary()) + str(seen.coverage()))


def test_labels_columns_and_files(run: Run, tmp_path: Path) -> None:
    labels = [f"{word}{HOSTILE}" for word in ("good", "bad")]
    rows = {"text": [f"a film {row}" for row in range(12)], "label": labels * 6, "more\x1b[2J": ["\x1b[2J"] * 12}
    small = {"model": "scratch", "dim": 16, "heads": 2, "vocab_size": 100, "epochs": 1, "monitor_every": 0}
    Classify.fit(rows, out=tmp_path / "run\x1b[2J", **small)
    lines = [json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in zip(*rows.values(), strict=True)]
    (tmp_path / "in\x1b[2J.jsonl").write_text("".join(lines), encoding="utf-8")
    for arguments in (
        ("predict", "run\x1b[2J", "a film"),
        ("predict", "run\x1b[2J", "--file", "in\x1b[2J.jsonl"),
        ("predict", "run\x1b[2J", "--file", "in\x1b[2J.jsonl", "--out", "out\x1b[2J.csv"),
        ("evaluate", "run\x1b[2J", "in\x1b[2J.jsonl"),
        (
            "train",
            "classify",
            "in\x1b[2J.jsonl",
            "--out",
            "new\x1b[2J",
            "--model",
            "scratch",
            "--dim",
            "8",
            "--heads",
            "2",
            "--epochs",
            "1",
        ),
    ):
        printed = run(*arguments)
        assert printed.code == 0, printed.err
        assert not controls(printed.out + printed.err)
        assert "\\u001b" in printed.out
    for arguments in (
        ("predict", "none\x1b[2J", "a film"),
        ("stats", "none\x1b[2J"),
        ("none\x1b[2J",),
        ("--debug", "stats", "none\x1b[2J"),
    ):
        printed = run(*arguments)
        assert printed.code == 2
        assert not controls(printed.out + printed.err)
        assert "none\\u001b[2J" in printed.err or "none\\x1b[2J" in printed.err


def test_there_is_one_printer() -> None:
    """`echo` and `make_console`. Programs that run alone may print too, and a line of progress may erase itself."""
    alone = {"native/build.py", "export/onnx/run_tensorrt.py"}
    may = {"language.py", "tables.py", "cli/profile.py", *alone}
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).as_posix() not in may:
            calls = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
            for call in map(ast.unparse, calls):
                assert call not in {"print", "click.echo", "click.secho", "Console", "traceback.print_exc"}, path


def test_warnings_and_tracebacks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        print(warnings.formatwarning(HOSTILE, UserWarning, HOSTILE, 1, HOSTILE), file=sys.stderr)
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("headwise.cli.stats.parse_layers", fail)
    printed = run("stats", "run.hw")
    assert printed.code == 1
    assert not controls(printed.out + printed.err)
    assert printed.err.count(SHOWN) >= 3
    assert f"RuntimeError: {SHOWN}" in printed.err
