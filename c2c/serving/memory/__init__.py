"""HBM and host memory of devices."""
