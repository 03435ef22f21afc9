"""The embedded CPU engine: a Llama-architecture decoder in numpy with continuous batching."""

from foreword.engine.async_llm import AsyncLLM
from foreword.engine.llm import LLM, EngineConfig, LLMEngine

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "LLMEngine"]
