"""Requests that come: blocks by group."""
