"""Files are written beside their target and renamed: whoever reads sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from platform import node

_count = itertools.count()
_writing: set[str] = set()  # the names of the parts that this process is writing
# Windows refuses to replace a file while somebody reads it. These are the seconds to wait before each new attempt.
_PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0) if os.name == "nt" else ()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, to write to. At the end it takes the place of `path`; after an error it is removed.

    Any number of threads and processes may write to one path at once: each has a part of its own, and the last to
    finish wins. What a process that was killed left behind is removed by the next that writes to that path; on Windows,
    only if it has the same process id.

    OSError passes through, for the caller to say what could not be written. On Windows this is a PermissionError where
    another program holds `path` open for longer than a second.
    """
    machine = f"{zlib.crc32(node().encode()):08x}"
    _remove_left_behind(path, machine)
    part = path.with_name(f".{path.name}.{machine}-{os.getpid()}-{next(_count)}.part")
    _writing.add(part.name)
    try:
        yield part
        _replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        _writing.discard(part.name)


def _replace(part: Path, path: Path) -> None:
    for pause in _PAUSES:
        with contextlib.suppress(PermissionError):
            return os.replace(part, path)
        time.sleep(pause)
    os.replace(part, path)


def _remove_left_behind(path: Path, machine: str) -> None:
    """Remove the parts of `path` whose writers, processes of this machine, do not run any more."""
    prefix = f".{path.name}.{machine}-"
    with contextlib.suppress(OSError):  # no such folder, or one that cannot be read: writing says so
        for name in os.listdir(path.parent):
            if name.startswith(prefix) and name not in _writing:
                process = re.fullmatch(r"(\d+)-\d+\.part", name.removeprefix(prefix))
                if process and not _runs(int(process[1])):
                    path.with_name(name).unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Whether a process runs, this one aside: a part of its that it is not writing is from one that had its number."""
    if process == os.getpid():
        return False
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):  # no number of a process; somebody else's
        return True
    return True
