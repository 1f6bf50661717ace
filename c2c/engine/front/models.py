"""Endpoints of `/v1/models`: list, add, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from c2c.engine import messages as say
from c2c.engine.front.failures import ApiError, after_end, without_paths
from c2c.engine.front.link import Link
from c2c.engine.front.served_model import shown

__all__ = ["Models"]

_MOST_NAME = 64  # characters of a client's model name in errors
_PLAIN = r"^[^\x00-\x1f\x7f-\x9f]*$"  # no control characters


class AddRequest(BaseModel):
    """Body of POST /v1/models."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    path: str = Field(min_length=1, max_length=4096, pattern=_PLAIN)
    """Folder or GGUF file of a checkpoint, within the folder `add_from`."""
    model: str = Field("", max_length=256, pattern=_PLAIN)
    """Name of the model; by default that of the folder or file."""


class ManageRequest(BaseModel):
    """Body of /admin/load, unload, pin and unpin."""

    model: str


class Models:
    """Endpoints of `/v1/models`."""

    def __init__(self, link: Link, read: Callable[[Sequence[say.ModelInfo]], None]) -> None:
        """Create the endpoints; `read` loads added models' tokenizers."""
        self._link, self._read = link, read

    async def all(self) -> dict[str, Any]:
        """List all models, failed ones with a reason."""
        return {"object": "list", "data": [shown(info) for info in self._link.models]}

    async def one(self, model: str) -> dict[str, Any]:
        """Return a model's description."""
        return shown(self.info(model))

    def info(self, model: str) -> say.ModelInfo:
        """Return a model, which may have failed."""
        info = next((info for info in self._link.models if info.name == model), None)
        if info is None:
            why = f"the model {model[:_MOST_NAME]!r} does not exist"
            raise ApiError(404, why, param="model", code="model_not_found")
        return info

    async def add(self, body: AddRequest) -> dict[str, Any]:
        """Add a checkpoint; answered once it is served."""
        self._check_adds()
        done = await self._link.command(say.Add, path=body.path, model=body.model)
        _check(done, body.path)
        info = next((info for info in self._link.models if info.name == done.model), None)
        if info is None:
            raise after_end("model_gone")  # it was removed since
        await asyncio.to_thread(self._read, [info])
        return shown(info)

    async def remove(self, model: str) -> dict[str, Any]:
        """Remove a model, answered once its requests have ended."""
        self._check_adds()
        self.info(model)
        _check(await self._link.command(say.Remove, model=model), model)
        return {"id": model, "object": "model", "deleted": True}

    def managing(self, action: str) -> Callable[[ManageRequest], Awaitable[dict[str, str]]]:
        """Return an admin endpoint for a model's weights."""

        async def manage(body: ManageRequest) -> dict[str, str]:
            info = self.info(body.model)
            done = await self._link.command(say.Manage, model=body.model, what=action)
            if done.refused:
                why = without_paths(done.refused, info.path)
                raise ApiError(409, f"{body.model}: {why}", param="model", code="conflict")
            return {"status": "ok"}

        return manage

    def _check_adds(self) -> None:
        if not self._link.adds:
            why = "adding and removing models is disabled (the setting add_from is null)"
            raise ApiError(403, why)


def _check(reply: say.Managed, path: str) -> None:
    if reply.refused:
        raise ApiError(reply.status, without_paths(reply.refused, path), param=reply.param or None)
