"""The papers' experiments and figures, one folder a paper."""
