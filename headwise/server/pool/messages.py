"""The messages between a pool and its workers: tuples, pickled, each preceded by its length.

To a worker:

    ("load", key, path)              load a model in addition to the others; later messages use its key
    ("drop", key)                    unload the model with this key
    ("batch", id, key, rows, n)      answer rows with n threads
    ("join", id, key, row, n)        answer a row side by side with those that joined before
    ("explain", id, key, row, n)     compute the statistics of a row; "page" makes the page
    ("attend", id, key, row, n, places)  answer a row, with the weights of the queries at these places
    ("stream", id, key, row)         start generating text
    ("cancel", id)                   stop a stream, or a row that has joined

From a worker:

    ("up",)                          the process is running
    ("loaded", key, description)
    ("refused", key, message)        the model cannot be loaded
    ("answers", id, seconds, [...])  a row or a RequestRefused for each row
    ("value", id, seconds, value)    the requested value, or a RequestRefused
    ("piece", id, text)              a piece of a stream
    ("end", id, error)               the end of a stream; a RequestRefused, or None
    ("log", level, event, fields)    a log line, without anything that a client sent

Both ends run the same code on one machine, and no one else can reach the socket, so pickle is safe.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

Message = tuple[Any, ...]
LENGTH = struct.Struct("<Q")


def pack(message: Message) -> bytes:
    """Return a message as bytes for the socket."""
    body = pickle.dumps(message, protocol=5)
    return LENGTH.pack(len(body)) + body
