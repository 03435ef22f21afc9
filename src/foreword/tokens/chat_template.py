"""Messages to prompt text, as Hugging Face's ``apply_chat_template`` renders them, and how stable that is as a prefix."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes

from foreword.errors import TemplateError
from foreword.tokens.template_sandbox import (
    MAX_STEPS,
    Spans,
    TemplateEnvironment,
    check_characters,
    generation_spans,
    steps_left,
)

Message = Mapping[str, Any]
"""One message: role, content and whatever else the template reads; JSON values only."""

MAX_SOURCE = 1 << 20
"""Bytes of a template."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names of tokenizer_config.json that templates may read."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_MARK "


def _local_now() -> datetime:
    """The clock of ``strftime_now``: local time, as Hugging Face has it."""
    return datetime.now()  # noqa: DTZ005 - templates mean the reader's day


@functools.lru_cache(maxsize=64)
def _compile(source: str, now: Callable[[], datetime]) -> tuple[jinja2.Template, bool]:
    """The compiled template, and whether it reads the clock."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"The chat template has {len(source):,} characters, more than {MAX_SOURCE:,}.")
    environment = TemplateEnvironment(now)
    try:
        names = {name.name for name in environment.parse(source).find_all(nodes.Name)}
        return environment.from_string(source), "strftime_now" in names
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise TemplateError(f"The chat template is not valid Jinja{line}: {error}.") from error


class ChatTemplate:
    """A model's chat template. Immutable; threads may share it.

    Args:
        source: the Jinja text, or several by name ("default", "tool_use", ...).
        special_tokens: what ``bos_token`` and its like stand for in the template.
        now: the clock that ``strftime_now`` reads.

    Raises:
        TemplateError: it is no template.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = _local_now,
    ) -> None:
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self.special_tokens = dict(special_tokens or {})
        self._compiled = {name: _compile(text, now) for name, text in self.sources.items()}
        if not self.sources:
            raise TemplateError("There is no chat template.")

    @property
    def source(self) -> str:
        """The Jinja text of the default template, or of the first when none is named so."""
        return self.sources.get("default") or next(iter(self.sources.values()))

    @functools.cached_property
    def digest(self) -> str:
        """Identity: SHA-256, in hex, over every source and the special tokens."""
        content = json.dumps([sorted(self.sources.items()), sorted(self.special_tokens.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def reads_clock(self) -> bool:
        """Whether a rendering depends on the day, so that prefixes change at midnight."""
        return any(clock for _, clock in self._compiled.values())

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text.

        Args:
            messages: the conversation, oldest first; keys whose value is None count as absent.
            tools: JSON schemas; with tools the template named "tool_use" is taken where there is one.
            documents: for templates that retrieve.
            add_generation_prompt: end with the head of an assistant message.
            continue_final_message: leave the last message open, for the model to go on with it.
            template: the name of a template.
            variables: whatever else the template reads; they come before special tokens of the same name.

        Raises:
            TemplateError: the template refuses these messages or cannot render them.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError("A final message cannot be continued and a new one begun at once.")
        plain = [_plain(message) for message in messages]
        if not plain:
            raise TemplateError("There are no messages to render.")
        open_text = _mark_final(plain[-1]) if continue_final_message else None
        names = {
            **self.special_tokens,
            **variables,
            "messages": plain,
            "tools": list(tools) if tools is not None else None,
            "documents": list(documents) if documents is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        chosen = self._select(template, tools)
        if continue_final_message and "content" not in self.sources[chosen]:
            raise TemplateError("The chat template reads no content, so that none can be continued.")
        text = _render(self._compiled[chosen][0], names)
        return text if open_text is None else _cut_at_mark(text, open_text)

    def render_with_spans(self, messages: Sequence[Message], /, **options: Any) -> tuple[str, Spans]:
        """The prompt text and, as (start, end) in it, what stands in ``{% generation %}`` blocks."""
        spans: Spans = []
        token = generation_spans.set(([], spans))
        try:
            return self.render(messages, **options), spans
        finally:
            generation_spans.reset(token)

    def _select(self, name: str | None, tools: Sequence[Any] | None) -> str:
        wanted = name or ("tool_use" if tools is not None and "tool_use" in self._compiled else "default")
        if wanted not in self._compiled:
            raise TemplateError(
                f"There is no chat template {wanted!r}.", hint=f"There are: {', '.join(sorted(self._compiled))}."
            )
        return wanted


def _plain(message: Message) -> dict[str, Any]:
    """A copy without keys that are None, with reasoning under each name templates read it by."""
    if not isinstance(message, Mapping):
        raise TemplateError(f"A message must be an object, not {type(message).__name__}.")
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[key] for key in _REASONING if key in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _render(template: jinja2.Template, names: dict[str, Any]) -> str:
    """Render piece by piece, within bounds; every failure is a TemplateError."""
    tracked = generation_spans.get()
    pieces: list[str] = [] if tracked is None else tracked[0]
    total = 0
    with _bounded_steps():
        try:
            for piece in template.generate(names):
                total += len(piece)
                check_characters(total)
                pieces.append(piece)
        except jinja2.exceptions.SecurityError as error:
            raise TemplateError(f"The chat template does what it must not: {error}.") from error
        except jinja2.UndefinedError as error:
            raise TemplateError(f"The chat template cannot render these messages: {error}.") from error
        except jinja2.TemplateError as error:
            raise TemplateError(str(error)) from error
        except Exception as error:  # a template is a program, and may fail in any way a program may
            problem = f"{type(error).__name__}: {error}"[:300]
            raise TemplateError(f"The chat template cannot render these messages ({problem}).") from error
    return "".join(pieces)


@contextmanager
def _bounded_steps() -> Iterator[None]:
    token = steps_left.set([MAX_STEPS])
    try:
        yield
    finally:
        steps_left.reset(token)


def _mark_final(message: dict[str, Any]) -> str:
    """Put a mark behind the text of the last message; gives that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CONTINUE_MARK
        return content
    parts = [dict(part) for part in content] if isinstance(content, list) else []
    for part in reversed(parts):
        if isinstance(text := part.get("text"), str):
            part["text"] = text + _CONTINUE_MARK
            message["content"] = parts
            return text
    raise TemplateError("The last message has no text to continue.")


def _cut_at_mark(rendered: str, text: str) -> str:
    """What stands in front of the mark; a template that trims its messages has trimmed the text as well."""
    mark = _CONTINUE_MARK.strip()
    position = rendered.rfind(mark)
    if position < 0 or text.strip() not in rendered:
        raise TemplateError("The chat template changes the last message, so that it cannot be continued.")
    kept = rendered[:position]
    return kept if rendered.startswith(_CONTINUE_MARK, position) else kept.rstrip()


@dataclass(frozen=True, slots=True)
class PrefixStability:
    """Whether a conversation's later prompt begins with its earlier one.

    Attributes:
        stable: it does: what was computed for the earlier prompt can all be used again.
        seam: characters the two have in common.
        earlier: the prompt that the reply was generated for.
        later: the prompt once the reply is part of the history.
    """

    stable: bool
    seam: int
    earlier: str
    later: str


def check_prefix_stability(
    template: ChatTemplate, history: Sequence[Message], reply: Sequence[Message], **options: Any
) -> PrefixStability:
    """Compare render(history) with a generation prompt to render(history + reply).

    Args:
        template: the template.
        history: messages up to the one that is answered.
        reply: the answer and whatever follows it.
        options: of ``ChatTemplate.render``, the same for both.
    """
    earlier = template.render(history, add_generation_prompt=True, **options)
    later = template.render([*history, *reply], **options)
    seam = len(os.path.commonprefix([earlier, later]))  # noqa: RUF071 - characters are meant
    return PrefixStability(later.startswith(earlier), seam, earlier, later)


def load_chat_template(
    path: Path, *, template: Path | None = None, now: Callable[[], datetime] = _local_now
) -> ChatTemplate | None:
    """The chat template beside a tokenizer; None where there is none.

    It is chat_template.jinja and additional_chat_templates/NAME.jinja, else chat_template.json, else "chat_template" of
    tokenizer_config.json, which is a text or a list of named ones.

    Args:
        path: the tokenizer's folder, or a file in it.
        template: a Jinja file to take in its place.
        now: the clock that ``strftime_now`` reads.

    Raises:
        TemplateError: it cannot be read, or is no template.
    """
    folder = path if path.is_dir() else path.parent
    config = _read_json(folder / "tokenizer_config.json")
    sources = {"default": _read(template)} if template is not None else _sources(folder, config)
    return ChatTemplate(sources, special_tokens=_special_tokens(config), now=now) if sources else None


def _sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Template name -> Jinja text."""
    files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (main := folder / "chat_template.jinja").is_file():
        files["default"] = main
    if files:
        return {name: _read(file) for name, file in files.items()}
    given = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if given is None:
        return {}
    named = {"default": given} if isinstance(given, str) else _named_sources(given)
    if not all(isinstance(text, str) for item in named.items() for text in item):
        raise TemplateError(
            f"'chat_template' beside the tokenizer in {folder} is neither a text nor a list of named ones."
        )
    return named


def _named_sources(given: Any) -> dict[Any, Any]:
    """Name -> text of an object, or of a list of {"name", "template"}; what is neither has no name."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list) and all(isinstance(row, Mapping) for row in given):
        return {row.get("name"): row.get("template") for row in given}
    return {None: given}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text; a token may be given with its flags as an object."""
    extra = config.get("extra_special_tokens")
    given = {**(extra if isinstance(extra, Mapping) else {}), **{name: config.get(name) for name in SPECIAL_TOKENS}}
    texts = {name: token.get("content") if isinstance(token, Mapping) else token for name, token in given.items()}
    wrong = next((name for name in SPECIAL_TOKENS if not isinstance(texts[name], str | None)), None)
    if wrong is not None:
        raise TemplateError(f"{wrong!r} in tokenizer_config.json is no text: {texts[wrong]!r:.100}.")
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"Cannot read the chat template {path}: {error}.") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"{path} is not valid JSON: {error}.") from error
    return content if isinstance(content, Mapping) else {}
