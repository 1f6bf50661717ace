"""One simulated run as a folder: execution, console output, points of a sweep."""

from experiments.simulation.execute import Outcome, execute, finished, folder_of

__all__ = ["Outcome", "execute", "finished", "folder_of"]
