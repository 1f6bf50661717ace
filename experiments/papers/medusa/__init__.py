"""MEDUSA: start-up state captured once, restored by later starts (Zeng et al., ASPLOS 2025)."""
