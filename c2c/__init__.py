"""c2c: serve many LLMs on GPUs whose weights live in host memory."""

__version__ = "0.1.0"
