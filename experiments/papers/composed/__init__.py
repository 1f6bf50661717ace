"""Mechanisms of several papers in one system."""
