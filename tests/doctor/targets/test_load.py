"""From what is typed to a module, and a sentence for everything that can go wrong on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.doctor import diagnose
from headwise.doctor.calling.copying import copied
from headwise.doctor.lines import definition
from headwise.doctor.targets.arguments import parse_setting
from headwise.doctor.targets.load import parse
from headwise.doctor.targets.size import TooLarge
from headwise.errors import DoctorError

MODELS = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Config:
    n_embd: int = 32
    bias: bool = True

class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads, dropout=0.1):
        super().__init__()
        assert embed_size % heads == 0
        self.proj = nn.Linear(embed_size, embed_size)
        self.dropout = dropout

    class Inner(nn.Linear):
        pass

class Loose(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Linear(config.width, config.width, bias=config.bias)
        self.config, self.more = config, getattr(config, "more", 7)

class Strict(nn.Module):
    def __init__(self, config: Config, *, scale: float = 1.0, **rest):
        super().__init__()
        self.config, self.scale, self.rest = config, scale, rest

class Fitting(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

class Dies(nn.Module):
    def __init__(self):
        raise SystemExit(3)

class Plain: pass

def make(width=8):
    return nn.Linear(width, width)

def text():
    return "no module"

def many():
    return nn.ModuleList(nn.Linear(1000, 1000, bias=False) for _ in range(10))

ready = make(4)
@dataclass
class Sizes:
    n_embd: int
    max_len: int

def needy(config: Sizes):
    return nn.Linear(config.n_embd, config.max_len)

def lacking():
    raise ModuleNotFoundError("install what I need")
"""


