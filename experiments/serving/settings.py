"""Settings of `experiments.serve`, checked before anything is started."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

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
    """The settings as written.

    Attributes:
      catalog_folder: `catalog=` on the command line; checkpoints (folders with a config.json
        in them, or GGUF files), folders of those, Hugging Face's cache, or one checkpoint; null
        for SmolLM2, fetched once.
      host: address to listen at; any but this machine's own needs a key.
      port: to listen at; 0 for any.
      key: that requests must bear; null: none.
      workers: processes that compute, each a device of the fleet.
      devices: null: workers see what jax finds; auto: each is bound to a GPU or MIG instance of its
        own, as NVML lists them; or a list of their UUIDs.
      rows: row classes of a step; the last is the most requests of a model at the same time.
      budgets: prompt tokens of one call.
      context: tokens of a request at most, where the model's own context is not shorter; null: the
        longest of the models' own.
      pool_bytes: keys and values of each worker; null: what all rows of all models take, at most a
        quarter of the memory for all workers.
      memory_fraction: instead of pool_bytes: share of the memory that a worker may have (its
        device's, or its part of the host's); keys and values get what is left of it, measured
        once and kept beside the executables.
      weights_bytes: host memory for weights: models beyond it are loaded when they are asked for,
        and others give way; null: all models of the catalog fit.
      dtype: of parameters, activations, keys and values.
      linear_strategy: `linear=` on the command line; staged (weights once for all workers) or
        reference (a copy for each).
      ahead: 1: a worker begins the next of several decode steps before it reads the tokens of the
        last; a prompt that comes in meanwhile waits for one step more.
      executables: folder of compiled code, or auto.
      pools: folder of weights in the form that workers map; null: one that ends with the command.
      add_from: folder of checkpoints that `POST /v1/models` may add while the engine serves, and
        `DELETE /v1/models/<name>` may remove any; null: models are those of the catalog.
      sampling: what draws as a request does not say: neutral, or checkpoint (temperature, top_p,
        top_k, min_p and repetition_penalty of its generation_config.json).
      choices: of all prompts of one request (`n` times their number); more get 400.
      max_open: requests at the same time; further ones get 429.
      retries: losses of workers in a row, without a token between, that a request survives.
      patience: processes in a row that did nothing after which a worker is given up.
      has_spare: whether a process stands by to take the place of a lost one.
      hang_s: silence after which a worker that computes is killed.
      start_s: silence after which a worker that is not ready yet is killed; it may compile.
      drain_s: how long requests may go on after SIGTERM.
      ttft_slo_s: target that policies see.
      tpot_slo_s: likewise.
      constants: of the cost model by which policies predict, `conf/calibration`.
      busy_poll: whether the scheduler looks for a worker's report shortly before and after it
        is due, in place of sleeping, as long as nobody else wants the core; false: it sleeps.
      out: folder for what was served, and in which steps; null: nothing is kept.
      compiled: whether the loop's step is run as machine code, which is made in the background
        where there is none yet; false: interpreted, where a debugger can look.
      system: as the simulator's, `conf/system`; with a layout, each worker has as many devices as
        the node has GPUs that it lies over.
      node: of such a system, `conf/node`: what policies predict by.
      catalog: the simulator's, which such a system names; nothing is read from it.
    """

    catalog_folder: str | None = None
    host: str = "127.0.0.1"
    port: int = 8123
    key: str | None = None
    workers: int = 1
    devices: Any = None
    rows: list[int] = field(default_factory=lambda: [1, 8])
    budgets: list[int] = field(default_factory=lambda: [64, 256])
    context: int | None = _CONTEXT
    pool_bytes: int | None = None
    memory_fraction: float | None = None
    weights_bytes: int | None = None
    dtype: str = "float32"
    linear_strategy: str = "staged"
    ahead: int = 1
    executables: str | None = "auto"
    pools: str | None = None
    add_from: str | None = None
    sampling: str = "neutral"
    choices: int = 2048
    max_open: int = 1024
    retries: int = 3
    patience: int = 20
    has_spare: bool = True
    hang_s: float = 60.0
    start_s: float = 600.0
    drain_s: float = 10.0
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.2
    constants: str = "gh200"
    compiled: bool = True
    busy_poll: bool = True
    out: str | None = None
    system: Any = None
    node: Any = None
    catalog: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings as objects; `given` as they were written."""

    given: Mapping[str, Any]
    catalog: Path | None
    host: str
    port: int
    key: str | None
    choices: int
    has_own_sampling: bool
    drain_s: float
    out: Path | None
    engine: EngineSettings


def register() -> None:
    """Tell Hydra the schema."""
    ConfigStore.instance().store(name="serve_schema", node=ServeConf, provider="c2c")


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """Return arguments as Hydra takes them: paths and keys as they are, whatever is in them.

    >>> overrides_of(["catalog=my models", "port=1"])
    ["catalog_folder='my models'", 'port=1']
    >>> overrides_of(["linear=reference"])
    ['linear_strategy=reference']
    """
    found = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        own = _GROUPS.get(name, name)
        if equals and name in _TEXTS and value not in ("null", "auto", "none"):
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            found.append(f"{own}='{quoted}'")
        else:
            found.append(f"{own}{equals}{value}")
    return found


