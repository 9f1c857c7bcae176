"""What every test shares: seeds, few and repeatable hypothesis examples, a browser, and what to do without a GPU."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest
import torch
from filelock import FileLock

# Before anything imports keras. On torch its layers are torch modules; scripts/test runs tests/keras on each backend.
os.environ["KERAS_BACKEND"] = os.environ.get("HEADWISE_KERAS_BACKEND", "torch")
os.environ["HEADWISE_LANG"] = "en"  # whatever the locale
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

hypothesis.settings.register_profile("headwise", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("headwise")


# Each collection of garbage looks at every object that is not frozen. All tests and the packages that they import are
# millions of objects, and most live to the end.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" not in config.option.markexpr:
        quick, slow = [], []
        for item in items:
            (slow if item.get_closest_marker("slow") else quick).append(item)
        config.hook.pytest_deselected(items=slow)
        items[:] = quick
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests recorded as a table is shown, whichever worker ran them."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "table" and getattr(report, "when", "") == "call":
                    terminalreporter.write_sep("=", report.nodeid)
                    terminalreporter.write_line(str(text))


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Without a GPU torch.manual_seed notes a traceback for each kind of device it might meet: 2 ms in each test.
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(0)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """A headless Chromium, playwright's `Browser`. Where there is none the test is skipped, or fails in CI."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch_chromium(playwright)
        yield browser
        browser.close()


def launch_chromium(playwright: Any) -> Any:
    """That of playwright or of the system. Where there is none the test is skipped, or fails in CI."""
    bundled = playwright.chromium.executable_path
    # The shell has no window to draw, which makes opening a page a third quicker.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), bundled if Path(bundled).exists() else None)
    if path is None:
        missing("no Chromium here: scripts/install says how to get one")
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


def missing(what: str) -> NoReturn:
    """Skip a test that needs what is not here; in CI it fails."""
    raise (pytest.fail if os.environ.get("CI") else pytest.skip).Exception(what)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small matrices are quickest so, and the numbers the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ANIMALS = (
    *("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay", "koala", "lynx", "mole", "newt", "owl"),
    "pig",
)


def make_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this run of pytest that `make` fills: the first worker that asks does it, the others wait for it."""
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = folder / "done"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def copying_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama of two layers with two heads, and its tokenizer of 16 animals.

    It learned, in three seconds, to go on with lists of different animals that begin again: "cat owl pig cat owl" ->
    "pig". That takes two heads: one that looks at the token before, and one that looks at what followed (induction).
    One worker trains it for all.
    """
    return make_once(tmp_path_factory, "copying", train_copying_model)


def train_copying_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    size = {"vocab_size": len(ANIMALS) + 2, "hidden_size": 48, "intermediate_size": 48, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**size, **heads, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=400, pct_start=0.1)
    for _ in range(400):
        count = int(torch.randint(3, 9, ()))
        lists = torch.rand(64, len(ANIMALS)).argsort(-1)[:, :count] + 2
        ids = lists.repeat(1, 6)[:, :18]
        logits = model(ids, use_cache=False).logits[:, count - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, count:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate(["<end>", "<unknown>", *ANIMALS])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unknown>", eos_token="<end>")
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a BERT with random weights: 3 layers, 2 heads, 32 positions, and a vocabulary of a few words."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-bert"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "run", "##ning", "."]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return folder
