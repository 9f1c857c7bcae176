"""The build hook of hatchling: compiles the native kernels where there is a C++ compiler, and else does without."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Native(BuildHookInterface):
    """Puts the library beside its sources, from where the wheel takes it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        built = runpy.run_path(str(Path(self.root) / "headwise" / "native" / "build.py"))
        path: Path = built["FOLDER"] / built["NAME"]
        try:
            if not built["is_current"]():
                path.unlink(missing_ok=True)  # compiled from other sources
                built["build"]()
            if version == "standard":
                build_data["tag"] = f"py3-none-{_platform(path.read_bytes(), *built['target'](), built['MACOS'])}"
                build_data["pure_python"] = False
        except built["BuildError"] as error:
            self.app.display_warning(
                "headwise: the native kernels were not compiled, and PyTorch's operators serve, which are slower. "
                f"With a C++17 compiler, such as g++, install headwise again. The reason: {error}"
            )
            return
        build_data["artifacts"].append(f"/{path.relative_to(self.root)}")


def _platform(library: bytes, processor: str, system: str, macos: str) -> str:
    """The systems on which a library runs, as a wheel names them."""
    if "darwin" in system:
        return f"macosx_{macos.replace('.', '_')}_{processor}"
    # It needs the C library alone, as new as the newest version of a function in its table of names.
    needed = [int(version) for version in re.findall(rb"\0GLIBC_2\.(\d+)", library)]
    return f"manylinux_2_{max(17, *needed)}_{processor}" if needed else f"linux_{processor}"
