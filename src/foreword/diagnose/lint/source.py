"""Lint Python source: values that vary and flow into the head of a prompt, followed through a module's own helpers.

The flow is followed through assignments, formatting, containers, methods of varying values, and calls of functions and
methods of the same module. Logging, comparisons, lengths and whatever goes only to user messages are no findings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from foreword.diagnose.lint.findings import Edit, LintFinding
from foreword.diagnose.lint.sinks import is_head_name, sinks_of
from foreword.diagnose.lint.sources import PASSING_CALLS, Taint, dotted, import_aliases, resolve, source_of

Taints = frozenset[Taint]
_NONE: Taints = frozenset()
_SUPPRESS = re.compile(r"#\s*foreword:\s*ignore(?:\[([A-Z0-9, ]+)\])?")
_FINE = re.compile(r"%[-#]?[HIMSfpcXsT]")
_DEPTH = 12

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class _Scope:
    """Names and what they are tainted with, in one function or module.

    Attributes:
        plain: names that hold a text or a dictionary as it is written down, which JSON always writes the same.
    """

    names: dict[str, Taints] = field(default_factory=dict)
    owner: str = ""
    plain: set[str] = field(default_factory=set)


class _Module:
    """One parsed module: its functions, its imports, and the taints of what they return."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.tree = ast.parse(text)
        self.aliases = import_aliases(self.tree)
        self.lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self.functions: dict[str, list[tuple[str, _Function]]] = {}
        self._collect(self.tree, "")
        self._returns: dict[int, Taints] = {}
        self._attributes: dict[str, Taints] = {}
        self._module = _Scope()

    def _collect(self, node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Function):
                self.functions.setdefault(child.name, []).append((owner, child))
            self._collect(child, child.name if isinstance(child, ast.ClassDef) else owner)

    def offset(self, line: int, column: int) -> int:
        """Characters before a place that ast gives in UTF-8 bytes."""
        return self._starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode("utf-8", "ignore"))

    def findings(self) -> Iterator[LintFinding]:
        """Every source that reaches a sink, once each."""
        self._assign(self.tree.body, self._module)
        for owner, function in (pair for pairs in self.functions.values() for pair in pairs):
            if function.name in {"__init__", "__post_init__", "setup"}:
                self._run(function, owner)
        seen: set[tuple[str, int, int]] = set()
        for taint, what, line in self._reached():
            place = (taint.code, getattr(taint.node, "lineno", 0), getattr(taint.node, "col_offset", 0))
            if place not in seen and not self._is_suppressed(taint):
                seen.add(place)
                yield self._finding(taint, what, line)

    def _reached(self) -> Iterator[tuple[Taint, str, int]]:
        yield from self._sinks(self.tree.body, self._module)
        for owner, function in (pair for pairs in self.functions.values() for pair in pairs):
            scope = self._run(function, owner)
            yield from self._sinks(function.body, scope)
            if is_head_name(function.name):
                for taint in self._return_taints(function, owner, 0):
                    yield taint, f"{function.name}()", function.lineno

    def _sinks(self, body: Sequence[ast.stmt], scope: _Scope) -> Iterator[tuple[Taint, str, int]]:
        for node in _walk(body):
            for sink in sinks_of(node):
                for taint in self.taints(sink.value, scope):
                    yield taint, sink.what, getattr(sink.value, "lineno", 0)

    def _run(self, function: _Function, owner: str) -> _Scope:
        scope = _Scope(dict(self._module.names), owner)
        for argument in [*function.args.args, *function.args.kwonlyargs]:
            scope.names.pop(argument.arg, None)
            if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "str":
                scope.plain.add(argument.arg)
        self._assign(function.body, scope)
        return scope

    def _assign(self, body: Sequence[ast.stmt], scope: _Scope) -> None:
        """Taint names by the assignments of a body, twice so that loops are seen."""
        nodes = [
            node
            for node in _walk(body)
            if isinstance(
                node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.With | ast.NamedExpr | ast.Expr
            )
        ]
        for _ in range(2):
            for node in nodes:
                self._assign_one(node, scope)

    def _assign_one(self, node: ast.AST, scope: _Scope) -> None:
        if isinstance(node, ast.Assign):
            found = self.taints(node.value, scope)
            for target in node.targets:
                self._bind(target, found, scope)
                self._note_plain(target, node.value, scope)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._bind(node.target, self.taints(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            self._bind(node.target, self.taints(node.value, scope) | self.taints(node.target, scope), scope)
        elif isinstance(node, ast.For):
            self._bind(node.target, self._iterated(node.iter, scope), scope)
            if isinstance(node.target, ast.Tuple) and _is_items(node.iter):
                scope.plain.add(dotted(node.target.elts[0]))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._mutate(node.value, scope)

    def _mutate(self, call: ast.Call, scope: _Scope) -> None:
        """``parts.append(x)`` taints parts; ``parts.sort()`` gives it an order."""
        if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)):
            return
        name = call.func.value.id
        scope.plain.discard(name)
        if call.func.attr in {"append", "extend", "insert", "add", "update"}:
            added = frozenset(t for argument in call.args for t in self.taints(argument, scope))
            scope.names[name] = scope.names.get(name, _NONE) | added
        elif call.func.attr == "sort":
            scope.names[name] = frozenset(t for t in scope.names.get(name, _NONE) if t.code != "B1")

    def _bind(self, target: ast.AST, found: Taints, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = found
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            key = f"{scope.owner}.{target.attr}"
            self._attributes[key] = self._attributes.get(key, _NONE) | found
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element, found, scope)
        elif isinstance(target, ast.Subscript):
            self._bind(target.value, found | self.taints(target.value, scope), scope)

    def _note_plain(self, target: ast.AST, value: ast.AST, scope: _Scope) -> None:
        """Take note of a name that holds a text or a written-down dictionary, until it is bound or filled anew."""
        if isinstance(target, ast.Name) and _is_plain(value):
            scope.plain.add(target.id)
        else:
            scope.plain.discard(dotted(target.value if isinstance(target, ast.Subscript) else target))

    def taints(self, node: ast.AST | None, scope: _Scope, depth: int = 0) -> Taints:
        """What varies in an expression's value."""
        if node is None or depth > _DEPTH:
            return _NONE
        source = source_of(node, self.aliases)
        if source is not None:
            return frozenset({source})
        if isinstance(node, ast.Name | ast.Attribute):
            return self._of_name(node, scope, depth + 1)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope, depth + 1)
        return self._of_parts(node, scope, depth + 1)

    def _of_name(self, node: ast.Name | ast.Attribute, scope: _Scope, depth: int) -> Taints:
        if isinstance(node, ast.Name):
            return scope.names.get(node.id, _NONE)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._attributes.get(f"{scope.owner}.{node.attr}", _NONE)
        if node.attr == "tzinfo":
            return _NONE
        return self.taints(node.value, scope, depth)

    def _of_parts(self, node: ast.AST, scope: _Scope, depth: int) -> Taints:
        parts: list[ast.AST | None]
        if isinstance(node, ast.JoinedStr):
            parts = [v.value for v in node.values if isinstance(v, ast.FormattedValue)]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.BoolOp):
            parts = list(node.values)
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.Tuple | ast.List):
            parts = list(node.elts)
        elif isinstance(node, ast.Dict):
            parts = [*node.keys, *node.values]
        elif isinstance(node, ast.Subscript | ast.Starred | ast.Await | ast.FormattedValue | ast.NamedExpr):
            parts = [node.value]
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            return self._of_comprehension(node, scope, depth)
        else:
            return _NONE
        return frozenset(t for part in parts for t in self.taints(part, scope, depth))

    def _of_comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp, scope: _Scope, depth: int
    ) -> Taints:
        inner = _Scope(dict(scope.names), scope.owner)
        order: Taints = _NONE
        for generator in node.generators:
            found = self._iterated(generator.iter, inner)
            order |= frozenset(t for t in found if t.code == "B1")
            self._bind(generator.target, found, inner)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return order | frozenset(t for value in values for t in self.taints(value, inner, depth))

    def _iterated(self, node: ast.expr, scope: _Scope) -> Taints:
        """What varies in going through a value: of a set, the order."""
        found = self.taints(node, scope)
        return found | ({_set_order(node)} if _is_set(node, self.aliases) else _NONE)

    def _of_call(self, node: ast.Call, scope: _Scope, depth: int) -> Taints:
        name = resolve(node.func, self.aliases)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        inside = frozenset(t for argument in arguments for t in self.taints(argument, scope, depth))
        if name in {"sorted", "builtins.sorted"}:
            return frozenset(t for t in inside if t.code != "B1")
        if name in {"json.dumps", "orjson.dumps"}:
            return inside | self._unsorted_dump(node, scope)
        if name in {"list", "tuple", "enumerate"} and node.args and _is_set(node.args[0], self.aliases):
            return inside | {_set_order(node.args[0], node)}
        if isinstance(node.func, ast.Attribute):
            return self._of_method(node, scope, depth, inside)
        if name in PASSING_CALLS:
            return inside
        return self._of_helper(name, "", inside, depth)

    def _of_method(self, node: ast.Call, scope: _Scope, depth: int, inside: Taints) -> Taints:
        function = node.func
        if not isinstance(function, ast.Attribute):
            return _NONE
        if isinstance(function.value, ast.Name) and function.value.id in {"self", "cls"}:
            return self._of_helper(function.attr, scope.owner, inside, depth)
        if function.attr == "join" and node.args:
            order = {_set_order(node.args[0])} if _is_set(node.args[0], self.aliases) else _NONE
            return inside | order
        owner = self.taints(function.value, scope, depth)
        passes = function.attr in {
            "format",
            "format_map",
            "substitute",
            "safe_substitute",
            "render",
            "replace",
            "format_messages",
        }
        return owner | (inside if passes or resolve(function, self.aliases) in PASSING_CALLS else _NONE)

    def _of_helper(self, name: str, owner: str, inside: Taints, depth: int) -> Taints:
        """A call of one of the module's own functions: what it returns, and what was handed to it."""
        candidates = [pair for pair in self.functions.get(name, ()) if pair[0] == owner]
        if len(candidates) != 1:
            return _NONE
        return inside | self._return_taints(candidates[0][1], owner, depth)

    def _return_taints(self, function: _Function, owner: str, depth: int) -> Taints:
        if id(function) not in self._returns:
            self._returns[id(function)] = _NONE
            scope = self._run(function, owner)
            values = [
                n.value for n in _walk(function.body) if isinstance(n, ast.Return | ast.Yield) and n.value is not None
            ]
            self._returns[id(function)] = frozenset(t for value in values for t in self.taints(value, scope, depth))
        return self._returns[id(function)]

    def _unsorted_dump(self, node: ast.Call, scope: _Scope) -> Taints:
        is_sorted = any(
            k.arg == "sort_keys" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords
        )
        is_plain = not node.args or _is_plain(node.args[0]) or dotted(node.args[0]) in scope.plain
        if is_sorted or is_plain or any(k.arg is None or k.arg == "option" for k in node.keywords):
            return _NONE
        return frozenset({Taint("B2", "JSON with keys in whatever order they are in", "json.dumps", node)})

    def _is_suppressed(self, taint: Taint) -> bool:
        line = self.lines[getattr(taint.node, "end_lineno", 1) - 1]
        match = _SUPPRESS.search(line)
        return bool(match) and (match is not None and (match[1] is None or taint.code in match[1]))

    def _finding(self, taint: Taint, what: str, line: int) -> LintFinding:
        node = taint.node
        row, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        start = self.offset(row, column)
        end = self.offset(getattr(node, "end_lineno", row), getattr(node, "end_col_offset", column))
        snippet = self.text[start:end]
        message = f"{taint.name} ({taint.what}) flows into {what} on line {line}"
        finding = LintFinding(taint.code, message, self.file, row, start - self._starts[row - 1] + 1, snippet=snippet)
        return replace(finding, edits=_edits(taint, snippet, start, end))


