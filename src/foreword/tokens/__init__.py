"""Text to token ids and back: tokenizers, their cache, chat templates, the detokenizer. Knows nothing of blocks."""
