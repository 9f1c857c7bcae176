"""The OpenAPI description is made from the models' columns, and kept: schemathesis asks what it allows, and more."""

from __future__ import annotations

from typing import Any

import hypothesis
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks

from headwise.server.app import create
from headwise.server.settings import Settings

from .plain_engine import Explaining

load_all_checks()
# Of the protocols more is accepted than is described: they let clients send what a server does not know. Their paths
# match several routes, NAME and NAME:predict, of which the first says what is allowed.
NOT_OF_PROTOCOLS = CHECKS.get_by_names(
    ["negative_data_rejection", "positive_data_acceptance", "allow_header_conformance"]
)
# No name of this machine is wanted of a client that calls the application by another.
DESCRIPTION = schemathesis.openapi.from_asgi("/openapi.json", create(Explaining(), Settings(host="0.0.0.0")))
PLAIN = DESCRIPTION.include(path_regex=r"^/(?!v[12])")
PROTOCOLS = DESCRIPTION.include(path_regex=r"^/v[12]")
few = hypothesis.settings(max_examples=8, derandomize=True, deadline=None, database=None)


@PLAIN.parametrize()
@few
def test_plain_routes_keep_to_the_description(case: Any) -> None:
    case.call_and_validate()


@PROTOCOLS.parametrize()
@few
def test_protocols_keep_to_the_description(case: Any) -> None:
    case.call_and_validate(excluded_checks=NOT_OF_PROTOCOLS)
