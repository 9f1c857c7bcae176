"""KServe's SDK without its side effects: what carries the Open Inference Protocol on the wire.

`import kserve` reads the command line of whoever imports it (its model server parses `sys.argv`, and ends the process
at an option of the same name that it cannot read), so it is given an empty one.
"""

from __future__ import annotations

import sys
import warnings

from headwise.errors import ArgumentError

_argv = sys.argv
try:
    sys.argv = _argv[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kserve.errors import InferenceError, InvalidInput
        from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
        from kserve.protocol.infer_type import InferInput, InferOutput, InferRequest, InferResponse, RequestedOutput
        from kserve.protocol.rest import v2_datamodels as models
except ImportError as error:
    raise ArgumentError('headwise serve needs kserve and grpcio: pip install "headwise[serve]"') from error
finally:
    sys.argv = _argv

__all__ = [
    "InferInput",
    "InferOutput",
    "InferRequest",
    "InferResponse",
    "InferenceError",
    "InvalidInput",
    "RequestedOutput",
    "messages",
    "models",
]
