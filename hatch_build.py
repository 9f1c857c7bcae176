"""The build hook of hatchling: compiles the native kernels where there is a C++ compiler, and else does without."""

from __future__ import annotations

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
        try:
            path = built["FOLDER"] / built["NAME"]
            if not built["is_current"]():
                built["build"]()
        except built["BuildError"] as error:
            self.app.display_warning(f"headwise: no native kernels, PyTorch's operators serve instead: {error}")
            return
        build_data["artifacts"].append(f"/{path.relative_to(self.root)}")
        if version == "standard":
            from packaging.tags import platform_tags

            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next(iter(platform_tags()))}"
