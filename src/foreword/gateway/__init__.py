"""The HTTP gateway: OpenAI-compatible endpoints in front of workers."""
