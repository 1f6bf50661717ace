"""Benchmarks, measurements on a GPU and peers: for developers of c2c."""
