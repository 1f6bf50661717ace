"""Requests that are sent to a server when they come, whether or not those before are answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from c2c.errors import SettingError
from experiments.bench.servers.gguf_copy import END
from experiments.bench.servers.servers import Request

__all__ = ["Mix", "check_span", "send", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Shape of the requests.

    Attributes:
      models: names, the one that is asked most first.
      zipf: exponent of the models' shares; 0: all alike.
      prompt: tokens, at least and at most.
      new: likewise, of answers.
      vocab: that all models have.
    """

    models: tuple[str, ...]
    zipf: float
    prompt: tuple[int, int]
    new: tuple[int, int]
    vocab: int


def trace(mix: Mix, requests: int, rate: float, seed: int) -> list[Request]:
    """Return requests of a Poisson process, in order of arrival.

    Args:
      mix: of the requests.
      requests: how many.
      rate: of them a second; infinite: all come at once.
      seed: of all that is drawn.
    """
    rng = np.random.default_rng(seed)
    shares = np.arange(1, len(mix.models) + 1) ** -mix.zipf
    at_s, found = 0.0, []
    for _ in range(requests):
        at_s += rng.exponential(1.0 / rate)
        model = mix.models[rng.choice(len(mix.models), p=shares / shares.sum())]
        ids = rng.integers(END + 1, mix.vocab, rng.integers(mix.prompt[0], mix.prompt[1] + 1))
        new = int(rng.integers(mix.new[0], mix.new[1] + 1))
        found.append(Request(at_s=at_s, model=model, ids=tuple(ids.tolist()), new=new))
    return found


def send[A](ask_one: Callable[[Request], A], requests: Sequence[Request]) -> tuple[list[A], float]:
    """Send requests when they come; return the answers, and seconds until the last has come.

    Args:
      ask_one: sends one and returns its answer, from several threads at once.
      requests: in order of arrival.

    Raises:
      DataError: one was answered with an error.
    """
    answers: dict[int, A] = {}
    errors: list[BaseException] = []
    began_s = time.perf_counter()

    def ask(k: int) -> None:
        try:
            answers[k] = ask_one(requests[k])
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = []
    for k, request in enumerate(requests):
        time.sleep(max(0.0, began_s + request.at_s - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(k,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [answers[k] for k in range(len(requests))], time.perf_counter() - began_s


def check_span(name: str, span: Sequence[int]) -> None:
    """Refuse what is no span of tokens.

    Raises:
      SettingError: with the setting's name.
    """
    if len(span) != 2 or not 1 <= span[0] <= span[1]:
        raise SettingError(name, list(span), "[least, most], tokens above 0")
