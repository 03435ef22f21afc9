"""Prefix-cache misses met in the field, as inputs with invented content: see ``catalogue``."""
