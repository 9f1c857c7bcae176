"""Which backend these tests run on, and what is skipped where the extra `keras` is not installed."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

BACKEND = os.environ["KERAS_BACKEND"]
MISSING = [name for name in ("keras", BACKEND) if importlib.util.find_spec(name) is None]

# Two devices, before the first operation: a few tests share their work between them, and the others use the first.
if BACKEND == "tensorflow" and not MISSING:
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
elif BACKEND == "jax":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

collect_ignore = [name for name in ("tensorflow", "jax") if name != BACKEND]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Where something is missing, only test_installed.py is left, which says so."""
    return True if MISSING and collection_path.is_file() and collection_path.name != "test_installed.py" else None


@pytest.fixture(autouse=True)
def _keras_seed() -> None:
    import keras

    keras.utils.set_random_seed(0)
