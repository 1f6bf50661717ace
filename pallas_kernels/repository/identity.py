"""Identity of a compiled program."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pallas_kernels.program import Program

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a program, in text; equal ones may share an executable."""

    op: str
    name: str
    arguments: tuple[str, ...]  # like "bfloat16[4096,16384] in host memory"
    choices: tuple[str, ...]  # the program's own key, like "config: Config(tm=256, ...)"
    device: str  # the vendor's name of GPU or MIG profile
    sm_count: int  # 0 where there are none
    platform: str  # runtime and compiler as jax reports them
    jax: str
    source: str  # hash of this package's source; then the program's own, if it has one

    @property
    def key(self) -> str:
        """Hash of all fields, 16 hexadecimal digits."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Return differing fields as texts "field: value of `other`, not own value"."""
        mine, theirs = asdict(self), asdict(other)
        return tuple(
            f"{field}: {theirs[field]}, not {mine[field]}"
            for field in mine
            if mine[field] != theirs[field]
        )

    def outdated(self, other: Identity) -> bool:
        """Return whether `other` differs in versions only."""
        versions = {field: getattr(self, field) for field in ("platform", "jax", "source")}
        return other != self and replace(other, **versions) == self

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Identity:
        """Return the identity with these `fields`, from `dataclasses.asdict`.

        Raises:
          KeyError: missing arguments or choices.
          TypeError: missing or superfluous fields.
        """
        lists = {name: tuple(fields[name]) for name in ("arguments", "choices")}
        return cls(**{**fields, **lists})


def identity(program: Program, device: Any) -> Identity:
    """Return `program`'s identity, compiled here for a jax device."""
    present, client = present_versions(), device.client
    return Identity(
        op=program.op,
        name=program.name,
        arguments=tuple(
            f"{a.dtype}[{','.join(map(str, a.shape))}]"
            + (" in host memory" if a.host else "")
            + (" donated" if number in program.donated else "")
            for number, a in enumerate(program.arguments)
        ),
        choices=tuple(f"{name}: {value}" for name, value in program.key),
        device=str(device.device_kind),
        sm_count=int(getattr(device, "core_count", 0) or 0) if device.platform == "gpu" else 0,
        platform=_runtime(str(client.platform), str(client.platform_version)),
        jax=present["jax"],
        source=f"{present['source']}, {program.source}" if program.source else present["source"],
    )


@functools.cache
def present_versions() -> Mapping[str, str]:
    """Return the version fields of this process's identities."""
    jax, jaxlib = (importlib.metadata.version(name) for name in ("jax", "jaxlib"))
    return {"jax": f"jax {jax}, jaxlib {jaxlib}", "source": source_hash()}


@functools.cache
def source_hash() -> str:
    """Return a hash of all modules of this package."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _runtime(name: str, version: str) -> str:
    text = f"{name}: {' '.join(version.split())}"
    if name != "cpu":
        return text
    # Code for a CPU uses what that CPU has; the features stand in one line of cpuinfo.
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8", "replace").splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    features = hashlib.sha256(flags.encode()).hexdigest()[:8]
    return f"{text} on {platform.machine()}, features {features}"
