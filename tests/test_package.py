"""What the package promises to those who install it: its names, its version, its files, and a quick import."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import headwise
from headwise import errors
from headwise.native.library import instruction_set

ROOT = Path(__file__).parents[1]


# The public names of each package.
PINNED = {
    "headwise": (
        "AttentionRecord Bert Int8 Seen __version__ analyses attention capture context_parallel diagnose doctor edit "
        "edits errors experiments gather keras language load masks models nn parallel plan plot shard show tasks "
        "testing view watch worksheet"
    ),
    "headwise.capture": "Watch monitor watch",
    "headwise.masks": (
        "Extent Mask big_bird bits block_sparse causal dilated documents from_predicate from_tensor global_tokens "
        "knockout lengths padding picked prefix recognise recognise_additive runs strided window"
    ),
    "headwise.nn": (
        "Cache Decoder DecoderLayer DropPath Encoder EncoderLayer FeedForward LatentAttention MultiHeadAttention "
        "MultiHeadLatentAttention positions"
    ),
    "headwise.nn.positions": (
        "Alibi DynamicNTK Learned Linear Llama3 LongRope MRope Positions Proportional Rope Rope2D RopeScaling "
        "ShawRelative Sinusoidal T5Buckets Yarn"
    ),
    "headwise.models": (
        "Bert BertConfig CausalConfig CausalLanguageModel CausalPatchForecaster EncoderDecoder EncoderDecoderConfig "
        "ImageText ImageTextConfig LatentEncoder LatentEncoderConfig MaskedLanguageModel PatchForecaster "
        "PatchForecasterConfig SmallEncoder SmallEncoderConfig SpanReader TextClassifier"
    ),
    "headwise.experiments": (
        "Ablation Circuits Composition HeadScores Knockout LogitAttribution Massive Patching Projections Retrieval "
        "ablation circuits composition direct_logit_attribution head_scores knockout massive_activations patching "
        "projections retrieval_scores"
    ),
    "headwise.doctor": ("Comparison Diagnosis Finding Gradients Spec Where compare diagnose diagnose_model gradcheck"),
    "headwise.profiles": "CLASSES KINDS MEASURES Corpus Example Head Pair Profile load profile",
    "headwise.parallel": (
        "Layout ParallelPlan SharedSeen chunks context_parallel deal gather joined on_paper positions_here "
        "reading_memory shard"
    ),
    "headwise.worksheet": ("Axis Matrix Step Worksheet make of_weight write"),
    "headwise.testing": ("assert_healthy"),
}


@pytest.mark.parametrize("package", PINNED)
def test_public_names_are_pinned(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == PINNED[package].split()
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert package != "headwise" or dir(module) == module.__all__


# The packages of which the reference shows all names.
GROUPS = runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))["GROUPS"]
DOCUMENTED = ["headwise", *(module for group in GROUPS for module in group.modules)]


def leaked(package: str) -> list[str]:
    """What dir() shows of a package beside the names of its `__all__` and the modules in it."""
    module = importlib.import_module(package)
    shown = {name for name in dir(module) if name[0].isalpha()} - set(module.__all__)  # (pytest adds "@py_builtins")
    return sorted(name for name in shown if f"{package}.{name}" not in sys.modules)


@pytest.mark.parametrize("package", [name for name in DOCUMENTED if not name.startswith("headwise.keras")])
def test_a_documented_package_shows_its_public_names_alone(package: str) -> None:
    assert leaked(package) == []


def test_every_error_is_also_the_built_in_that_a_caller_expects() -> None:
    expected = {
        errors.ArgumentError: ValueError,
        errors.ShapeError: ValueError,
        errors.MaskError: ValueError,
        errors.DtypeError: TypeError,
        errors.KernelRefused: RuntimeError,
        errors.CacheError: ValueError,
        errors.TrainingError: RuntimeError,
        errors.TrainingInterrupted: RuntimeError,
        errors.DoctorError: RuntimeError,
        errors.ProjectionError: RuntimeError,
        errors.WorksheetError: ValueError,
        errors.RecordError: ValueError,
        errors.CheckpointError: ValueError,
        errors.FileError: OSError,
    }
    for error, built_in in expected.items():
        assert issubclass(error, errors.HeadwiseError)
        assert issubclass(error, built_in)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="atention"):
        headwise.atention  # noqa: B018


def test_the_version_is_the_installed_one() -> None:
    assert headwise.__version__ == importlib.metadata.version("headwise")


def test_the_changelog_speaks_of_this_version() -> None:
    assert f"## [{headwise.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def imported_by(program: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `program`."""
    program += "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_headwise_does_not_wait_for_torch() -> None:
    assert {"torch", "numpy"}.isdisjoint(imported_by("import headwise"))


