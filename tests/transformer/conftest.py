"""Models that several tests share, loaded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from c2c.transformer import Model, load
from tests.transformer.random_checkpoints import config_of, tensors_of, write

Made = tuple[Model, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """(family, dtype, strategy) -> the model, its config and its tensors."""

    @cache
    def make(name: str, dtype: str = "float32", linear: Any = "reference") -> Made:
        config = config_of(name)
        tensors = tensors_of(config)
        folder = write(tmp_path_factory.mktemp(name), config, tensors)
        return load(folder, dtype, linear=linear), config, tensors

    return make
