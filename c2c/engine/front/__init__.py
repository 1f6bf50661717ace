"""OpenAI's API over HTTP, as a process of its own: JSON and detokenising never delay a step."""
