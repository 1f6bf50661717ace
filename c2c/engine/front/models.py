"""Endpoints of `/v1/models`: list, add and remove models while the engine serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, Field

from c2c.engine.front.failures import ApiError, after_end, without_paths
from c2c.engine.front.link import Link
from c2c.engine.front.served import shown
from c2c.engine.messages import Managed, ModelInfo

__all__ = ["ManageRequest", "Models", "unknown_model"]

_MOST_NAME = 64  # characters of a client's model name in errors
_PLAIN = r"^[^\x00-\x1f\x7f-\x9f]*$"  # no control characters


class AddRequest(BaseModel):
    """Body of POST /v1/models."""

    path: str = Field(
        min_length=1,
        max_length=4096,
        pattern=_PLAIN,
        description="folder or GGUF file of a checkpoint, within the folder `add_from`",
    )
    model: str = Field(
        "",
        max_length=256,
        pattern=_PLAIN,
        description="name of the model; by default that of the folder or file",
    )


class ManageRequest(BaseModel):
    """Body of /admin/load, unload, pin and unpin."""

    model: str


class Models:
    """Endpoints of `/v1/models`."""

    def __init__(self, link: Link, read: Callable[[Sequence[ModelInfo]], None]) -> None:
        """Create the endpoints.

        Args:
          link: link to the scheduler.
          read: loads the tokenizers of added models.
        """
        self._link, self._read = link, read

    async def all(self) -> dict[str, Any]:
        """List all models; those that cannot be served have a reason."""
        return {"object": "list", "data": [shown(info) for info in self._link.models]}

    async def one(self, model: str) -> dict[str, Any]:
        """Return the description of a model."""
        for info in self._link.models:
            if info.name == model:
                return shown(info)
        raise unknown_model(model)

    async def add(self, asked: AddRequest) -> dict[str, Any]:
        """Add a checkpoint; answered once it is served."""
        self._check_adds()
        try:
            done = await self._link.add(asked.path, asked.model)
        except ConnectionError as error:
            raise after_end("gone") from error
        _check(done, asked.path)
        info = next((info for info in self._link.models if info.name == done.model), None)
        if info is None:
            raise after_end("model_gone")  # it was removed since
        await asyncio.to_thread(self._read, [info])
        return shown(info)

    async def remove(self, model: str) -> dict[str, Any]:
        """Remove a model; answered once its requests have ended. New ones get 404."""
        self._check_adds()
        if model not in {info.name for info in self._link.models}:
            raise unknown_model(model)
        try:
            done = await self._link.remove(model)
        except ConnectionError as error:
            raise after_end("gone") from error
        _check(done, model)
        return {"id": model, "object": "model", "deleted": True}

    def _check_adds(self) -> None:
        if not self._link.adds:
            raise ApiError(
                403, "adding and removing models is disabled (the setting add_from is null)"
            )


def unknown_model(model: str) -> ApiError:
    """Return the error of a model that is not served."""
    return ApiError(
        404,
        f"the model {model[:_MOST_NAME]!r} does not exist",
        param="model",
        code="model_not_found",
    )


def _check(done: Managed, path: str) -> None:
    """Check the result of an addition or removal."""
    if not done.refused:
        return
    raise ApiError(done.status, without_paths(done.refused, path), param=done.param or None)
