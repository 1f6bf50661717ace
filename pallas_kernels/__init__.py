"""GPU kernels over weights in host memory; imports nothing of c2c."""
