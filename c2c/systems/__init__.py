"""Mechanisms of other systems, each a package that composes what lies below."""
