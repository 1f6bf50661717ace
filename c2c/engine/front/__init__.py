"""OpenAI-compatible API over HTTP, in a separate process so that JSON never delays a step."""
