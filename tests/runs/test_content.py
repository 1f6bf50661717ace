from pathlib import Path

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.runs import content_key, plain, source_key


def test_order_of_keys_does_not_matter_values_do() -> None:
    assert content_key({"a": 1, "b": [2]}) == content_key({"b": (2,), "a": np.int64(1)})
    assert content_key({"a": 1}) != content_key({"a": 2})
    assert content_key({"a": 1}) != content_key({"a": "1"})


def test_unknown_things_are_refused() -> None:
    with pytest.raises(SettingError):
        plain({"f": print})
    with pytest.raises(SettingError):
        source_key("no_such_package_here")
    with pytest.raises(SettingError):
        content_key({}, files=[Path("no/such/file")])


def test_source_key_of_module_and_package() -> None:
    assert source_key("c2c.errors") != source_key("c2c.runs")
