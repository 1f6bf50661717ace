"""OpenAI-compatible API in a separate process: JSON never delays a step."""
