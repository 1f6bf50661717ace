from __future__ import annotations

import pickle

import pytest

from c2c.config.schema import RunConf, SystemConf, WorkloadConf
from c2c.errors import SettingError
from experiments.sweeping.arguments import check_arguments, fixed, grid


@pytest.mark.parametrize("schema", [RunConf, SystemConf, WorkloadConf])
def test_schemas_are_pickled_by_name(schema: type) -> None:
    assert pickle.loads(pickle.dumps(schema)) is schema


def test_points_are_in_the_order_of_hydras_sweeper() -> None:
    assert grid(["a=1,2", "b=x,y", "c=3"]) == [
        ("a=1", "b=x", "c=3"), ("a=1", "b=y", "c=3"), ("a=2", "b=x", "c=3"), ("a=2", "b=y", "c=3"),
    ]  # fmt: skip
    assert grid(["+experiment=p,q", "seed=range(2)"])[1] == ("+experiment=p", "seed=1")
    assert grid(["objective=[a,b]"]) == [("objective=[a,b]",)]


def test_what_all_points_share() -> None:
    given = ["-m", "seed=0,1", "link=measured", "x=interval(0,1)", "y='a,b'", "--config-dir", "d"]
    assert fixed(given) == ["link=measured", "y='a,b'", "--config-dir", "d"]


@pytest.mark.parametrize("key", ["run.dir", "sweep.dir", "sweep.subdir", "runtime.output_dir"])
def test_folders_of_hydra_are_refused(key: str) -> None:
    check_arguments(["hydra.launcher.n_jobs=2", "out=here"])
    with pytest.raises(SettingError, match=rf"hydra\.{key}='here'.*out=<folder>"):
        check_arguments(["seed=1", f"hydra.{key}=here"])
