"""Open-loop traffic: requests are sent at their arrival times, whatever is still unanswered."""

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
    """Distribution of the requests.

    Attributes:
      models: names of the models, the most popular first.
      zipf: Zipf exponent of the models' popularity; 0: uniform.
      prompt: tokens of a prompt, at least and at most.
      new: tokens of an answer, at least and at most.
      vocab: vocabulary size that all models have.
    """

    models: tuple[str, ...]
    zipf: float
    prompt: tuple[int, int]
    new: tuple[int, int]
    vocab: int


def trace(mix: Mix, requests: int, rate: float, seed: int) -> list[Request]:
    """Return requests of a Poisson process, in order of arrival.

    Args:
      mix: distribution of the requests.
      requests: number of requests.
      rate: requests a second; infinite: all arrive at once.
      seed: seed of arrivals, models, lengths and token ids.
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
    """Send requests at their arrival times; return the answers and the seconds until the last.

    Args:
      ask_one: function that sends a request and returns its answer, called from several threads.
      requests: requests in order of arrival.

    Raises:
      DataError: a request was answered with an error.
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
    """Check that a setting is a span of tokens, [least, most].

    Raises:
      SettingError: the span is empty, starts below 1 or is no pair; the error names the setting.
    """
    if len(span) != 2 or not 1 <= span[0] <= span[1]:
        raise SettingError(name, list(span), "[least, most], tokens above 0")
