"""Traces of requests: reading them, and replaying them through caches and policies."""