def test_attention_does_not_import_the_compiler() -> None:
    """Which takes seconds."""
    program = "import headwise, sys; headwise.attention; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_public_names_import_torch_and_nothing_else_that_is_heavy() -> None:
    """One after the other in one process: the first that imports something heavy is named."""
    heavy = {"transformers", "tokenizers", "huggingface_hub", "rich", "click", "typer", "hypothesis", "pandas", "scipy"}
    heavy |= {"matplotlib", "onnx", "onnxruntime", "keras", "tensorflow", "kserve", "fastapi", "grpc", "ray"}
    program = """
import sys
import torch
import headwise
before, heavy = set(sys.modules), set(sys.argv[1].split())
for name in sys.argv[2:]:
    getattr(headwise, name)
    print(name, *sorted({each.partition(".")[0] for each in set(sys.modules) - before} & heavy))
"""
    arguments = [sys.executable, "-c", program, " ".join(heavy), *LIGHT]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [*LIGHT, ""]


LIGHT = (
    *("attention", "masks", "plan", "Bert", "AttentionRecord", "load", "Seen", "watch", "view", "plot", "diagnose"),
    *("doctor", "show", "tasks", "testing", "worksheet"),
)


def built(target: str, folder: Path, root: Path = ROOT, **environment: str) -> tuple[Path, str]:
    """A wheel or sdist, built here and now, without a network; and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    (path,) = folder.glob("headwise-*")
    return path, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("dist"))[0]


def test_the_tag_of_the_wheel_is_the_glibc_that_the_native_kernels_need(wheel: Path) -> None:
    if instruction_set() is None or sys.platform != "linux":
        pytest.skip("no native kernels here, or a system without glibc")
    found = re.fullmatch(r"headwise-.*-py3-none-manylinux_2_(\d+)_\w+\.whl", wheel.name)
    assert found is not None, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (library,) = (archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    needed = {int(number) for number in re.findall(rb"\0GLIBC_2\.(\d+)", library)}
    assert int(found[1]) == max(needed | {17}) <= int(platform.libc_ver()[1].split(".")[1])
    assert b"GLIBCXX" not in library
    assert b"libstdc++" not in library


def test_the_sdist_has_the_sources_and_becomes_a_wheel_without_a_compiler(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path / "dist")[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("headwise-*")
    native = folder / "headwise" / "native"
    assert {path.name for path in native.rglob("*") if path.suffix in (".h", ".hpp", ".cpp")} == {
        path.name for path in (ROOT / "headwise" / "native").rglob("*") if path.suffix in (".h", ".hpp", ".cpp")
    }
    assert not [path for path in folder.rglob("*") if path.suffix == ".so" or path.name == "__pycache__"]
    path, said = built("wheel", tmp_path / "wheel", folder, CXX="nowhere-c++")
    assert path.name.endswith("-py3-none-any.whl")
    assert said.count("the native kernels were not compiled") == 1
    assert "nowhere-c++: No such file" in said


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        licence = archive.read(f"headwise-{headwise.__version__}.dist-info/licenses/LICENSE")
        metadata = archive.read(f"headwise-{headwise.__version__}.dist-info/METADATA").decode()
    in_tree = [path.relative_to(ROOT) for path in (ROOT / "headwise").rglob("*") if path.is_file()]
    assert packed == {path.as_posix() for path in in_tree if "__pycache__" not in path.parts}
    assert "headwise/py.typed" in packed
    assert any(name.startswith("headwise/viewer/static/") for name in packed)
    assert b"Apache License" in licence
    assert "License-Expression: Apache-2.0" in metadata


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"headwise-{headwise.__version__}.dist-info/entry_points.txt").decode()
    assert "headwise = headwise.cli:main" in entry_points
