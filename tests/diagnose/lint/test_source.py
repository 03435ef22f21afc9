"""Every planted fault is found, and none on its clean twin."""

from __future__ import annotations

import pytest

from foreword.diagnose.lint.findings import apply_edits
from foreword.diagnose.lint.source import lint_source

PLANTED = {
    "clock": ("A1", 'client.messages.create(model=m, system=f"Now {datetime.now()}. {RULES}", messages=ms)'),
    "strftime": ("A1", 'messages = [{"role": "system", "content": "Time: " + time.strftime("%H:%M:%S") + RULES}]'),
    "epoch": ("A1", 'SystemMessage(content="%s %s" % (time.time(), RULES))'),
    "uuid": ("A2", 'client.responses.create(model=m, instructions="id {}".format(uuid.uuid4()), input=q)'),
    "random": ("A2", "system_prompt = RULES + str(random.random())"),
    "token": ("A2", 'client.chat.completions.create(model=m, messages=[{"role": "developer", "content": f"{secrets.token_hex(4)} x"}])'),
    "cwd": ("A4", 'agent(system_prompt=f"Work in {os.getcwd()}")'),
    "environment": ("A4", 'ChatPromptTemplate.from_messages([("system", f"User {os.environ[\'USER\']}"), ("human", "{q}")])'),
    "home": ("A4", 'system_message = f"Home is {Path.home() / \'notes\'}"'),
    "host": ("A4", 'litellm.completion(model=m, messages=[{"role": "system", "content": socket.gethostname()}])'),
    "git": ("A3", 'system_prompt = "Status:" + subprocess.check_output(["git", "status"]).decode()'),
    "set join": ("B1", 'system_prompt = "Tools: " + ", ".join({"read", "write"})'),
    "set list": ("B1", "client.messages.create(model=m, system=RULES, tools=[tool(n) for n in set(names)], messages=ms)"),
    "set to list": ("B1", "system_prompt = str(list(set(names)))"),
    "listdir": ("B1", 'system_prompt = "Files: " + " ".join(os.listdir(folder))'),
    "iterdir": ("B1", 'system_prompt = "Files: " + " ".join(str(p) for p in Path(folder).iterdir())'),
    "dumps": ("B2", "system_prompt = RULES + json.dumps(schema)"),
    "dictionary filled in a loop": ("B2", "schema = {}\nfor name in names:\n    schema[name] = 1\nsystem_prompt = RULES + json.dumps(schema)"),
    "dictionary taken over": ("B2", "schema = {}\nschema.update(given)\nsystem_prompt = RULES + json.dumps(schema)"),
    "value of a dictionary": ("B2", 'def build_system_prompt(fields):\n    text = ""\n    for name, value in fields.items():\n        text += json.dumps(value)\n    return text'),
    "content": ("A1", 'system_message_content = RULES\nsystem_message_content += f"The current time is {datetime.now()}."'),
    "locale": ("A1", 'system_prompt = "Price " + locale.currency(3.5)'),
    "helper": ("A1", 'def stamp():\n    return datetime.now().isoformat()\n\n\ndef head():\n    return f"At {stamp()}"\n\n\nclient.messages.create(model=m, system=head(), messages=ms)'),
    "method": ("A1", 'class Agent:\n    def __init__(self):\n        self.started = datetime.now()\n\n    def build_system_prompt(self):\n        return f"Started {self.started}"\n'),
    "argument": ("A2", 'def wrap(x):\n    return f"<{x}>"\n\n\nsystem_prompt = wrap(uuid.uuid4())'),
    "append": ("A1", 'def ask():\n    parts = [RULES]\n    parts.append(str(datetime.now()))\n    return client.messages.create(model=m, system="\\n".join(parts), messages=ms)'),
    "first block": ("A1", 'client.messages.create(model=m, messages=ms, system=[{"type": "text", "text": str(datetime.now())}, {"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}])'),
}  # fmt: skip

