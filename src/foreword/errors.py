"""Every error Foreword raises on purpose.

    ForewordError
    ├── ConfigError (ValueError)              a flag, variable, TOML key or file is wrong
    ├── TokenizerError (ValueError)           text cannot become ids, or ids text
    │   ├── TokenizerNotFound (LookupError)   no tokenizer by that name or at that path
    │   ├── SpecialTokenNotAllowed            the text holds a special token the caller disallowed
    │   └── InputTooLarge                     the text is over a limit
    ├── TemplateError (ValueError)            a chat template refuses these messages, or is not one
    ├── ModelError (RuntimeError)             weights cannot be loaded
    │   ├── ModelNotFound (LookupError)       no model by that name or at that path
    │   └── ModelFetchError (OSError)         a download failed or has the wrong digest
    ├── RequestError (ValueError)             a request asks for what cannot be done
    │   ├── ContextOverflow                   prompt and answer do not fit the model's context
    │   └── PromptExceedsCache                the prompt's KV can never fit the blocks there are
    ├── WorkerError (RuntimeError)            a worker failed
    │   └── WorkerUnavailable                 no worker can take the request now
    └── IntegrityError (RuntimeError)         a data structure contradicts itself: a fault in Foreword or its caller

Each also inherits the builtin that fits, so ``except ValueError`` works for callers who know nothing of Foreword.
``str(error)`` is one sentence on what is wrong and, where there is a remedy, one on what to do. The evidence is in
``error.evidence``.
"""

from __future__ import annotations

from typing import Any


class ForewordError(Exception):
    """Something is wrong; the message says what, ``hint`` what to do, ``evidence`` what was seen."""

    def __init__(self, message: str, *, hint: str = "", **evidence: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.evidence = evidence

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class ConfigError(ForewordError, ValueError):
    """A flag, environment variable, TOML key or configuration file is wrong."""


class TokenizerError(ForewordError, ValueError):
    """Text cannot be turned into ids, or ids into text."""


class TokenizerNotFound(TokenizerError, LookupError):
    """No tokenizer by that name or at that path."""


class SpecialTokenNotAllowed(TokenizerError):
    """The text holds a special token that the caller disallowed."""


class InputTooLarge(TokenizerError):
    """The text is over a limit; ``evidence`` has ``limit`` and ``size``."""


class TemplateError(ForewordError, ValueError):
    """A chat template refuses these messages, or is no chat template."""


class ModelError(ForewordError, RuntimeError):
    """Weights cannot be loaded."""


class ModelNotFound(ModelError, LookupError):
    """No model by that name or at that path."""


class ModelFetchError(ModelError, OSError):
    """A download failed, or what came has the wrong digest."""


class RequestError(ForewordError, ValueError):
    """A request asks for what cannot be done."""


class ContextOverflow(RequestError):
    """Prompt and answer do not fit the context; ``evidence`` has ``prompt_tokens`` and ``max_model_len``."""


class PromptExceedsCache(RequestError):
    """The prompt's KV can never fit; ``evidence`` has ``prompt_tokens`` and ``capacity``, in tokens."""


class WorkerError(ForewordError, RuntimeError):
    """A worker failed."""


class WorkerUnavailable(WorkerError):
    """No worker can take the request now; ``evidence`` may have ``retry_after`` in seconds."""


class IntegrityError(ForewordError, RuntimeError):
    """A data structure contradicts itself, or was used against its rules: a fault in Foreword or in its caller."""
