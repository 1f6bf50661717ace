"""Trial builds of grammars, in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

from c2c.engine.front.failures import invalid, overloaded
from c2c.engine.front.trial import MOST_BYTES, MOST_CPU_S

__all__ = ["MOST_CHARACTERS", "Trials"]

MOST_CHARACTERS = 1 << 20
"""Most characters of a grammar, in llguidance's form."""

_MOST_S = 10.0  # for a trial on a machine that is too busy for MOST_CPU_S
_WAIT_S = 2.0  # for earlier trials
_KNOWN = 256  # results that are kept


class Trials:
    """Trial builds, one at a time."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._known: dict[bytes, str] = {}  # faults by digests

    async def check(self, grammar: str, param: str) -> None:
        """Check that a worker can build a grammar."""
        if len(grammar) > MOST_CHARACTERS:
            raise invalid(param, f"{len(grammar)} characters, expected at most {MOST_CHARACTERS}")
        key = hashlib.blake2b(grammar.encode(errors="surrogatepass")).digest()
        if key in self._known:
            why = self._known[key]
        else:
            try:
                await asyncio.wait_for(self._lock.acquire(), _WAIT_S)
            except TimeoutError:
                raise overloaded(f"{param}: too many new grammars") from None
            try:  # another request may have had it tried since
                why = self._known[key] if key in self._known else await self._tried(grammar, key)
            finally:
                self._lock.release()
        if why:
            raise invalid(param, why)

    async def _tried(self, grammar: str, key: bytes) -> str:
        try:
            if self._process is not None and self._process.returncode is not None:
                await self.close()  # it was ended from outside
            if self._process is None:
                command = (sys.executable, "-m", "c2c.engine.front.trial")
                self._process = await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
                )
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(grammar).encode() + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), _MOST_S)
            result: str = json.loads(line)
        except (TimeoutError, ValueError):
            await self.close()
            return (
                f"it takes more than {MOST_CPU_S} s or {MOST_BYTES >> 20} MiB to build, or nests "
                "too deeply; expected a smaller grammar"
            )
        except OSError as error:
            raise overloaded(f"no grammar can be tried: {error.strerror}") from None
        except BaseException:
            await self.close()  # its answer would be taken for the next one's
            raise
        self._known[key] = result
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return result

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                process.kill()
            await process.communicate()
