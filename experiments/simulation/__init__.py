"""One simulated run as a folder."""

from experiments.simulation.execute import CODE, Outcome, code_keys, execute, finished, folder_of

__all__ = ["CODE", "Outcome", "code_keys", "execute", "finished", "folder_of"]
