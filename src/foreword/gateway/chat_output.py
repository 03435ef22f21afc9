"""What a chat model's text means: reasoning, content and tool calls, told apart while it streams."""

from __future__ import annotations

from dataclasses import dataclass, field

from foreword.gateway.generate import TextDelta
from foreword.gateway.reasoning import START, ReasoningSplitter
from foreword.gateway.tool_calls import ParsedCall, ToolCallParser, ToolFormat
from foreword.generation import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What one step added to a choice; calls and the finish reason come with the last."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ParsedCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.reasoning or self.content or self.calls or self.logprobs or self.finish_reason)


@dataclass(slots=True)
class ChatChoice:
    """One answer being read. Feed it text deltas; it keeps the whole and returns what each added."""

    prompt: str
    reasons: bool
    tool_format: ToolFormat | None = None
    reasoning: str = ""
    content: str = ""
    calls: tuple[ParsedCall, ...] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    reasoning_tokens: int = 0
    _splitter: ReasoningSplitter | None = None
    _parser: ToolCallParser | None = None

    def __post_init__(self) -> None:
        if self.reasons or self.prompt.rstrip().endswith(START):
            self._splitter = ReasoningSplitter(self.prompt)
        if self.tool_format is not None:
            self._parser = ToolCallParser(self.tool_format)

    def push(self, delta: TextDelta) -> ChatDelta:
        """Take what the model said next."""
        reasoning, content = self._split(delta)
        calls: list[ParsedCall] = []
        if self._parser is not None:
            content = self._parser.push(content)
            if delta.finish_reason is not None:
                rest, calls = self._parser.finish()
                content += rest
        finish = "tool_calls" if calls and delta.finish_reason == "stop" else delta.finish_reason
        added = ChatDelta(reasoning, content, tuple(calls), delta.logprobs, finish, delta.stop_reason)
        self._keep(added)
        return added

    def _split(self, delta: TextDelta) -> tuple[str, str]:
        if self._splitter is None:
            return "", delta.text
        if self._splitter.reasoning:
            self.reasoning_tokens += delta.tokens
        reasoning, content = self._splitter.push(delta.text)
        if delta.finish_reason is not None:
            more_reasoning, more_content = self._splitter.finish()
            return reasoning + more_reasoning, content + more_content
        return reasoning, content

    def _keep(self, added: ChatDelta) -> None:
        self.reasoning += added.reasoning
        self.content += added.content
        self.calls += added.calls
        self.logprobs += added.logprobs
        self.finish_reason = added.finish_reason
        self.stop_reason = added.stop_reason
