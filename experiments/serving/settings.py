"""Settings of `c2c serve`, validated before any process starts."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from c2c.config.mechanisms import is_by_mechanism
from c2c.config.refusals import check_renamed
from c2c.cost import load_constants
from c2c.engine import EngineSettings, Options
from c2c.engine.devices import Device, find_devices, pick
from c2c.errors import SettingError, unknown_name
from c2c.hardware import conf_dir
from c2c.policies import DECISIONS
from c2c.ranges import AboveZero, Count, FromZero, In, Index, OneOf, check_fields, check_value
from c2c.serving import SystemSpec
from pallas_kernels.repository import Repository, RepositoryError

__all__ = [
    "ServeConf",
    "Settings",
    "check_address",
    "gpus_of",
    "is_over_several",
    "options_of",
    "overrides_of",
    "register",
    "settings_of",
    "system_of",
    "with_context",
]

_TEXTS = ("catalog", "pools", "out", "executables", "key", "add_from")
_GROUPS = {"catalog": "catalog_folder", "linear": "linear_strategy"}  # of the simulator
_CONTEXT = 2048
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ServeConf:
    """Settings of `conf/serve.yaml`, as key=value on the command line.

    Attributes:
      catalog_folder: `catalog=` on the command line: a checkpoint (a folder with a config.json, or
        a GGUF file), a folder of them, or Hugging Face's cache; null for SmolLM2, fetched once.
      host: address to listen at; any but a loopback one needs a key.
      port: port to listen at; 0 for a free one.
      key: API key that requests need; null for none.
      workers: number of processes that compute.
      devices: GPUs or MIG instances of the workers: UUIDs, auto (NVML's, one a worker), or null
        (jax's).
      rows: row classes of a step; the last one is a model's largest batch.
      budgets: prompt tokens that a call is padded to.
      context: most tokens of a request; null for the models' own.
      pool_bytes: KV cache of each worker; null for all rows of all models, up to a quarter of the
        memory.
      memory_fraction: share of a worker's memory for weights and KV cache, in place of pool_bytes.
      weights_bytes: host memory for weights, loaded on demand; null if all models fit.
      dtype: type of parameters, activations, keys and values.
      linear_strategy: `linear=` on the command line: staged (one copy of weights for all workers)
        or reference (a copy each).
      ahead: 1: a worker begins the next decode step before it reads the last tokens; 0: one step at
        a time.
      executables: folder of compiled code, auto, or none.
      pools: folder of weights in the form that workers map; null for a temporary one.
      add_from: folder of checkpoints that `POST /v1/models` may add (and `DELETE /v1/models/<name>`
        remove); null for a fixed catalog.
      sampling: defaults: neutral, or checkpoint (its generation_config.json).
      choices: most choices of one request (`n` times its prompts); more get HTTP 400.
      origins: web pages that may use the API (CORS), such as `[http://localhost:3000]`; `["*"]` for
        all.
      max_open: most open requests; further ones get HTTP 429.
      retries: losses of a worker in a row that a request survives without a token.
      patience: processes of a worker in a row that may end without work.
      has_spare: whether a spare process replaces a lost one at once.
      hang_s: silence after which a computing worker is killed.
      start_s: silence after which a starting worker is killed.
      drain_s: time of open requests after SIGTERM.
      ttft_slo_s: TTFT target that policies see.
      tpot_slo_s: TPOT target that policies see.
      constants: cost model that policies predict with, from `conf/calibration`.
      busy_poll: whether the scheduler polls around a report's predicted time; false: it sleeps.
      out: folder for the run's record; null for none.
      compiled: whether the loop's step runs as machine code; false for a debugger.
      system: system from `conf/system`; each worker has as many devices as its layout.
      node: node from `conf/node` of a system with a layout.
      catalog: the simulator's catalog of such a system; it is not read.
    """

    catalog_folder: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, In("[0, 65535]")] = 8123
    key: str | None = None
    workers: int = 1
    devices: Any = None
    rows: list[int] = field(default_factory=lambda: [1, 8])
    budgets: list[int] = field(default_factory=lambda: [64, 256])
    context: int | None = _CONTEXT
    pool_bytes: int | None = None
    memory_fraction: float | None = None
    weights_bytes: int | None = None
    dtype: Annotated[str, OneOf(*_DTYPES)] = "float32"
    linear_strategy: str = "staged"
    ahead: int = 1
    executables: str | None = "auto"
    pools: str | None = None
    add_from: str | None = None
    sampling: Annotated[str, OneOf("neutral", "checkpoint")] = "neutral"
    choices: Count = 2048
    origins: list[str] = field(default_factory=list)
    max_open: Count = 1024
    retries: Index = 3
    patience: Count = 20
    has_spare: bool = True
    hang_s: AboveZero = 60.0
    start_s: AboveZero = 600.0
    drain_s: FromZero = 10.0
    ttft_slo_s: AboveZero = 1.0
    tpot_slo_s: AboveZero = 0.2
    constants: str = "gh200"
    compiled: bool = True
    busy_poll: bool = True
    out: str | None = None
    system: Any = None
    node: Any = None
    catalog: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Validated settings as objects; `given` holds them as written."""

    given: Mapping[str, Any]
    catalog: Path | None
    host: str
    port: int
    key: str | None
    choices: int
    origins: tuple[str, ...]
    has_own_sampling: bool
    drain_s: float
    out: Path | None
    engine: EngineSettings


def register() -> None:
    """Register the schema with Hydra."""
    ConfigStore.instance().store(name="serve_schema", node=ServeConf, provider="c2c")


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """Return arguments as Hydra overrides, with paths and keys quoted.

    >>> overrides_of(["catalog=my models", "port=1"])
    ["catalog_folder='my models'", 'port=1']
    >>> overrides_of(["linear=reference"])
    ['linear_strategy=reference']
    """
    result = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        key = _GROUPS.get(name, name)
        if equals and name in _TEXTS and value not in ("null", "auto", "none"):
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            result.append(f"{key}='{quoted}'")
        else:
            result.append(f"{key}{equals}{value}")
    return result


def settings_of(cfg: DictConfig) -> Settings:
    """Validate a composed configuration and return its settings."""
    values: Any = OmegaConf.to_container(cfg, resolve=True)
    check_fields(values, "", ServeConf)
    check_value(values["linear_strategy"], Literal["staged", "reference"], "linear")
    names = [path.stem for path in (conf_dir() / "calibration").glob("*.yaml")]
    if values["constants"] not in names:
        raise unknown_name("constants", values["constants"], names)
    check_address(values)
    for origin in values["origins"]:
        if not re.fullmatch(r"\*|https?://[^\s/]+", origin):
            raise SettingError("origins", origin, "addresses such as http://localhost:3000, or *")
    executables = values["executables"] if values["executables"] != "none" else None
    if executables not in (None, "auto"):
        executables = str(Path(executables).expanduser())
        _check_store(executables)
    return Settings(
        given=values,
        catalog=_path(values["catalog_folder"]),
        host=values["host"],
        port=values["port"],
        key=values["key"],
        choices=values["choices"],
        origins=tuple(values["origins"]),
        has_own_sampling=values["sampling"] == "checkpoint",
        drain_s=values["drain_s"],
        out=_path(values["out"]),
        engine=EngineSettings(
            options=options_of(values),
            system=system_of(values["system"]),
            constants=load_constants(values["constants"]),
            gpus=() if is_over_several(values) else gpus_of(values["devices"], values["workers"]),
            executables=executables,
            pools=_path(values["pools"]),
            max_open=values["max_open"],
            retries=values["retries"],
            patience=values["patience"],
            has_spare=values["has_spare"],
            hang_s=values["hang_s"],
            start_s=values["start_s"],
            is_recorded=values["out"] is not None,
            ttft_slo_s=values["ttft_slo_s"],
            tpot_slo_s=values["tpot_slo_s"],
            compiled=values["compiled"],
            busy_poll=values["busy_poll"],
            add_from=_path(values.get("add_from")),
        ),
    )


def gpus_of(devices: Any, workers: int, *, per_worker: int = 1) -> tuple[Device, ...]:
    """Return the workers' devices; none if `devices` is null."""
    if devices is None:
        return ()
    is_list = isinstance(devices, list) and all(isinstance(uuid, str) for uuid in devices)
    if devices != "auto" and not is_list:
        raise SettingError("devices", devices, "null, auto, or a list of UUIDs")
    return pick(find_devices(), workers, devices if is_list else None, per_worker=per_worker)


def is_over_several(settings: Mapping[str, Any]) -> bool:
    """Return whether a mechanism lays models out: devices depend on checkpoints."""
    return is_by_mechanism(settings["system"].get("layout"))


def _check_store(folder: str) -> None:
    try:
        Repository(folder).make_folder()
    except RepositoryError as error:
        raise SettingError("executables", folder, f"a usable folder ({error})") from None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()


def with_context(settings: Settings, tokens: int) -> Settings:
    """Return the settings with a context of `tokens` for null."""
    if settings.given["context"] is not None:
        return settings
    values = {**settings.given, "context": tokens}
    options = replace(settings.engine.options, context=tokens)
    return replace(settings, given=values, engine=replace(settings.engine, options=options))


def options_of(settings: Mapping[str, Any]) -> Options:
    """Return the options of the workers."""
    return Options(
        workers=settings["workers"],
        rows=tuple(settings["rows"]),
        budgets=tuple(settings["budgets"]),
        # null until `with_context` sets it, once the models are known.
        context=_CONTEXT if settings["context"] is None else settings["context"],
        pool_bytes=settings["pool_bytes"],
        memory_fraction=settings.get("memory_fraction"),
        weights_bytes=settings.get("weights_bytes"),
        dtype=settings["dtype"],
        linear=settings["linear_strategy"],
        ahead=settings.get("ahead", 0),
    )


def system_of(settings: Mapping[str, Any]) -> SystemSpec:
    """Return the system without a mechanism's layout (see `laid_out`)."""
    names = [f.name for f in fields(SystemSpec)]
    for key in settings:
        if key not in names:
            check_renamed(f"system.{key}", settings[key])
            raise unknown_name(f"system.{key}", settings[key], names, key, "a key among")
    unnamed = {k for k, v in settings.items() if k in DECISIONS and v is None}
    laid = {"layout"} & settings.keys() if is_by_mechanism(settings.get("layout")) else set()
    return SystemSpec(**{k: v for k, v in settings.items() if k not in unnamed | laid})


def check_address(settings: Mapping[str, Any]) -> None:
    """Refuse a taken address, or a public one without key."""
    host, port = settings["host"], settings["port"]
    check_value(port, Annotated[int, In("[0, 65535]")], "port")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise SettingError("host", host, "an address such as 127.0.0.1 or 0.0.0.0") from None
    if not address.is_loopback and not settings["key"]:
        raise SettingError("key", settings["key"], f"a key, as {host} is not a loopback address")
    kind = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingError("port", port, f"a free port of {host} ({error.strerror})") from None
