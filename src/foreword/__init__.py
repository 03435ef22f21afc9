"""Foreword: prefix caching for large language models, exact from text to tokens to blocks to bill."""

__version__ = "0.1.0"

__all__ = ["__version__"]
