"""The language that headwise speaks: how it is chosen, and how a sentence is found in the catalogue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headwise import language
from headwise.cli import main
from headwise.language import said


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
    assert said("Wrote out.csv (12 rows).") == "已写入 out.csv（12 行）。"
    # A value that is itself a sentence is translated.
    assert said("Read 3 texts, 1,024 tokens.") == "已读取 3 段文本，共 1,024 个词元。"
    factor, width = "divided by 8.000, which is sqrt(64), the model width", "the head width is 8"
    told = said(f"scores are {factor}; {width}, expected a division by 2.828")
    assert told == "分数除以了 8.000，即 sqrt(64)，模型宽度的平方根；头的宽度是 8，应当除以 2.828"


def test_names_of_somebodys_code_stay(chinese: None) -> None:
    told = said("forward(query, mask, keys): one input, [batch, length, width]")
    assert told == "forward(query, mask, keys)：一个输入，[批次, 长度, 宽度]"
    assert said("mask: mask [B, 1, Q, K], True = may attend") == "掩码：mask [B, 1, Q, K]，True = 可以看"


def test_what_the_catalogue_lacks_stays_english(chinese: None) -> None:
    for text in ("", " ", "mat1 and mat2 must have the same dtype", "no such sentence, and 5 of them", "5 of them"):
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


def test_an_error_stays_english_with_a_hint_below(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "no.hw", "--lang", "zh"]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert message.startswith("headwise: ")
    assert message.isascii()
    assert hint == "  文件无法读取或写入：请检查路径和权限。"


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
