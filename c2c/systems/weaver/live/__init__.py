"""WEAVER on live models."""
