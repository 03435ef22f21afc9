"""Where Python code hands text to a model as the head of a prompt: system text, instructions, tools."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from foreword.diagnose.lint.sources import dotted

_CREATE = re.compile(r"(messages|completions|responses)\.(create|stream|parse|acreate)$")
_CALLS = re.compile(
    r"(^|\.)(completion|acompletion|generate_content|converse|converse_stream|apply_chat_template|count_tokens)$"
)
_SYSTEM_CLASSES = frozenset(
    {
        "SystemMessage",
        "SystemMessagePromptTemplate",
        "SystemMessagePromptTemplate.from_template",
        "DeveloperMessage",
        "Segment",
    }
)
_HEAD_KEYS = frozenset({"system", "instructions", "tools", "system_instruction", "systemInstruction", "functions"})
_HEAD_NAME = re.compile(
    r"(^|_)(system|sys|developer)_?(prompt|message|msg|instructions?|text|blocks?)(_content|_text)?$", re.IGNORECASE
)
_HEAD_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Sink:
    """An expression that becomes the head of a prompt, and what it is called there."""

    value: ast.expr
    what: str


def sinks_of(node: ast.AST) -> Iterator[Sink]:
    """The sinks a statement or expression holds itself; its children are looked at on their own."""
    if isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Dict):
        yield from _of_dict(node)
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and _is_constant(node.elts[0], _HEAD_ROLES):
        yield Sink(node.elts[1], "the system message")
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from _of_assignment(node)


def is_head_name(name: str) -> bool:
    """Whether a name says that what it holds is system text."""
    return bool(_HEAD_NAME.search(name))


def _of_call(node: ast.Call) -> Iterator[Sink]:
    name = dotted(node.func)
    if name.rpartition(".")[2] in _SYSTEM_CLASSES or name in _SYSTEM_CLASSES:
        yield from (Sink(value, "the system message") for value in node.args[:1])
        yield from (Sink(k.value, "the system message") for k in node.keywords if k.arg in {"content", "text"})
    is_request = _CREATE.search(name) or _CALLS.search(name)
    for keyword in node.keywords:
        if keyword.arg and ((is_request and keyword.arg in _HEAD_KEYS) or is_head_name(keyword.arg)):
            yield from _stable_part(keyword.value, keyword.arg)


def _stable_part(value: ast.expr, name: str) -> Iterator[Sink]:
    """The value; of a list of blocks, only those up to the last that carries a cache marker."""
    if isinstance(value, ast.List):
        marked = [
            n
            for n, block in enumerate(value.elts)
            if isinstance(block, ast.Dict) and any(_is_constant(k, {"cache_control", "cachePoint"}) for k in block.keys)
        ]
        kept = value.elts[: marked[-1] + 1] if marked else value.elts
        yield from (Sink(block, name) for block in kept)
    else:
        yield Sink(value, name)


def _of_dict(node: ast.Dict) -> Iterator[Sink]:
    pairs = {
        key.value: value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)
    }
    role = pairs.get("role")
    if role is not None and _is_constant(role, _HEAD_ROLES) and "content" in pairs:
        yield Sink(pairs["content"], "the system message")
    if {"model", "messages"} <= pairs.keys() or {"model", "input"} <= pairs.keys():
        for key in _HEAD_KEYS & pairs.keys():
            yield from _stable_part(pairs[key], str(key))


def _of_assignment(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[Sink]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        name = target.attr if isinstance(target, ast.Attribute) else dotted(target)
        if node.value is not None and name and is_head_name(name):
            yield from _stable_part(node.value, name)


def _is_constant(node: ast.AST | None, values: frozenset[str] | set[str]) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in values
