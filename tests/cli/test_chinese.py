"""Whoever reads Chinese reads no English sentence: what the commands print is searched for English words in a row."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from headwise import doctor, language
from headwise.doctor.telling.report import as_text
from headwise.extras import install
from headwise.server.run import _Process
from tests.doctor.laws.specimens import Attention, Causal, Cross, seeded, triangle

from .conftest import Run
from .test_train import TINY

CODE = r"`[^`]*`|'[^'\n]*'|\"[^\"\n]*\"|^  headwise .*$|^ {16}.*$|\w+Error: [^，。；]*|\S*[\d_/\\=.(){}\[\]<>-]\S*"
ROW = re.compile(r"[A-Za-z][a-z]+(?:[ ,;:]+[A-Za-z][a-z]+){2,}")


def english(text: str) -> list[str]:
    """The rows of three or more English words, without code, quotations, errors of torch, paths and identifiers."""
    return ROW.findall(re.sub(CODE, "·", text, flags=re.MULTILINE))


def test_english_is_found_where_it_is() -> None:
    text = "判断：the definition gives it\n`three quoted words`\n  headwise view a text\n词元：my_model.py causal mask"
    assert english(text) == ["the definition gives it"]


@pytest.fixture
def chinese() -> Iterator[None]:
    language.speak("zh")
    yield
    language.speak(None)


MODULES: dict[str, nn.Module] = {
    "healthy": seeded(Attention),
    "causal": seeded(Causal),
    "cross": seeded(Cross),
    "no scale": seeded(Attention, score=lambda q, k: q @ k.mT),
    "sees the future": seeded(Attention, fill=lambda scores, allowed: scores),
    "corner": seeded(Attention, fill=lambda scores, _: scores.masked_fill(~triangle(*scores.shape[2:], 1), -1e9)),
    "no softmax": seeded(Attention, normalise=lambda scores: scores.exp()),
    "heads are scrambled": seeded(Attention, merge=lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
    "no attention": nn.Linear(16, 16),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_report_is_chinese(name: str, chinese: None) -> None:
    report = as_text(doctor.diagnose(MODULES[name]), 1000, notes=True)
    assert english(report) == [], report


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with reviews whose columns and labels are Chinese: 24 rows to learn from, 4 to test on."""
    folder = tmp_path_factory.mktemp("chinese")
    rows = [
        f"第 {i} 部电影很{word}，{word}极了,{label}"
        for i in range(14)
        for word, label in (("好", "好评"), ("差", "差评"))
    ]
    for name, some in {"train.csv": rows[:24], "test.csv": [*rows[24:], "没有标签,", "普通,中评"]}.items():
        (folder / name).write_text("\n".join(["评论,情感", *some]) + "\n", encoding="utf-8")
    return folder


def test_training_scoring_predicting_and_serving_are_chinese(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training; then everything that one does with its folder, mistakes too."""
    columns = ("--text", "评论", "--label", "情感")
    trained = run(
        "train", "classify", data / "train.csv", *columns, "--out", "run", "--epochs", "1", *TINY, "--lang=zh"
    )
    assert trained.code == 0, trained.err
    for words in (
        "24 行",
        "epoch 1/1：损失",
        "最好的权重来自第 1 个 epoch",
        "只有 2 行",
        "模型没有胜过最简单的做法（总是 ",
    ):
        assert words in trained.err
    assert "accuracy 准确率" in trained.out
    scored = run("evaluate", "run", data / "test.csv", "--lang", "zh")
    assert "注意：1 行被略去：没有 label（第 6 行）" in scored.out
    assert "注意：有 1 行的标签是训练数据里没有的，按预测错误计算：'中评' (1)" in scored.out
    predicted = run("predict", "run", "好电影", "--lang", "zh")
    assert "好评 的概率" in predicted.out
    told = [trained, scored, predicted]
    told.append(run("predict", "run", "--file", data / "test.csv", "--out", "out.csv", "--lang", "zh"))
    for mistake in (
        ("evaluate", "run", "none.csv"),
        ("evaluate", "none", "none.csv"),
        ("train", "classify", data / "none.csv"),
        ("train", "classify", data / "test.csv"),
        ("train", "classify", data / "test.csv", "--lr", "-1"),
        ("train", "classify", data / "train.csv", *columns, "--out", "run"),
        ("predict", "run"),
        ("predict", "run", "--file", "none.csv"),
        ("doctor", "none.py:Attention"),
        ("doctor", "torch.nn:None"),
    ):
        told.append(run(*mistake, "--lang", "zh"))
        assert told[-1].code == 2, told[-1]
    monkeypatch.setattr(_Process, "_until_told", _say_where)
    told.append(run("serve", "run", "--port", "0", "--grpc-port", "0", "--tensorflow-port", "0", "--lang", "zh"))
    assert "已就绪。" in told[-1].out
    for mistake, words in {
        ("predict", "好电影", "run"): "run 是运行文件夹，应写在前面",
        ("view", "好电影", "run"): "run 是运行文件夹，应写在前面",
        ("predict", "--files"): "是不是 '--file'？",
        ("veiw",): "没有子命令 'veiw'。是不是 'view'？",
        ("doctor", "torch.nn:Linear", "--set", "heads", "8"): "--set 要写成 名字=值",
        ("doctor",): "请指定要检查的类",
    }.items():
        told.append(run(*mistake, "--lang", "zh"))
        assert words in told[-1].err
    assert "是不是 'classify'？可以是：" in run("train", "clasify", "--lang", "zh").err  # then a list of names
    told.append(run("view", "run", "好电影", "--lang", "zh"))
    assert re.search("^好电影：预测为 [好差]评，概率 0", told[-1].out)
    told.append(run("--help", "--lang", "zh"))
    assert "试一试：headwise view" in told[-1].out
    assert [row for each in told for row in english(each.out + each.err)] == []


async def _say_where(process: Any, engine: Any, listener: socket.socket, servers: dict[str, Any]) -> None:
    """In place of the server's work: what it says when it is ready."""
    process._say_where(engine, listener, servers)


def test_an_export_and_its_card_are_chinese(run: Run, reviews_run: Path) -> None:
    pytest.importorskip("onnxruntime")
    told = run("export", reviews_run, "--to", "onnx", "--out", "out", "--no-speed", "--lang", "zh")
    assert "注意：没有运行 TensorRT" in told.out
    card = Path("out/card.md").read_text(encoding="utf-8")
    assert "## 怎样调用" in card
    assert "训练数据里最多的标签" in card
    prose = re.sub("```.*?```", "", card, flags=re.DOTALL)
    assert english(told.out + told.err + prose) == []


def test_a_text_that_the_model_cannot_read_is_told_of_with_a_model_that_can(run: Run) -> None:
    told = run("watch", "这只动物没有过马路", "--layers", "0", "--lang", "zh").err.splitlines()
    assert told[0] == "headwise: 文本：11 个词元中有 8 个模型不认识，读成 [UNK]"
    assert told[1].startswith("headwise: 这个模型读不懂这样的文本。能读中文的模型：")
    assert "multilingual-e5-small" in told[1]
    assert "UNK" not in run("watch", "the cat", "--layers", "0").err


def test_an_error_for_a_missing_package_says_how_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    told = run("worksheet", "--kind", "multi-head", "--out", "sheet.xlsx", "--lang", "zh")
    assert told.code == 2
    assert install("worksheet") in told.err
    assert english(told.err) == []