def _walk(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of a body in order of the text, functions and classes inside left out."""
    for statement in body:
        if isinstance(statement, _Function | ast.ClassDef):
            continue
        yield from _walk_node(statement)


def _walk_node(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function | ast.ClassDef | ast.Lambda):
            yield from _walk_node(child)


def _is_plain(node: ast.AST) -> bool:
    """A text, or a dictionary or list whose order is the one it is written in, or a list of a dictionary's keys."""
    if isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Name):
        first = node.generators[0].iter
        return isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute) and first.func.attr == "keys"
    return isinstance(node, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple | ast.Dict)


def _is_items(node: ast.AST) -> bool:
    """Whether this goes through the items of a dictionary, whose keys are texts in JSON."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items"


def _is_set(node: ast.AST, aliases: dict[str, str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub):
        return _is_set(node.left, aliases) or _is_set(node.right, aliases)
    return isinstance(node, ast.Call) and resolve(node.func, aliases) in {"set", "frozenset"}


def _set_order(node: ast.AST, whole: ast.AST | None = None) -> Taint:
    return Taint(
        "B1", "a set, whose order changes by process", "list(set)" if whole is not None else "set", whole or node
    )


def _edits(taint: Taint, snippet: str, start: int, end: int) -> tuple[Edit, ...]:
    """What can be done at the source: sort, dump in order, coarsen a clock (which changes what the prompt says: unsafe)."""
    if taint.name == "json.dumps":
        return (
            (Edit(end - 1, end, ", sort_keys=True)"),)
            if snippet.endswith(")") and not snippet.rstrip(") \n").endswith(",")
            else ()
        )
    if taint.name == "list(set)":
        return (Edit(start, start + snippet.index("("), "sorted"),)
    if taint.code == "B1":
        return (Edit(start, end, f"sorted({snippet})", is_safe=taint.name in {"os.listdir", "glob.glob", "set"}),)
    if taint.code == "A1" and taint.name == "time.strftime" and _FINE.search(snippet):
        return (Edit(start, end, "time.strftime('%Y-%m-%d')", is_safe=False),)
    return ()


_TELEMETRY = frozenset({"telemetry", "tracing", "observability", "instrumentation"})
"""Folders whose modules write prompts down for people to look at, and send none."""


def lint_source(text: str, file: str) -> list[LintFinding]:
    """The findings of one Python file, by line; telemetry and a file that does not parse have none of ours."""
    if PurePath(file).parent.name in _TELEMETRY:
        return []
    try:
        module = _Module(text, file)
        return sorted(module.findings(), key=lambda f: (f.line, f.column, f.code))
    except (SyntaxError, ValueError, RecursionError):
        return []
