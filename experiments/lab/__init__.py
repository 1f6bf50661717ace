"""Benchmarks, measurements on a GPU and peers."""
