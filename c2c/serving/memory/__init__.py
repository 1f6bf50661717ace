"""HBM and host memory of devices: KV caches, prefixes, adapters, kept weights."""
