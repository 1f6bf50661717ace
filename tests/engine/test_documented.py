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


def test_what_is_invalid_is_documented_as_it_is_answered(document: dict[str, Any]) -> None:
    operations = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert all("422" not in operation["responses"] for operation in operations.values())
    open_to_all = {("/health", "get"), ("/ready", "get")}
    assert open_to_all == {
        at for at, operation in operations.items() if "401" not in operation["responses"]
    }
    for path in ("/v1/completions", "/v1/chat/completions"):
        said = operations[path, "post"]["responses"]
        assert {"400", "404", "408", "413", "429", "499", "503"} <= said.keys()
        assert said["200"]["content"].keys() == {"application/json", "text/event-stream"}


def test_errors_are_json_and_pages_are_not(document: dict[str, Any]) -> None:
    paths = document["paths"]
    for path, form in (("/", "text/html"), ("/metrics", "text/plain")):
        said = paths[path]["get"]["responses"]
        assert list(said["200"]["content"]) == [form]
        assert list(said["401"]["content"]) == ["application/json"]


def test_all_that_is_referred_to_is_there(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert "#/components/schemas/Failed" in found
    assert {reference.rpartition("/")[2] for reference in found} == set(
        document["components"]["schemas"]
    )
