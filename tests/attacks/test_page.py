"""docs/evidence/attacks.md shows what the tests hold."""

from __future__ import annotations

from tests.attacks.page import page
from tests.attacks.table import PAGE


def test_the_page_has_the_tables_of_the_tests() -> None:
    assert PAGE.read_text() == page(PAGE.read_text())
