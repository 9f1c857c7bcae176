"""What a test needs of the version of another package. `scripts/versions` runs tests with the oldest and the newest."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from packaging.version import Version


def since(package: str, version: str) -> None:
    """Skip the test, or the file that calls it while it is imported, with an older version of a package.

    The older version lacks, or does differently, what is compared there.
    """
    have = importlib.metadata.version(package)
    if Version(have) < Version(version):
        reason = f"{package} {have} is older than {version} and lacks what this test compares with"
        pytest.skip(reason, allow_module_level=True)


def rope_options(**parameters: Any) -> dict[str, Any]:
    """How a config is given its RoPE: transformers before 5 called it rope_scaling, beside rope_theta."""
    if Version(importlib.metadata.version("transformers")) >= Version("5"):
        return {"rope_parameters": parameters}
    theta = parameters.pop("rope_theta")
    return {"rope_theta": theta, "rope_scaling": None if parameters["rope_type"] == "default" else parameters}
