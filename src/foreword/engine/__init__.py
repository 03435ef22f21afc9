"""The embedded CPU engine: a real decoder-only model in numpy."""
