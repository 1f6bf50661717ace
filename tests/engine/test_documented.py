"""The OpenAPI document's account of endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from c2c.engine.front.app import make_app


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = make_app(cast("Any", None), key=None)  # nothing is asked of the scheduler for it
    app.openapi()
    return app.openapi()  # the second time it is what was kept


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from references(each)


def test_errors_are_documented_as_they_are_answered(document: dict[str, Any]) -> None:
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert len(operations) > 20
    for one in operations:
        assert one["responses"].keys() == {"200", "4XX", "5XX"}  # no 422, FastAPI's own
    said = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]
    assert said["content"].keys() == {"application/json", "text/event-stream"}


def test_all_that_is_referred_to_is_there(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert "#/components/schemas/Failed" in found
    assert {reference.rpartition("/")[2] for reference in found} == set(
        document["components"]["schemas"]
    )
