"""Other servers by name: their Python environments and commands to install them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from experiments.bench.servers.gguf_copy import write_gguf
from experiments.bench.servers.hf_transformers import Transformers
from experiments.bench.servers.llama_cpp import LlamaCpp
from experiments.bench.servers.servers import Server
from experiments.bench.servers.swapper import Given
from experiments.bench.servers.vllm_cpu import Vllm

__all__ = ["PEERS", "Peer", "installed", "version_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another server and its Python environment.

    Attributes:
      setting: setting of the benchmark with the path of its Python.
      package: package that this Python needs.
      make: command that makes the environment.
      server: function that returns the server, not started.
    """

    setting: str
    package: str
    make: str
    server: Callable[[Given], Server]


def _llama_cpp(given: Given) -> LlamaCpp:
    files = {
        name: write_gguf(folder, given.folder / f"{name}.gguf")
        for name, folder in given.models.items()
    }
    return LlamaCpp(replace(given, models=files))


PEERS = {
    "llama.cpp": Peer(
        setting="llama_cpp", package="xllamacpp", make="make peer-server", server=_llama_cpp
    ),
    "transformers": Peer(
        setting="transformers", package="transformers", make="make peer", server=Transformers
    ),
    "vllm": Peer(setting="vllm", package="vllm-cpu", make="make peer-vllm", server=Vllm),
}


def installed(settings: object) -> list[str]:
    """Return the names of the servers whose Python, as set in `settings`, exists."""
    return [name for name, peer in PEERS.items() if Path(getattr(settings, peer.setting)).is_file()]


def version_of(peer: Peer, python: Path) -> str | None:
    """Return the version of a server's package in an environment, or None if it is missing."""
    places = [str(place) for place in python.parent.parent.glob("lib/python*/site-packages")]
    found = metadata.distributions(name=peer.package, path=places)
    return next((each.version for each in found), None)
