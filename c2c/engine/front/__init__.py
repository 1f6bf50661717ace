"""OpenAI-compatible API in a separate process, so that JSON never delays a step."""
