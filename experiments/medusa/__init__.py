"""MEDUSA: start-up state captured once and restored anywhere (Zeng et al., ASPLOS 2025)."""
