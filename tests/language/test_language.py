"""The language that headwise speaks: how it is chosen, and how a sentence is found in the catalogue."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwise import language
from headwise.cli import main
from headwise.language import Sentence, counted, join, packed, said, unpacked


@pytest.fixture
def chinese() -> Iterator[None]:
    language.speak("zh")
    yield
    language.speak(None)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),  # LC_ALL comes first
        ({"LC_MESSAGES": "zh", "LANG": "en_US"}, "zh"),
        ({"HEADWISE_LANG": "en", "LC_ALL": "zh_CN"}, "en"),
    ],
)
def test_the_system_says_which_language_its_reader_has(environment: dict[str, str], expected: str) -> None:
    assert language.of_the_system(environment) == expected


def test_a_script_speaks_english_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWISE_LANG", raising=False)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert said("Show the version and exit.") == "Show the version and exit."
    monkeypatch.setenv("HEADWISE_LANG", "zh")
    assert said("Show the version and exit.") == "显示版本并退出。"


def test_values_stand_where_the_translation_has_them(chinese: None) -> None:
    assert said("Wrote {out} ({rows:,} row{s}).", out="out.csv", rows=1200, s="s") == "已写入 out.csv（1,200 行）。"
    # A value that is itself a sentence is translated.
    factor = join([Sentence("divided by {divisor:.3f}").format(divisor=8), "which is not a power of any width here"])
    told = Sentence("scores are {did}; the head width is {head_width}, expected a division by {expected:.3f}").format(
        did=factor, head_width=8, expected=8**0.5
    )
    assert told.startswith("scores are divided by 8.000, which is not a power of any width here; the head width is 8")
    assert said(told) == "分数除以了 8.000，它不是这里任何宽度的幂；头的宽度是 8，应当除以 2.828"


def test_words_of_somebodys_code_stay(chinese: None) -> None:
    template = "{path} acts on the {these}, and the {those} do not depend on it"
    told = Sentence(template).format(path="keys", these=Sentence("queries"), those=Sentence("keys"))
    assert said(told).startswith("keys ")
    assert "查询" in said(told)


def test_a_sentence_is_english_for_programs_and_outlives_a_copy(chinese: None) -> None:
    told = join([counted(2, "bug"), counted(1, "risk")])
    assert json.dumps(told) == '"2 bugs, 1 risk"'
    for again in (
        copy.deepcopy(told),
        pickle.loads(pickle.dumps(told)),
        unpacked(json.loads(json.dumps(packed(told)))),
    ):
        assert (again, said(again)) == ("2 bugs, 1 risk", "2 个错误，1 个风险")
    assert unpacked(json.loads(json.dumps(packed({"a": [1, {"b": told}]})))) == {"a": [1, {"b": told}]}


def test_values_are_kept_as_they_were_when_the_sentence_was_made() -> None:
    shape = [2, 3]
    told = Sentence("its output is {shape}, {shape[0]} and {x!r}").format(shape=shape, x="a")
    shape[0] = 7
    assert told == "its output is [2, 3], 2 and 'a'"
    assert told.values == {"shape": "[2, 3]", "shape[0]": 2, "x": "'a'"}


def test_the_numbers_of_a_sentence_are_those_of_its_places() -> None:
    inner = Sentence("{x} of {of}, {share:.1%}").format(x=1, of=2, share=0.5)
    told = join([Sentence("{x} {flag} {name}: {inner}").format(x=7.0, flag=True, name="a", inner=inner), inner])
    assert told.numbers == {"x": 7.0, "of": 2, "share": 0.5}
    assert Sentence("{inner}, {x}").format(inner=inner, x=7).numbers["x"] == 7
    assert join([inner, Sentence("{x}").format(x=3)]).numbers["x"] == 1
    assert counted(2, "bug").numbers == {"n": 2}


def test_what_the_catalogue_lacks_stays_english(chinese: None) -> None:
    for text in ("", " ", "mat1 and mat2 must have the same dtype", Sentence("no such {what}").format(what="sentence")):
        assert said(text) == text


@pytest.mark.parametrize("arguments", [["--lang", "zh", "stats", "--help"], ["stats", "--help", "--lang=zh"]])
def test_the_command_speaks_the_language_it_is_asked_for(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert told.startswith("用法：headwise stats")
    assert "选项：" in told
    assert "Options" not in told
    assert language.language() == "en"  # afterwards
    assert main(["stats", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: headwise stats")


def test_help_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", "60")
    assert main(["doctor", "--help", "--lang", "zh"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 60
    assert not [line for line in lines if line.strip()[:1] in tuple("，。；：、）”")]


def test_an_error_of_the_command_is_said_and_one_of_the_library_has_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.hw").write_bytes(b"no records")
    assert main(["stats", str(tmp_path / "broken.hw"), "--lang", "zh"]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert message.startswith("headwise: ")
    assert message.isascii()
    assert hint == "  文件无法读取或写入：请检查路径和权限。"
    assert main(["view", "a text", "--port", "8000", "--lang", "zh"]) == 2
    assert capsys.readouterr().err == "headwise: --port 8000：只有 --serve 监听端口。请加上 --serve，或去掉 --port\n"
    assert main(["stats", "--no-such-option", "--lang", "zh"]) == 2  # a sentence of click
    assert capsys.readouterr().err == "headwise: 没有选项 '--no-such-option'。参见 'headwise stats --help'。\n"


def test_a_language_without_a_catalogue_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lang", "tlh", "stats", "no.hw"]) == 2
    assert capsys.readouterr().err == "headwise: --lang: expected en or zh. Received: 'tlh'.\n"


def test_a_text_after_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--layers", "x", "--", "--lang", "zh"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1  # no hint: English


def test_the_locale_chooses_the_language_of_the_command() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("HEADWISE_LANG", "LC_ALL")}
    command = [sys.executable, "-m", "headwise", "stats", "--help"]
    told = subprocess.run(command, env={**environment, "LC_ALL": "zh_CN.UTF-8", "PYTHONUTF8": "1"}, capture_output=True)
    assert told.stdout.decode().startswith("用法：")


def test_one_space_stands_between_chinese_and_latin_at_the_edge_of_a_value(chinese: None) -> None:
    assert said(join(["d_model", "n_heads"], " and ")) == "d_model 和 n_heads"
    empty = "{name} is empty: expected at least one word. Received: {text!r}"
    assert said(empty, name="standard input", text="").startswith("标准输入是空的")
    assert said(empty, name="a.csv", text="").startswith("a.csv 是空的")
    assert said(empty, name="评论", text="").startswith("评论 是空的")  # a name of the user's
    assert said("headwise: wrote {path}", path="图`1`") == "headwise: 已写入 图`1`"
