"""A model whose engine has no work is served again, whatever routing and placement think of it."""

import pytest

from c2c.config import build, load, simulate


@pytest.mark.parametrize(
    "settings",
    [
        ("system.engines.residents=1",),
        ("system/place=bandwidth_aware",),
        ("system/place=random_idle",),
        ("system/place=first_idle",),
    ],
)
def test_the_only_slice_holds_the_model_without_work(settings: tuple[str, ...]) -> None:
    work = ("workload=deterministic", "workload.requests=3", "workload.rate_rps=0.1")
    setup = build(
        load(
            [
                "catalog=dense6", "catalog.models=[{spec:llama-3-3b}]", "mig=1x96gb",
                "system=c2cserve_plus", *settings, *work,
            ]
        )
    )  # fmt: skip
    got = simulate(setup, compiled=False)
    assert got.summary["finished"] == 3
    assert set(got.requests["instance"].to_pylist()) == {0}