def settings_of(cfg: DictConfig) -> Settings:
    """Return the settings of a composed configuration.

    Raises:
      SettingError: one cannot work.
    """
    given: Any = OmegaConf.to_container(cfg, resolve=True)
    for name, least in (("choices", 1), ("max_open", 1), ("retries", 0), ("patience", 1)):
        if given[name] < least:
            raise SettingError(name, given[name], f"a whole number from {least}")
    for name in ("hang_s", "start_s", "ttft_slo_s", "tpot_slo_s"):
        if not 0 < given[name] < float("inf"):
            raise SettingError(name, given[name], "seconds above 0")
    if not 0 <= given["drain_s"] < float("inf"):
        raise SettingError("drain_s", given["drain_s"], "seconds from 0")
    if given["dtype"] not in _DTYPES:
        raise SettingError("dtype", given["dtype"], f"one of {', '.join(_DTYPES)}")
    if given["linear_strategy"] not in ("staged", "reference"):
        raise SettingError("linear", given["linear_strategy"], "staged or reference")
    if given["sampling"] not in ("neutral", "checkpoint"):
        raise SettingError("sampling", given["sampling"], "neutral or checkpoint")
    names = [path.stem for path in (conf_dir() / "calibration").glob("*.yaml")]
    if given["constants"] not in names:
        raise unknown_name("constants", given["constants"], names)
    check_address(given)
    executables = given["executables"] if given["executables"] != "none" else None
    if executables not in (None, "auto"):
        executables = str(Path(executables).expanduser())
        _check_store(executables)
    return Settings(
        given=given,
        catalog=_path(given["catalog_folder"]),
        host=given["host"],
        port=given["port"],
        key=given["key"],
        choices=given["choices"],
        has_own_sampling=given["sampling"] == "checkpoint",
        drain_s=given["drain_s"],
        out=_path(given["out"]),
        engine=EngineSettings(
            options=options_of(given),
            system=system_of(given["system"]),
            constants=load_constants(given["constants"]),
            gpus=() if is_over_several(given) else gpus_of(given["devices"], given["workers"]),
            executables=executables,
            pools=_path(given["pools"]),
            max_open=given["max_open"],
            retries=given["retries"],
            patience=given["patience"],
            has_spare=given["has_spare"],
            hang_s=given["hang_s"],
            start_s=given["start_s"],
            is_recorded=given["out"] is not None,
            ttft_slo_s=given["ttft_slo_s"],
            tpot_slo_s=given["tpot_slo_s"],
            compiled=given["compiled"],
            busy_poll=given["busy_poll"],
            add_from=_path(given.get("add_from")),
        ),
    )


def gpus_of(devices: Any, workers: int, *, each: int = 1) -> tuple[Device, ...]:
    """Return the devices that workers are bound to, so many to each; none where none are asked for.

    Raises:
      SettingError: there are too few, or one is unknown.
    """
    if devices is None:
        return ()
    is_list = isinstance(devices, list) and all(isinstance(uuid, str) for uuid in devices)
    if devices != "auto" and not is_list:
        raise SettingError("devices", devices, "null, auto, or a list of UUIDs")
    return pick(find_devices(), workers, devices if is_list else None, each=each)


def is_over_several(given: Mapping[str, Any]) -> bool:
    """Return whether how many devices a worker has is known with the checkpoints only."""
    return is_by_mechanism(given["system"].get("layout"))


def _check_store(folder: str) -> None:
    try:
        Repository(folder).make_folder()
    except RepositoryError as error:
        raise SettingError("executables", folder, f"a folder that can be used ({error})") from None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()


def with_context(settings: Settings, tokens: int) -> Settings:
    """Return the settings with the context that models have, where none was given."""
    if settings.given["context"] is not None:
        return settings
    given = {**settings.given, "context": tokens}
    options = replace(settings.engine.options, context=tokens)
    return replace(settings, given=given, engine=replace(settings.engine, options=options))


def options_of(given: Mapping[str, Any]) -> Options:
    """Return the workers' part of the settings."""
    return Options(
        workers=given["workers"],
        rows=tuple(given["rows"]),
        budgets=tuple(given["budgets"]),
        # null: `with_context` says it once the models are known.
        context=_CONTEXT if given["context"] is None else given["context"],
        pool_bytes=given["pool_bytes"],
        memory_fraction=given.get("memory_fraction"),
        weights_bytes=given.get("weights_bytes"),
        dtype=given["dtype"],
        linear=given["linear_strategy"],
        ahead=given.get("ahead", 0),
    )


def system_of(given: Mapping[str, Any]) -> SystemSpec:
    """Return who decides, without a layout that a mechanism makes; see `laid_out`.

    Raises:
      SettingError: an unknown key.
    """
    known = [f.name for f in fields(SystemSpec)]
    for key in given:
        if key not in known:
            check_renamed(f"system.{key}", given[key])
            raise unknown_name(f"system.{key}", given[key], known, key, "a key among")
    unnamed = {k for k, v in given.items() if k in DECISIONS and v is None}
    laid = {"layout"} & given.keys() if is_by_mechanism(given.get("layout")) else set()
    return SystemSpec(**{k: v for k, v in given.items() if k not in unnamed | laid})


def check_address(given: Mapping[str, Any]) -> None:
    """Refuse an address that nobody can listen at, or anybody can reach without a key.

    Args:
      given: host, port and key.

    Raises:
      SettingError: one of them cannot work.
    """
    host, port = given["host"], given["port"]
    if not 0 <= port < 65536:
        raise SettingError("port", port, "a number from 0 to 65535")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise SettingError("host", host, "an address such as 127.0.0.1 or 0.0.0.0") from None
    if not address.is_loopback and not given["key"]:
        raise SettingError("key", given["key"], f"a key, as anybody may reach {host}")
    kind = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingError(
                "port", port, f"one that is free at {host} ({error.strerror})"
            ) from None