SPEECH = """
from torch import nn
class Speech(nn.Module):  # two convolutions leave 4 of 20 numbers, in 2 channels
    def __init__(self, input_dim, dim):
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(1, 2, (1, 3), (1, 2)), nn.ReLU(), nn.Conv2d(2, 2, (1, 3), (1, 2)))
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
    def forward(self, x):
        x = self.before(x[:, None]).transpose(1, 2).flatten(2)
        return self.attention(x, x, x)[0]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refusal(target: str, *settings: str) -> str:
    with pytest.raises(DoctorError) as caught:
        parse(target, settings).build()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_class_with_its_arguments() -> None:
    target = parse("models.py:SelfAttention", ["embed_size=64", "heads=8", "dropout=0.5"])
    first, second = target.build(), target.build(embed_size=32)
    assert type(first).__name__ == "SelfAttention"
    assert (first.proj.in_features, first.dropout, second.proj.in_features) == (64, 0.5, 32)
    assert type(first) is type(second)  # the file is run once
    assert definition(target.find()).code == "class SelfAttention(nn.Module):"
    assert parse("models.py:SelfAttention(64, heads=8)", ["dropout=0"]).build().dropout == 0


def test_the_arguments_are_sizes_to_try_although_the_module_keeps_none(folder: Path) -> None:
    (folder / "speech.py").write_text(SPEECH, encoding="utf-8")
    diagnosis = diagnose(parse("speech.py:Speech", ["input_dim=20", "dim=8"]).build())
    assert not diagnosis.not_examined
    assert "width 20" in str(diagnosis)


def test_a_function_a_module_a_class_in_a_class_and_one_of_a_package() -> None:
    assert parse("models.py:make", ["width=16"]).build().in_features == 16
    assert parse("models.py:ready").build().in_features == 4
    assert isinstance(parse("models.py:SelfAttention.Inner(2, 3)").build(), nn.Linear)
    assert isinstance(parse("torch.nn:MultiheadAttention(8, 2)").build(), nn.MultiheadAttention)


def test_a_config_of_attributes() -> None:
    module = copied(parse("models.py:Loose", ["config.width=64", "config.bias=false"]).build())
    assert (module.proj.bias, module.more, module.config.width) == (None, 7, 64)


def test_a_config_of_the_annotated_class() -> None:
    module = parse("models.py:Strict", ["config.n_embd=64", "scale=2", "extra=1"]).build()
    assert (module.config.n_embd, module.config.bias) == (64, True)
    assert (module.scale, module.rest) == (2, {"extra": 1})
    assert parse("models.py:Strict").build().config.n_embd == 32  # each field has a default


def test_a_config_of_the_one_dataclass_that_has_what_is_read() -> None:
    assert parse("models.py:Fitting").build().proj.in_features == 32
    assert parse("models.py:Fitting", ["config.n_embd=8"]).build().proj.bias is not None


def test_a_value_is_a_literal_or_else_a_string() -> None:
    values = {
        "1e-5": 1e-5,
        "(1, 2)": (1, 2),
        "'x=y'": "x=y",
        "x=y": "x=y",
        "false": False,
        "None": None,
        "torch.float16": torch.float16,
        "torch.nothing": "torch.nothing",
        "__import__('os')": "__import__('os')",
        "": "",
    }
    assert {text: parse_setting(f"a={text}") for text in values} == {text: ("a", x) for text, x in values.items()}
    for text in ("a", "1a=2", "config.=1"):
        with pytest.raises(DoctorError, match="expected name=value, as in --set d_model=64"):
            parse_setting(text)


def test_a_module_too_large_is_refused_before_it_is_filled() -> None:
    with pytest.raises(TooLarge, match=r"make is too large .* takes at least .* GB .* expected at most 2.0 GB"):
        parse("models.py:make", ["width=100000"]).build()
    with pytest.raises(TooLarge, match=r"at least 40 MB .*: a tensor \[1000, 1000\]\); expected at most 38 MB"):
        parse("models.py:many").build(largest=38e6)  # its parameters are counted together


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nowhere.py:A", "no such file: nowhere.py"),
        ("model.py:A", "no such file: model.py; did you mean models.py?"),
        ("missing/a.py:A", "there is no folder missing"),
        ("models.py", "which class of models.py? Write models.py:SelfAttention (it has: SelfAttention, Config,"),
        ("models", "expected my_model.py:MyAttention or package.module:MyAttention. Received: 'models'"),
        ("./models:Loose", "./models is neither a Python file nor a module. Did you mean models.py:Loose?"),
        ("models.py:A(print(1))", "expected the name of a class after the colon"),
        ("nopackage.thing:A", "importing nopackage.thing needs the module nopackage, which cannot be found"),
        ("models.py:Selfattention", "has no such class. Received: Selfattention. Did you mean SelfAttention?"),
        ("models.py:Zzz", "Received: Zzz. Its classes: SelfAttention, Loose, Strict, Fitting, Dies"),
        ("models.py:Plain", "Received: a class that derives from object"),
        ("models.py:text", "Received: it returned a str"),
        ("models.py:ready a=1", "models.py:ready is already a module, not a class"),
        (
            "models.py:SelfAttention",
            "SelfAttention(embed_size, heads, dropout=0.1) needs embed_size and heads: for example "
            "--set embed_size=64 --set heads=4",
        ),
        ("models.py:SelfAttention head=8", "has no such argument. Received: 'head'. Did you mean heads?"),
        ("models.py:SelfAttention(1,2,3,4)", "cannot be called with 1, 2, 3, 4: too many positional"),
        ("models.py:SelfAttention(64,8) embed_size=3", "multiple values for argument 'embed_size'"),
        ("models.py:Loose config=1 config.a=2", "'config' is passed both as a whole and in parts (config.a)"),
        ("models.py:Loose", "Loose(config) needs config: for example --set config.width=64"),
        ("models.py:Strict config.n_emb=64", "Config (of config) has no such argument. Received: 'n_emb'. Did you"),
        ("models.py:Loose config.width=64", "config has no bias: add --set config.bias=VALUE"),
        ("models.py:needy config.n_embd=64", "--set config.max_len=128"),
        ("models.py:lacking", "raised ModuleNotFoundError: install what I need"),
        (
            "models.py:SelfAttention embed_size=64 heads=7",
            "raised AssertionError (models.py:14: `assert embed_size % heads == 0`)",
        ),
        ("models.py:Dies", "Dies() raised SystemExit: 3 (models.py:39: `raise SystemExit(3)`)"),
    ],
)
def test_every_bad_input_has_its_sentence(typed: str, said: str) -> None:
    assert said in refusal(*typed.split())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import nothere\n",
            "importing bad.py needs the module nothere, which cannot be found (bad.py:1: `import nothere`)",
        ),
        ("def f(:\n", "bad.py, line 1: invalid syntax"),
        ("\nraise ValueError('first\\nsecond')\n", "importing bad.py raised ValueError: first (bad.py:2: `raise Val"),
        (
            "raise ValueError('\\x1b[2Jgone')\n",
            "importing bad.py raised ValueError: \\u001b[2Jgone (bad.py:1",
        ),
    ],
)
def test_a_file_that_cannot_be_imported(code: str, said: str, folder: Path) -> None:
    (folder / "bad.py").write_text(code, encoding="utf-8")
    assert said in refusal("bad.py:A")


def test_imports_are_looked_for_where_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tree.leaf` from the working directory, although the folder tree has a file tree.py; a neighbour in a package;
    and relatively.
    """
    monkeypatch.chdir(folder)
    for name, code in {
        "pack/__init__.py": "",
        "pack/sizes.py": "width = 4",
        "pack/inner/__init__.py": "",
        "pack/inner/mine.py": "from torch import nn\nfrom ..sizes import width\ndef make(): return nn.Linear(width, 1)",
        "tree/tree.py": "raise RuntimeError",
        "tree/leaf.py": "width = 5",
        "tree/mine.py": "from torch import nn\nfrom tree.leaf import width\ndef make(): return nn.Linear(width, 1)",
        "bush/__init__.py": "",
        "bush/twig.py": "width = 6",
        "bush/mine.py": "from torch import nn\nfrom twig import width\ndef make(): return nn.Linear(width, 1)",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code, encoding="utf-8")
    for place, width in {"pack/inner": 4, "tree": 5, "bush": 6}.items():
        assert parse(f"{place}/mine.py:make").build().in_features == width


def test_a_script_does_not_read_the_doctors_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["headwise", "doctor", "--unknown"])
    (folder / "script.py").write_text(
        "import argparse\nfrom torch import nn\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, default=9)\n"
        "arguments = parser.parse_args()\ndef make(): return nn.Linear(arguments.width, 1)\n",
        encoding="utf-8",
    )
    assert parse("script.py:make").build().in_features == 9
    assert sys.argv == ["headwise", "doctor", "--unknown"]
