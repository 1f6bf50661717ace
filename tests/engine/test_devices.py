"""Devices as NVML lists them, through a library that says what a test wants; and workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from c2c.engine.devices import Device, binding, bound_to, check_seen, pick
from c2c.engine.places import Place
from c2c.engine.supervisor import Supervisor
from c2c.errors import DataError, SettingError

# One GPU. LAYOUT is a letter a place: "i" an instance, "-" none, "x" one that is lost while it is
# asked about; "off": no MIG; "old": a GPU that knows no MIG; "mute": a driver that does not start.
NVML = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
static const char *layout(void) { const char *l = getenv("LAYOUT"); return l ? l : "off"; }
static int places(void) { return layout()[0] == 'o' ? 0 : (int)strlen(layout()); }
int nvmlInitWithFlags(unsigned f) { return strcmp(layout(), "mute") ? 0 : 9; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return e == 9 ? "driver not loaded" : "error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)1; return 0; }
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *later) {
  *now = *later = places() > 0; return strcmp(layout(), "old") ? 0 : 3; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { *n = places(); return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **m) {
  *m = (void *)(size_t)(i + 10); return layout()[i] == '-' ? 6 : 0; }
int nvmlDeviceGetUUID(void *h, char *text, unsigned n) {
  if ((size_t)h == 1) snprintf(text, n, "GPU-1"); else snprintf(text, n, "MIG-%d", (int)(size_t)h);
  return 0; }
int nvmlDeviceGetName(void *h, char *text, unsigned n) { snprintf(text, n, "stand-in"); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) {
  m[0] = (size_t)h == 1 ? 96000000000ull : 12000000000ull; m[1] = m[0] - 5000000000ull; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **h) {
  *h = (void *)(size_t)(strncmp(uuid, "MIG-", 4) ? 1 : atoi(uuid + 4)); return 0; }
int nvmlDeviceGetAttributes_v2(void *h, unsigned *a) {
  memset(a, 0, 40); a[0] = 16; return layout()[(size_t)h - 10] == 'x' ? 2 : 0; }
"""
LIST = """
import json
from dataclasses import asdict
from c2c.engine.devices import find_devices, free_bytes
from c2c.errors import DataError
try:
    print(json.dumps([{**asdict(d), "free": free_bytes(d)} for d in find_devices()]))
except DataError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"],
        check=True,
    )
    return folder


def listed(folder: Path, layout: str) -> list[dict[str, object]] | str:
    done = subprocess.run(
        [sys.executable, "-c", LIST], capture_output=True, text=True, check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "LAYOUT": layout},
    )  # fmt: skip
    result: list[dict[str, object]] | str = json.loads(done.stdout)
    return result


def test_devices_are_listed_as_the_driver_has_them(library: Path, tmp_path: Path) -> None:
    gpu = {"uuid": "GPU-1", "name": "stand-in", "memory_bytes": 96 * 10**9, "sm_count": None}
    gpu["free"] = 91 * 10**9
    assert listed(library, "off") == listed(library, "old") == [gpu | {"parent": None}]
    instances = listed(library, "i-ix--i")
    assert isinstance(instances, list)
    assert [device["uuid"] for device in instances] == ["MIG-10", "MIG-12", "MIG-16"]
    assert instances[0] == {
        "uuid": "MIG-10", "name": "stand-in", "memory_bytes": 12 * 10**9, "sm_count": 16,
        "parent": "GPU-1", "free": 7 * 10**9,
    }  # fmt: skip
    assert "NVML: does not answer" in str(listed(library, "mute"))
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    assert "NVML: does not answer" in str(listed(tmp_path, "off"))


def of(uuid: str, memory_bytes: int = 100, sms: int | None = 16) -> Device:
    return Device(uuid=uuid, name="", memory_bytes=memory_bytes, sm_count=sms, parent=None)


def test_each_worker_gets_one_device_of_its_own() -> None:
    a, b, large = of("a"), of("b"), of("c", 200)
    assert pick([a, b, large], 2, None) == (a, b)
    assert pick([a, b, large], 1, ["c"]) == (large,)
    for workers, asked, said in (
        (4, None, "workers=4: .*3, one for each"), (1, ["d"], "devices='d'"),
        (2, ["a", "a"], "different devices"), (3, None, "one size"), (1, ["a", "b"], "workers=1"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=said):
            pick([a, b, large], workers, asked)


def test_a_worker_may_have_several_whole_gpus() -> None:
    four = [of(name) for name in "abcd"]
    assert pick(four, 2, None, per_worker=2) == tuple(four)
    assert pick(four, 1, ["d", "b"], per_worker=2) == (four[3], four[1])
    slices = [replace(device, parent="GPU-0") for device in four]
    for found, workers, said in (
        (four, 3, "workers=3: expected 2, one for 2 devices"), (slices, 1, "whole GPUs"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=said):
            pick(found, workers, None, per_worker=2)
    planned = bound_to(four[:2])
    one = SimpleNamespace(platform="gpu", id=0, core_count=16, memory_stats=lambda: None)
    check_seen(planned, [one, one])
    with pytest.raises(DataError, match="a, b: the worker sees gpu:0, expected these GPUs"):
        check_seen(planned, [one])


def test_a_worker_that_is_bound_to_none_has_parts_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert binding((), 1) == {}
    assert binding((), 4)["XLA_FLAGS"].split() == [
        "--xla_dump_to=x",
        "--xla_force_host_platform_device_count=4",
    ]


def test_a_worker_refuses_another_device_than_its_own() -> None:
    def seen(platform: str = "gpu", cores: int = 16, limit: int = 90) -> SimpleNamespace:
        return SimpleNamespace(
            platform=platform, id=0, core_count=cores, memory_stats=lambda: {"bytes_limit": limit}
        )

    planned = bound_to([of("a")])
    check_seen(planned, [seen()])
    for devices, said in (
        ([], "sees nothing"), ([seen(), seen()], "gpu:0, gpu:0"), ([seen("cpu")], "cpu:0"),
        ([seen(cores=32)], "32 SMs, expected 16"), ([seen(limit=200)], "may use 200 B"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            check_seen(planned, devices)
    check_seen(bound_to([of("a", sms=None)]), [seen(cores=32)])


@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="reads /proc")
def test_a_worker_sees_its_device_before_it_begins(tmp_path: Path) -> None:
    places = [Place(device=0, gpus=(of("GPU-7"), of("GPU-8"))), Place(device=1)]
    supervisor = Supervisor(tmp_path / "socket", places, hang_s=1.0, patience=1)
    for place, visible in zip(places, ("GPU-7,GPU-8", None), strict=True):
        supervisor._spawn(place)
        assert place.process is not None
        environment = Path(f"/proc/{place.process.pid}/environ")
        while not (held := environment.read_bytes()):  # it has just begun
            assert place.process.poll() is None
        told = held.split(b"\0")
        place.process.kill()
        place.process.wait()
        mine = [line for line in told if line.startswith(b"CUDA_VISIBLE_DEVICES=")]
        if visible is not None:
            assert mine == [f"CUDA_VISIBLE_DEVICES={visible}".encode()]
        else:
            was = os.environ.get("CUDA_VISIBLE_DEVICES")
            assert mine == ([] if was is None else [f"CUDA_VISIBLE_DEVICES={was}".encode()])
