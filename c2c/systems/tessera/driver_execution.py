"""Execution of a placed program by the CUDA driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from c2c.errors import SettingError
from c2c.systems.program import Allocator, CopyCall, Peer, Program, Recorder, Running, Slice
from c2c.systems.tessera.schedule import Schedule, Send, schedule
from c2c.systems.tessera.touches import Touch

__all__ = ["StepGraphs", "running_on"]


def running_on(device: Peer, program: Program) -> Running:
    """Return a program with memory and kernels on a device.

    Raises:
      SettingError: a hidden kernel.
    """
    device.enter()
    recorder = Recorder(device, Allocator(device))
    running = Running(program, recorder, _no_library)
    running.start()
    for number in range(len(program.kernels)):
        device.ensure_loaded(running.function(number))
    return running


def _no_library(kernel: object) -> int:
    raise SettingError("kernel", kernel, "a kernel with an image, not one that a library hides")


@dataclass(slots=True)
class StepGraphs:
    """A placement captured as CUDA graphs over streams.

    Attributes:
      devices: by number, with memory for the whole program.
      schedule: segments and sends.
    """

    devices: Sequence[Peer]
    running: Sequence[Running]
    schedule: Schedule
    _graphs: list[int] = field(default_factory=list)
    _events: list[int] = field(default_factory=list)  # ends of the step before

    @classmethod
    def capture(
        cls,
        running: Sequence[Running],
        devices: Sequence[Peer],
        touches: Sequence[Touch],
        gpu_of: Sequence[int],
        carried: Sequence[Slice] = (),
    ) -> StepGraphs:
        """Return a placement with a graph for each segment.

        Args:
          gpu_of: each launch's device.
          carried: slices for the next step.

        Raises:
          SettingError: another length, or an unknown device.
        """
        plan = schedule(
            touches, gpu_of, len(devices), outputs=running[0].program.outputs, carried=carried
        )
        launched = cls(devices, running, plan)
        for segment in plan.segments:
            device, here = devices[segment.gpu], running[segment.gpu]
            device.enter()
            device.begin_capture()
            for number in segment.launches:
                here.launch(number)
            graph = device.end_capture()
            executable = device.instantiate(graph)
            device.destroy_graph(graph)
            device.upload(executable)
            launched._graphs.append(executable)
        for device in devices:
            device.enter()
            device.synchronise()
        return launched

    def start(self) -> None:
        """Start a step after the one before, without waiting."""
        for event in self._events:  # no device begins before the last step has ended on all
            for device in self.devices:
                device.wait(event)
        self._forget()
        ended: list[int] = []
        received: dict[int, int] = {}  # by segment
        for number, segment in enumerate(self.schedule.segments):
            device = self.devices[segment.gpu]
            for reader in segment.holds:
                device.wait(received[reader])
            for send in segment.sends:
                device.wait(ended[send.after])
                self._send(send)
            if segment.sends:
                received[number] = device.record()
            device.enter()
            device.launch_graph(self._graphs[number])
            ended.append(device.record())
        for send in self.schedule.last:
            self.devices[send.target].wait(ended[send.after])
            self._send(send)
        self._events = [device.record() for device in self.devices]
        for device, event in zip(self._owners(received), [*ended, *received.values()], strict=True):
            device.forget(event)

    def run(self) -> None:
        """Run a step and wait for its end."""
        self.start()
        self.synchronise()

    def synchronise(self) -> None:
        """Wait for all started steps."""
        for device in self.devices:
            device.enter()
            device.synchronise()

    def close(self) -> None:
        """Wait for all steps and destroy graphs and events."""
        self.synchronise()
        self._forget()
        for segment, graph in zip(self.schedule.segments, self._graphs, strict=True):
            self.devices[segment.gpu].enter()
            self.devices[segment.gpu].destroy_executable(graph)
        self._graphs = []

    def _owners(self, received: dict[int, int]) -> list[Peer]:
        gpus = [segment.gpu for segment in self.schedule.segments]
        return [self.devices[gpu] for gpu in [*gpus, *(gpus[number] for number in received)]]

    def _send(self, send: Send) -> None:
        there, here = self.running[send.source], self.running[send.target]
        call = CopyCall(here.at(send.part), there.at(send.part), send.part.nbytes)
        self.devices[send.target].receive(call, self.devices[send.source])

    def _forget(self) -> None:
        for device, event in zip(self.devices, self._events, strict=False):
            device.forget(event)
        self._events = []
