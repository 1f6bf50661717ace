"""OpenAI's API with simulated times."""
