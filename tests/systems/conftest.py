"""Models of the transformer's tests, for the tests of systems on live models."""

from tests.transformer.conftest import made

__all__ = ["made"]
