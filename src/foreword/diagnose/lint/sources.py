"""Calls whose value varies from request to request, process to process or machine to machine, by their full names."""

from __future__ import annotations

import ast
from dataclasses import dataclass

_CLOCKS = (
    "datetime.now datetime.utcnow datetime.today datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today "
    "date.today datetime.date.today time.time time.time_ns time.ctime time.asctime time.localtime time.gmtime time.strftime "
    "time.monotonic time.perf_counter pendulum.now arrow.now arrow.utcnow timezone.now django.utils.timezone.now"
)
_NONCES = (
    "uuid.uuid1 uuid.uuid4 uuid.uuid7 uuid4 uuid1 random.random random.randint random.choice random.choices random.sample "
    "random.shuffle random.uniform random.getrandbits secrets.token_hex secrets.token_urlsafe secrets.token_bytes "
    "secrets.randbelow secrets.choice os.urandom id hash object.__hash__ os.getpid threading.get_ident"
)
_IDENTITIES = (
    "os.getcwd Path.cwd pathlib.Path.cwd Path.home pathlib.Path.home os.getlogin getpass.getuser socket.gethostname platform.node "
    "platform.platform platform.uname os.uname os.getenv os.environ.get tempfile.mkdtemp tempfile.gettempdir os.path.expanduser"
)
_STATES = (
    "subprocess.check_output subprocess.run subprocess.getoutput os.popen psutil.virtual_memory psutil.cpu_percent"
)
_UNSORTED = "os.listdir os.scandir glob.glob glob.iglob os.walk"
_LOCALES = "locale.currency locale.format_string locale.getlocale locale.str"

SOURCES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_CLOCKS.split(), ("A1", "the clock")),
    **dict.fromkeys(_NONCES.split(), ("A2", "a value of this request or process alone")),
    **dict.fromkeys(_IDENTITIES.split(), ("A4", "a value of this machine, user or environment")),
    **dict.fromkeys(_STATES.split(), ("A3", "live state")),
    **dict.fromkeys(_UNSORTED.split(), ("B1", "names in the order the file system has them")),
    **dict.fromkeys(_LOCALES.split(), ("A1", "a format of this machine's locale")),
}
"""Full dotted name -> cause code, what it is."""

UNSORTED_METHODS = frozenset({"iterdir", "rglob"})
"""Methods (of paths) that list files in no order."""

PASSING_CALLS = frozenset(
    [
        "str",
        "repr",
        "format",
        "ascii",
        "bytes",
        "int",
        "float",
        "round",
        "list",
        "tuple",
        "dict",
        "reversed",
        "enumerate",
        "zip",
        "map",
        "filter",
        "join",
        "dedent",
        "textwrap.dedent",
        "textwrap.indent",
        "indent",
        "fill",
        "textwrap.fill",
        "Template",
        "string.Template",
        "json.dumps",
        "yaml.dump",
        "yaml.safe_dump",
        "escape",
        "html.escape",
        "cast",
        "typing.cast",
        "deepcopy",
        "copy.deepcopy",
        "copy.copy",
        "next",
        "iter",
        "max",
        "min",
        "sum",
        "abs",
    ]
)
"""Functions whose result says what their arguments say."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A varying value: its cause code, what it is, and the call that makes it."""

    code: str
    what: str
    name: str
    node: ast.AST


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or attribute chain, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def source_of(node: ast.AST, aliases: dict[str, str]) -> Taint | None:
    """The taint of a call or of ``os.environ[...]``, with import aliases resolved."""
    if isinstance(node, ast.Subscript) and resolve(node.value, aliases) == "os.environ":
        return Taint("A4", "a value of this machine, user or environment", "os.environ", node)
    if not isinstance(node, ast.Call):
        return None
    name = resolve(node.func, aliases)
    if name in SOURCES:
        if name == "time.strftime" and len(node.args) > 1:
            return None
        return Taint(*SOURCES[name], name, node)
    if isinstance(node.func, ast.Attribute) and node.func.attr in UNSORTED_METHODS:
        return Taint("B1", "names in the order the file system has them", node.func.attr, node)
    return None


def resolve(node: ast.AST, aliases: dict[str, str]) -> str:
    """A dotted name with its first part replaced by what was imported under it."""
    name = dotted(node)
    head, dot, rest = name.partition(".")
    full = aliases.get(head, head)
    return f"{full}{dot}{rest}" if name else ""


def import_aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> full name of everything a module imports."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases.update(
                {
                    (n.asname or n.name.partition(".")[0]): (n.name if n.asname else n.name.partition(".")[0])
                    for n in node.names
                }
            )
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases.update({(n.asname or n.name): f"{node.module}.{n.name}" for n in node.names})
    return aliases
