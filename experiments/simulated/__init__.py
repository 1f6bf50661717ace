"""OpenAI's API with simulated times: for gateways and autoscalers, without GPUs."""
