"""Messages from a few lines of text are on the wire what protobuf's own are."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from headwise.server.protocols.proto import messages


def test_messages_are_what_others_write_and_read() -> None:
    found = messages("""
        // google/protobuf/descriptor.proto
        message EnumValueDescriptorProto { string name = 1; int32 number = 2; }
        message EnumDescriptorProto { string name = 1; repeated EnumValueDescriptorProto value = 2;
            repeated string reserved_name = 5; }
    """)
    real = descriptor_pb2.EnumDescriptorProto(name="E", value=[{"name": "A", "number": -1}], reserved_name=["x", "y"])
    ours = found["EnumDescriptorProto"].FromString(real.SerializeToString())
    assert (ours.name, ours.value[0].number, list(ours.reserved_name)) == ("E", -1, ["x", "y"])
    assert descriptor_pb2.EnumDescriptorProto.FromString(ours.SerializeToString()) == real


def test_a_map_has_its_values_by_name() -> None:
    found = messages("message Box { map<string, Box> inner_boxes = 3; bytes raw = 1; }")["Box"]
    box = found(inner_boxes={"a": found(raw=b"\xff")})
    assert found.FromString(box.SerializeToString()).inner_boxes["a"].raw == b"\xff"


def test_a_line_that_is_no_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a field of a message: optional string a = 1"):
        messages("message A { optional string a = 1; }")
