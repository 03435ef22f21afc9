"""The Jinja environment of chat templates: what Hugging Face gives them, and bounds on what they may take.

Templates come with models, that is from strangers. The sandbox keeps them from Python; here they are kept from memory
and time: every loop step and macro call is counted, and no expression may make a text or a number of absurd size.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 2_000_000
"""Loop steps and macro calls of one rendering."""

MAX_CHARACTERS = 256 << 20
"""Characters of one text that a template makes, the result included."""

MAX_NUMBER = 1 << 20
"""Largest repetition, width or indentation a template may ask for."""

Spans = list[tuple[int, int]]

steps_left: ContextVar[list[int]] = ContextVar("steps_left")
"""The count-down of the rendering under way, in a list of one."""

generation_spans: ContextVar[tuple[list[str], Spans] | None] = ContextVar("generation_spans", default=None)
"""While set: the pieces rendered so far, and where ``{% generation %}`` blocks lie in the result."""


class _Generation(Extension):
    """``{% generation %}``: marks what the assistant said; renders its body."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Extension

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        text = caller()
        if (tracked := generation_spans.get()) is not None:
            pieces, spans = tracked
            start = sum(map(len, pieces))
            spans.append((start, start + len(text)))
        return text


class _Bounds(NodeTransformer):
    """Counts every loop step and macro call, and joins texts by functions that look at their size."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own_call("_step", [])).set_lineno(node.lineno, override=True))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own_call("_step", [])).set_lineno(node.lineno, override=True))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        return _own_call("_join", node.nodes).set_lineno(node.lineno)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        return _own_call("_add", [node.left, node.right]).set_lineno(node.lineno)


def _own_call(name: str, args: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.ImportedName(f"{__name__}.{name}"), args, [], None, None)


class _BoundedCode(CodeGenerator):
    """Writes calls of the functions here as plain calls: through the sandbox they would cost more than the work."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: FBT001, FBT002, N802 - jinja2's
        if not isinstance(node.node, nodes.ImportedName):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.visit(node.node, frame)
        self.write("(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


def _step() -> None:
    left = steps_left.get()
    left[0] -= 1
    if left[0] < 0:
        raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")


def _join(*values: Any) -> str:
    """Jinja's ``~``."""
    texts = [str(value) for value in values]
    check_characters(sum(map(len, texts)))
    return "".join(texts)


def _add(left: Any, right: Any) -> Any:
    """Jinja's ``+``."""
    result = left + right
    if type(result) is str and len(result) > MAX_CHARACTERS:
        check_characters(len(result))
    return result


def check_characters(count: int) -> None:
    """Raise SecurityError for a text of absurd size."""
    if count > MAX_CHARACTERS:
        raise SecurityError(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


def _check_printed(value: Any) -> Any:
    """Pass a value on to be printed; a list of lists of lists may be far larger in print than in memory."""
    if type(value) is not str and isinstance(value, list | tuple | dict):
        check_characters(_printed_size(value))
    return value


def _printed_size(value: Any) -> int:
    """Characters at least; counting ends once they are too many."""
    size, left = 0, [value]
    while left and size <= MAX_CHARACTERS:
        item = left.pop()
        if isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            left += item
        size += 2 + (len(item) if isinstance(item, str) else 0)
    return size


def _check_numbers(values: Any) -> None:
    for value in values:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise SecurityError(f"it asks for {value:.6g}, more than {MAX_NUMBER:,}")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses absurd widths and counts."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(arg for arg in args[1:] if isinstance(arg, int))
        _check_numbers(kwargs.values())
        return function(*args, **kwargs)

    return call


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Hugging Face's environment: ``trim_blocks``, ``lstrip_blocks``, loop controls, ``generation`` and its helpers."""

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_check_printed
        )
        self.filters = {name: _bounded(function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _to_json, "format": _format}
        del self.globals["lipsum"]  # random text is no prompt
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: now().strftime(layout),
            "dict": _TemplateDict(),
            "namespace": _TemplateNamespace,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, unless its result would be absurdly large."""
        if operator == "*":
            _check_repetition(left, right)
        elif operator == "**":
            _check_numbers((left, right))
            _check_numbers([left * right] if isinstance(left, int) and isinstance(right, int) else [])
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox has it, by a shorter way for what chat templates are made of: messages, loops and texts."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in _PLAIN_KINDS and attribute[:1] != "_" and attribute not in ("format", "format_map"):
            value = getattr(obj, attribute, _MISSING)
            if value is not _MISSING:
                return value
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format``, unless it asks for an absurd width."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            return inner(*args, **kwargs)

        return bounded_format

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call, unless it is a method of a text that would make an absurdly large one."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_text_call(owner, getattr(obj, "__name__", ""), args)
        return super().call(context, obj, *args, **kwargs)


def _check_repetition(left: Any, right: Any) -> None:
    for sized, count in ((left, right), (right, left)):
        if isinstance(sized, str | list | tuple) and isinstance(count, int):
            check_characters(len(sized) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise SecurityError("it makes a number of more than 4096 bits")


def _check_format(layout: str, values: Any) -> None:
    """``'%1000000d' % 1`` is a repetition in disguise; a width may also be among the values."""
    _check_numbers(int(digits) for digits in re.findall(r"\d{1,20}", layout))
    if re.search(r"%[^a-zA-Z%]*\*|\{[^{}]*\{", layout):
        _check_numbers(values if isinstance(values, tuple) else (values,))


def _check_text_call(owner: str, name: str, args: tuple[Any, ...]) -> None:
    _check_numbers(arg for arg in args if isinstance(arg, int) and name in ("center", "ljust", "rjust", "zfill"))
    if name == "expandtabs":
        _check_numbers(args)
        check_characters(owner.count("\t") * (args[0] if args else 8))
    elif name == "replace" and len(args) >= 2 and isinstance(args[1], str):
        check_characters(len(owner) + owner.count(args[0]) * len(args[1]) if isinstance(args[0], str) else 0)
    elif name == "join" and args and isinstance(args[0], list | tuple):
        check_characters(sum(len(item) + len(owner) for item in args[0] if isinstance(item, str)))


class _TemplateDict:
    """``dict`` as a function: nothing of the type can be reached."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """``namespace`` that takes no name with an underscore in front."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        own, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it sets {name!r} on a namespace")


def _format(layout: str, *args: Any, **kwargs: Any) -> str:
    """Jinja's ``format`` filter: printf's."""
    if args and kwargs:
        raise jinja2.TemplateError("format takes positional or keyword arguments, not both")
    values = kwargs or args
    _check_format(str(layout), tuple(kwargs.values()) or args)
    return str(layout) % values


_DICT_ATTRIBUTES = frozenset(dir(dict))
_PLAIN_KINDS = (str, LoopContext, _TemplateNamespace)
"""Kinds whose public attributes are all safe."""

_MISSING = object()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - Hugging Face's signature
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - as above
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, and letters as they are."""
    _check_numbers([indent or 0])
    _check_printed(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
