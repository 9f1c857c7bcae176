"""What a pool and its workers tell each other: tuples, pickled, each behind its length.

To a worker:

    ("load", key, path)              load a model, beside the others; it is called by its key from then on
    ("drop", key)                    let go of it
    ("batch", id, key, rows)         answer rows
    ("explain", id, key, row)        the statistics of a row; "page" asks for the page
    ("stream", id, key, row)         begin to write
    ("cancel", id)                   nobody reads a stream any more

From a worker:

    ("up",)                          it runs
    ("loaded", key, description)
    ("refused", key, message)        it cannot be loaded
    ("answers", id, seconds, [...])  a row or a RequestRefused for each row
    ("value", id, seconds, value)    what was asked for, or a RequestRefused
    ("piece", id, text)              of a stream
    ("end", id, error)               of a stream; a RequestRefused, or None
    ("log", level, event, fields)    for the log: it holds nothing that a client wrote

Both ends run the same code on one machine, and nobody else can reach the socket between them: so pickle will do.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

Message = tuple[Any, ...]
LENGTH = struct.Struct("<Q")


def pack(message: Message) -> bytes:
    """A message as it goes through the socket."""
    body = pickle.dumps(message, protocol=5)
    return LENGTH.pack(len(body)) + body
