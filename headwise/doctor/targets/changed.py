"""The attention classes that a commit changes: what `headwise doctor --changed` examines."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headwise.doctor.finding import Where
from headwise.doctor.result import Diagnosis
from headwise.doctor.targets.candidates import candidates
from headwise.errors import ArgumentError, DoctorError
from headwise.language import sentence_of

_HUNK = re.compile(rb"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def diagnose_changed(
    folder: Path, base: str, files: Sequence[Path], examine: Callable[[str], Diagnosis]
) -> Iterator[Diagnosis]:
    """A diagnosis of each class of which a line, or a helper in the same file, differs from `base`.

    Which these are is read from the text, without torch. `examine` gets a target as it is typed; what it refuses is not
    examined, nor is a file that cannot be read.

    Raises ArgumentError outside of a git repository, for an unknown `base`, and for a file that is elsewhere.
    """
    changes = Changes(folder, base)
    found, unread = candidates(changes.files(files))
    lines = {file: changes.lines(file) for file in {file for each in found for file, _ in each.lines}}
    for path, why in unread.items():
        yield Diagnosis(path.name, (), where=Where(str(path), 1), not_examined=f"it cannot be read: {why}")
    for each in found:
        if not any((new := lines[file]) is None or number in new for file, number in each.lines):
            continue
        try:
            diagnosis = examine(f"{Where(str(each.file), each.line).path}:{each.name}")
        except DoctorError as error:
            diagnosis = Diagnosis(each.name, (), not_examined=sentence_of(error))
        # Of code that did not return nothing is known, not even its place.
        where = diagnosis.where or Where.at(str(each.file), each.line)
        yield dataclasses.replace(diagnosis, subject=each.name, where=where)


# --- The repository ---------------------------------------------------------------------------------------------------


def root_of(folder: Path) -> Path | None:
    """The root of the repository, or None outside of one. Asks no git."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


class Changes:
    """What the working tree of a repository has changed since a commit: committed, staged or not, and new files.

    Raises ArgumentError if `folder` is in no repository, git is not there, or there is no such commit.
    """

    def __init__(self, folder: Path, base: str) -> None:
        self.base = base
        self.root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
        self._commit = self._find(base)

    def files(self, given: Sequence[Path] = ()) -> list[Path]:
        """The Python files that were changed or added and are still there; or those of them that are given, by name or
        by folder. A file that is given by name counts whether it was changed or not.
        """
        whole = [self._inside(path) for path in given]
        named = [path for path in whole if path.suffix == ".py"]
        folders = [path for path in whole if path.is_dir()]
        if given and not folders:
            return named
        names = ("--", *(f"{path}/*.py" for path in folders)) if folders else ("--", "*.py")
        changed = self._git("diff", "--name-only", "-z", "--no-renames", "--diff-filter=d", self._commit, *names)
        new = self._git("ls-files", "--others", "--exclude-standard", "-z", *names)
        found = dict.fromkeys(name for name in (changed + new).decode(errors="surrogateescape").split("\0") if name)
        return named + [path for name in sorted(found) if (path := self.root / name).is_file() and path not in named]

    def lines(self, file: Path) -> set[int] | None:
        """The lines of a file that are new, and those around what was deleted; None if the whole file is new."""
        name = file.relative_to(self.root).as_posix()
        if not self._git("--literal-pathspecs", "ls-tree", "-z", self._commit, "--", name):
            return None
        how = ("--unified=0", "--no-color", "--no-ext-diff", "--no-textconv")
        lines: set[int] = set()
        for first, count in _HUNK.findall(self._git("--literal-pathspecs", "diff", *how, self._commit, "--", name)):
            begin, many = int(first), int(count or 1)
            lines.update(range(begin, begin + many) if many else (begin, begin + 1))
        return lines

    def _find(self, base: str) -> str:
        """The commit where this branch left `base`: what others did there since is no change of this branch."""
        try:
            commit = (
                self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}").decode().strip()
            )
        except ArgumentError:
            if base == "HEAD":  # no commit yet: everything is new
                return self._git("hash-object", "-t", "tree", "--stdin").decode().strip()
            raise ArgumentError(
                f"--changed: expected a commit, branch or tag of {self.root}. Received: {base!r}. "
                "`git branch --all` lists the branches"
            ) from None
        try:
            return self._git("merge-base", commit, "HEAD").decode().strip()
        except ArgumentError:  # no common history, or a shallow clone that ends before
            return commit

    def _inside(self, path: Path) -> Path:
        whole = path.resolve()
        if not whole.is_relative_to(self.root) or not whole.exists():
            raise ArgumentError(f"--changed: expected Python files or folders of {self.root}. Received: {path}")
        return whole

    def _git(self, *words: str) -> bytes:
        return _git(self.root, *words)


def _git(folder: Path, *words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        raise ArgumentError(
            "--changed: git was not found. Install it, or name the class: my_model.py:MyAttention"
        ) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ArgumentError(f"--changed: expected a folder in a git repository. Received: {folder} ({said[-1]})")
    return done.stdout
