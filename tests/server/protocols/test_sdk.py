"""What the import of the protocols does to the process: nothing that anybody can see."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import logging, sys
sys.argv = ["headwise", "--help", "--workers", "many", "--http_port", "x"]
before = list(sys.argv)
from headwise.server.protocols import open_inference_grpc, open_inference_http, tensorflow_grpc, tensorflow_rest
assert sys.argv == before
assert not logging.root.handlers and logging.root.level == logging.WARNING
assert not {"tensorflow", "tensorflow_serving", "tritonclient", "ray"} & set(sys.modules)
"""


def test_the_import_reads_no_options_prints_nothing_and_warns_of_nothing() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
