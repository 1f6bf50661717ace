"""OpenAI's API with simulated times, to test gateways and autoscalers without GPUs."""
