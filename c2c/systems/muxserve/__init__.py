"""MuxServe: models on shares of a GPU's SMs, with one room for KV caches."""

from c2c.systems.muxserve.layout import SYSTEM, Muxing, muxed_layout
from c2c.systems.muxserve.placement import Served, placed

__all__ = ["SYSTEM", "Muxing", "Served", "muxed_layout", "placed"]
