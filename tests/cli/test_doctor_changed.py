"""`headwise doctor --changed`: the attention classes that a commit changes, and what a hook then does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor.specimens import BEGIN

from .conftest import Run, refused

BUG = 1
HEALTHY = BEGIN[: BEGIN.index("class WrongScale")]
TABLE = """
class Table(Healthy):
    def __init__(self, table: dict):
        super().__init__()
"""


class Repository:
    """A repository of git; its only commit has two files, each with a healthy class."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet", "--initial-branch=main")
        self.write("mine.py", HEALTHY)
        self.write("other.py", HEALTHY)
        self.commit()

    def git(self, *words: str) -> None:
        known = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *known, *words], cwd=self.root, check=True, capture_output=True)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--no-verify", "--message=change")

    def break_(self, name: str = "mine.py") -> None:
        """Divide the scores by the root of the width, not of the head's."""
        self.write(name, HEALTHY.replace("(width // heads) ** 0.5", "width ** 0.5"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.delenv("PRE_COMMIT_FROM_REF", raising=False)
    return Repository(tmp_path)


def told(text: str) -> list[str]:
    """The lines of the list, without the seconds."""
    return [line.rpartition(" (")[0] for line in text.splitlines() if line.endswith(" s)")]


def test_a_changed_class_with_a_bug_fails(run: Run, repository: Repository) -> None:
    assert run("doctor", "--changed").out == "nothing to examine: no attention class was changed\n"
    repository.write("mine.py", f"{HEALTHY}\n\ndef unused():\n    pass\n")
    result = run("doctor", "--changed", "--json", "found.json")
    assert (result.code, json.loads(Path("found.json").read_text(encoding="utf-8"))["diagnoses"]) == (0, [])

    repository.break_()
    repository.write("new.py", HEALTHY)  # neither staged nor known to git
    result = run("doctor", "--changed")
    assert result.code == BUG
    assert "bug  wrong-scale" in result.out
    assert told(result.out) == ["mine.py:Healthy: 1 bug: wrong-scale", "new.py:Healthy: healthy"]
    repository.git("add", "mine.py")
    assert run("doctor", "--changed", "mine.py").code == BUG
    assert run("doctor", "--changed", "other.py").out.startswith("nothing to examine")
    assert run("doctor", "--changed=HEAD", ".").code == BUG  # all below a folder


def test_what_a_branch_changed(run: Run, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since it left its base, and not what others did there."""
    repository.git("checkout", "--quiet", "-b", "mine")
    repository.break_()
    repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.break_("other.py")
    repository.commit()
    repository.git("checkout", "--quiet", "mine")
    expected = ["mine.py:Healthy: 1 bug: wrong-scale"]
    assert told(run("doctor", "--changed=main").out) == expected
    assert told(run("doctor", "--changed").out) == []
    monkeypatch.setenv("PRE_COMMIT_FROM_REF", "main")
    assert told(run("doctor", "--changed").out) == expected


def test_before_the_first_commit_all_is_new(run: Run, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "mine.py").write_text(HEALTHY, encoding="utf-8")
    assert told(run("doctor", "--changed").out) == ["mine.py:Healthy: healthy"]


def test_what_cannot_be_examined_is_said_and_no_failure(run: Run, repository: Repository) -> None:
    repository.write("mine.py", HEALTHY + TABLE)
    repository.write("broken.py", "class A(\n")
    result = run("doctor", "--changed", "--sarif", "found.sarif")
    assert result.code == 0
    assert told(result.out) == [
        "broken.py:broken.py: not examined: it cannot be read: line 1: '(' was never closed",
        "mine.py:Table: not examined: mine.py:Table needs table, which cannot be guessed: "
        "headwise doctor mine.py:Table --set table=VALUE",
    ]
    (sarif,) = json.loads(Path("found.sarif").read_text(encoding="utf-8"))["runs"]
    assert len(sarif["invocations"][0]["toolExecutionNotifications"]) == 2


def test_guessed_arguments_are_in_the_report_in_a_process_of_its_own_too(run: Run, repository: Repository) -> None:
    repository.write("mine.py", HEALTHY.replace("width=16, heads=2, divide_by=None", "width, heads, divide_by=8"))
    for options in ((), ("--isolate",)):
        result = run("doctor", *options, "--changed")
        assert result.code == BUG
        assert "arguments guessed: width=64, heads=4" in result.out


def test_sarif_from_a_folder_within_names_files_from_the_root(run: Run, repository: Repository, tmp_path: Path) -> None:
    repository.write("models/mine.py", HEALTHY.replace("(width // heads) ** 0.5", "width ** 0.5"))
    found, whole = [], tmp_path / "models" / "mine.py"
    for folder, target in ((".", "models/mine.py"), ("models", "mine.py"), ("models", whole), ("..", whole)):
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(tmp_path / folder)
            assert run("doctor", f"{target}:Healthy", "--sarif", tmp_path / "found.sarif").code == BUG
        (log,) = json.loads((tmp_path / "found.sarif").read_text(encoding="utf-8"))["runs"]
        assert log["originalUriBaseIds"] == {"%SRCROOT%": {"uri": f"{tmp_path.as_uri()}/"}}
        (wrong,) = (x for x in log["results"] if x["ruleId"] == "wrong-scale")
        found.append(wrong["locations"][0]["physicalLocation"]["artifactLocation"])
    assert found == [{"uri": "models/mine.py", "uriBaseId": "%SRCROOT%"}] * 4


def test_reading_what_changed_does_not_wait_for_torch(repository: Repository) -> None:
    program = (
        "import sys\nfrom headwise.cli import main\nmain(['doctor', '--changed'])\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=repository.root)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--changed=nowhere"], "expected a commit, branch or tag of "),
        (["--changed", "missing.py"], "expected Python files or folders of "),
        (["--changed", "--set", "a=1"], "--set: expected FILE.PY:CLASS or --model. Received: --changed"),
        (["--changed", "--model", "x"], "--model: expected FILE.PY:CLASS"),
        (["mine.py:Healthy", "other.py:Healthy"], "expected one class. Received: mine.py:Healthy, other.py:Healthy"),
    ],
)
def test_bad_input(run: Run, repository: Repository, arguments: list[str], said: str) -> None:
    refused(run("doctor", *arguments), said)


def test_outside_of_a_repository(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    refused(run("doctor", "--changed"), "expected a folder in a git repository", "not a git repository")
    monkeypatch.setenv("PATH", "")
    refused(run("doctor", "--changed"), "git was not found")


def test_the_hook_says_what_there_is() -> None:
    """The manifest of pre-commit: its command line is one that `headwise` takes."""
    yaml = pytest.importorskip("yaml")
    root = Path(__file__).parents[2]
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {"id", "name", "entry", "language"} <= hook.keys()
    assert hook["entry"].split() == ["headwise", "doctor", "--changed"]
    assert hook["require_serial"] is True
