"""KServe's SDK, which implements the Open Inference Protocol, imported without its side effects.

`import kserve` parses `sys.argv` (its model server does) and ends the process at an option that it cannot parse, so
`sys.argv` is empty during the import.
"""

from __future__ import annotations

import sys
import warnings

_argv = sys.argv
try:
    sys.argv = _argv[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kserve.errors import InferenceError, InvalidInput
        from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
        from kserve.protocol.infer_type import InferInput, InferOutput, InferRequest, InferResponse, RequestedOutput
        from kserve.protocol.rest import v2_datamodels as models
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
