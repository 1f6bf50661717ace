"""One simulated run as a folder: execution, what is printed, how often it is repeated."""

from experiments.simulation.execute import Outcome, execute, folder_of

__all__ = ["Outcome", "execute", "folder_of"]
