"""Makes Protobuf message classes from a few lines of .proto text, in a separate descriptor pool.

The messages of TensorFlow Serving and Triton come with packages of hundreds of megabytes, and two packages that define
the same names cannot be imported in one process. The few messages used here are therefore defined by name, field number
and type, which is all that the wire format depends on.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = re.compile(r"^(?:(repeated|map)\b)?\s*(?:<string,\s*(\w+)>|(\w+))\s+(\w+)\s*=\s*(\d+)$")
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string", "bytes", "bool", "int32", "int64", "uint32", "uint64", "float", "double"}


def messages(text: str) -> dict[str, Any]:
    """Make the message classes that a text defines, by name.

    Args:
        text: `message NAME { TYPE FIELD = NUMBER; … }`, proto3, with `repeated TYPE` and `map<string, TYPE>`. The
            fields of a `oneof` are written without it, and an enum as int32; the wire format is the same.
    """
    blocks = re.findall(r"message\s+(\w+)\s*\{([^}]*)\}", re.sub(r"//.*", "", text))
    file = descriptor_pb2.FileDescriptorProto(name="headwise.proto", package="headwise", syntax="proto3")
    for name, body in blocks:
        message = file.message_type.add(name=name)
        for line in filter(None, (" ".join(line.split()) for line in body.split(";"))):
            _add(message, line)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"headwise.{name}")) for name, _ in blocks}


def _add(message: descriptor_pb2.DescriptorProto, line: str) -> None:
    matched = _FIELD.match(line)
    if matched is None:
        raise ValueError(f"not a field of a message: {line}")
    kind, of_map, of_field, name, number = matched.groups()
    if kind == "map":  # on the wire, a list of messages with the fields "key" and "value"
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add(entry, "string key = 1")
        _add(entry, f"{of_map} value = 2")
        of_field = f"{message.name}.{entry.name}"
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind else _Field.LABEL_OPTIONAL
    if of_field in _SCALARS:
        field.type = getattr(_Field, f"TYPE_{of_field.upper()}")
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".headwise.{of_field}"
