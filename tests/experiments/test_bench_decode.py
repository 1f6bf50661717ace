"""The benchmark of decoding: its models load, and wrong settings are named."""

from pathlib import Path

import pytest

from c2c.errors import SettingError
from c2c.transformer import load
from experiments.bench import decode


@pytest.mark.parametrize("name", decode.SHAPES)
def test_models_are_written_as_checkpoints(name: str, tmp_path: Path) -> None:
    model = load(decode.write_model(name, tmp_path / "model", seed=0))
    assert model.spec.family == decode.SHAPES[name]["model_type"]
    assert model.params.dtype == "float32"
    again = tmp_path / "model"
    assert decode.write_model(str(again), tmp_path / "other", seed=0) == again
    with pytest.raises(SettingError, match="models='unknown'"):
        decode.write_model("unknown", tmp_path / "third", seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new=1"], "new=1: expected a whole number, at least 2"),
        (["models=[]"], "models=[]"),
        (["peer=nowhere/python"], "Run make peer."),
        (["speed=9"], "speed"),
    ],
)
def test_wrong_settings_end_with_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode.main(arguments) == 2
    assert message in capsys.readouterr().err