CLEAN = {
    "constant": "client.messages.create(model=m, system=RULES, messages=ms)",
    "logged": 'logging.info("at %s", datetime.now())\nclient.messages.create(model=m, system=RULES, messages=ms)',
    "user message": 'messages = [{"role": "system", "content": RULES}, {"role": "user", "content": f"{q} ({datetime.now()})"}]',
    "metadata": 'client.messages.create(model=m, system=RULES, messages=ms, metadata={"user_id": str(uuid.uuid4())})',
    "argument": 'def head(today):\n    return f"Today is {today}."\n\n\nclient.messages.create(model=m, system=head(day), messages=ms)',
    "sorted set": 'system_prompt = ", ".join(sorted({"read", "write"}))',
    "sorted files": 'system_prompt = "Files: " + " ".join(sorted(os.listdir(folder)))',
    "sorted keys": "system_prompt = RULES + json.dumps(schema, sort_keys=True)",
    "literal": 'system_prompt = RULES + json.dumps({"type": "object"})',
    "timing": "start = time.time()\nanswer = client.messages.create(model=m, system=RULES, messages=ms)\nelapsed = time.time() - start",
    "seed": 'client.chat.completions.create(model=m, seed=random.randint(0, 9), messages=[{"role": "system", "content": RULES}])',
    "key": 'client = OpenAI(api_key=os.environ["KEY"])\nclient.responses.create(model=m, instructions=RULES, input=q)',
    "condition": 'if datetime.now().hour < 12:\n    log("morning")\nsystem_prompt = RULES',
    "length": 'system_prompt = f"There are {len(set(names))} tools."',
    "membership": 'system_prompt = RULES if name in {"a", "b"} else OTHER',
    "behind the marker": 'client.messages.create(model=m, messages=ms, system=[{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": str(datetime.now())}])',
    "sorted in place": 'def head():\n    names = list({"b", "a"})\n    names.sort()\n    return names\n\n\nsystem_prompt = ", ".join(head())',
    "other class": "class Clock:\n    def text(self):\n        return str(datetime.now())\n\n\nclass Agent:\n    def text(self):\n        return RULES\n\n    def system_prompt(self):\n        return self.text()\n",
    "named literal": 'schema = {"type": "object", "title": title}\nsystem_prompt = RULES + json.dumps(schema)',
    "quoted text": "def build_system_prompt(name: str):\n    return RULES + json.dumps(name, ensure_ascii=False)",
    "quoted key": 'def build_system_prompt(fields):\n    text = ""\n    for name, value in fields.items():\n        text += json.dumps(name)\n    return text',
    "list of keys": "system_prompt = RULES + json.dumps([key for key in schema.keys() if key != name])",
    "time zone": 'system_prompt = f"Times are in {datetime.now().astimezone().tzinfo}."',
    "suppressed": 'system_prompt = f"Now {datetime.now()}"  # foreword: ignore[A1]',
}  # fmt: skip

HEAD = (
    "import json, locale, logging, os, random, secrets, socket, subprocess, time, uuid\n"
    "from datetime import datetime\nfrom pathlib import Path\n\n"
)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """One finding, with the right code."""
    code, source = PLANTED[name]
    assert [finding.code for finding in lint_source(HEAD + source + "\n", "x.py")] == [code]


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_twin_has_no_finding(name: str) -> None:
    """What does not reach the head of a prompt is nobody's business."""
    assert lint_source(HEAD + CLEAN[name] + "\n", "x.py") == []


def test_the_place_is_the_source_of_the_value() -> None:
    """Line and column point at the call that varies, past characters of several bytes too."""
    text = 'import uuid\nsystem_prompt = "é" + str(uuid.uuid4())\n'
    [finding] = lint_source(text, "x.py")
    assert (finding.line, finding.column) == (2, text.splitlines()[1].index("uuid.uuid4") + 1)
    assert finding.message == "uuid.uuid4 (a value of this request or process alone) flows into system_prompt on line 2"


@pytest.mark.parametrize(
    "before, after",
    [
        ("json.dumps(schema)", "json.dumps(schema, sort_keys=True)"),
        ('", ".join(set(names))', '", ".join(sorted(set(names)))'),
        ("str(list(set(names)))", "str(sorted(set(names)))"),
        ('" ".join(os.listdir(d))', '" ".join(sorted(os.listdir(d)))'),
    ],
)
def test_safe_fixes_change_the_expression_and_nothing_else(before: str, after: str) -> None:
    """A fixed file has no finding, and every other character is as it was."""
    text = f"import json, os\nsystem_prompt = RULES + {before}  # keep\nother = 1\n"
    fixed = apply_edits(text, lint_source(text, "x.py"))
    assert fixed == text.replace(before, after)
    assert lint_source(fixed, "x.py") == []


def test_a_file_that_does_not_parse_has_no_finding() -> None:
    """Other linters say so."""
    assert lint_source("def (:\n", "x.py") == []


def test_telemetry_sends_no_prompt() -> None:
    """A module that writes prompts down for people is left alone by the folder it is in, and by no other folder above."""
    text = f'{HEAD}system_prompt = f"Now {{datetime.now()}}"\n'
    assert lint_source(text, "app/telemetry/spans.py") == []
    assert [finding.code for finding in lint_source(text, "tracing/app/head.py")] == ["A1"]
