"""Requests that come: blocks by group, sessions, closed loops of clients."""
