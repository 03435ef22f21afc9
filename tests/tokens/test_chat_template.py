"""Chat templates render as Hugging Face renders them, within bounds, and say how stable they are as prefixes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.errors import TemplateError
from foreword.testing.material import fetch
from foreword.tokens.chat_template import ChatTemplate, check_prefix_stability, load_chat_template

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "chat_templates.json").read_text())
USER = {"role": "user", "content": "hi"}


def outcomes(template: ChatTemplate) -> dict[str, str | None]:
    """What the template renders in every case; None where it refuses."""
    found: dict[str, str | None] = {}
    for chat, messages in CASES["conversations"].items():
        for options, values in CASES["options"].items():
            try:
                found[f"{chat}/{options}"] = template.render(messages, **values)
            except TemplateError:
                found[f"{chat}/{options}"] = None
    return found


@pytest.mark.parametrize("name", CASES["own"])
def test_a_feature_renders_as_transformers_does(name: str) -> None:
    """Whitespace control, filters, helpers, operators, refusals: equal in 78 cases each."""
    template = ChatTemplate(CASES["own"][name], special_tokens=CASES["tokens"])
    assert outcomes(template) == CASES["expected"][name]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.material(name)) for name in CASES["expected"] if name not in CASES["own"]],
)
def test_a_model_renders_as_transformers_does(name: str) -> None:
    """Published templates, loaded from the model's own folder: equal in 78 cases each."""
    template = load_chat_template(fetch(name))
    assert template is not None
    assert outcomes(template) == CASES["expected"][name]


def test_the_clock_is_passed_in_and_noticed() -> None:
    """strftime_now reads the given clock, and a template that uses it says so."""
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 7, 4, tzinfo=UTC))
    assert template.render([USER]) == "04 Jul 2026"
    assert template.reads_clock
    assert not ChatTemplate("{{ messages }}").reads_clock


def test_tools_choose_the_template_for_them() -> None:
    """With several templates, tools pick "tool_use", nothing picks "default", and a name picks its own."""
    template = ChatTemplate({"default": "d", "tool_use": "t", "rag": "r"})
    assert template.render([USER]) == "d"
    assert template.render([USER], tools=[]) == "t"
    assert template.render([USER], template="rag") == "r"
    with pytest.raises(TemplateError, match=r"no chat template 'x'. There are: default, rag, tool_use\."):
        template.render([USER], template="x")


def test_generation_blocks_are_found_in_the_result() -> None:
    """The spans of {% generation %} blocks are the assistant's words."""
    template = ChatTemplate(CASES["own"]["generation"])
    text, spans = template.render_with_spans([USER, {"role": "assistant", "content": "ho"}, USER])
    assert (text, spans) == ("hihohi", [(2, 4)])


def test_an_exception_of_the_template_is_its_own_words() -> None:
    """raise_exception's message is the error's message."""
    with pytest.raises(TemplateError) as caught:
        ChatTemplate("{{ raise_exception('Only user roles!') }}").render([USER])
    assert str(caught.value) == "Only user roles!"


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'x' ", "{% unknown %}", "{{ x | nofilter }}", "{" + "{(" * 3000])
def test_what_is_no_template_is_refused_when_made(source: str) -> None:
    """Syntax errors appear at load time, as TemplateError."""
    with pytest.raises(TemplateError, match="not valid Jinja"):
        ChatTemplate(source)


HOSTILE = {
    "endless loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "repetition": "{{ 'x' * 10**9 }}",
    "list of lists": "{{ [['a' * 1000000] * 1000] * 1000 }}",
    "list of lists as JSON": "{{ [['a' * 1000000] * 1000] * 1000 | tojson }}",
    "doubling with ~": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling with +": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "width by %": "{{ '%1000000000d' % 1 }}",
    "width by % and *": "{{ '%*d' % (1000000000, 1) }}",
    "width by format": "{{ '{:1000000000}'.format(1) }}",
    "width by nested format": "{{ '{:{}}'.format(1, 10**9) }}",
    "width by filter": "{{ '%9999999999d' | format(1) }}",
    "width by zfill": "{{ 'x'.zfill(1000000000) }}",
    "width by center": "{{ 'x' | center(1000000000) }}",
    "indent": "{{ messages | tojson(indent=1000000000) }}",
    "tabs": "{{ '\t'.expandtabs(1000000000) }}",
    "replace": "{{ ('a,' * 100000).replace('a', 'b' * 100000) }}",
    "join": "{{ ('b' * 100000).join(['a'] * 100000) }}",
    "power tower": "{{ 9**9**9**9 }}",
    "range": "{{ range(10**9) }}",
    "batch": "{% for x in [1] | batch(1000000000, 'x') %}{% endfor %}",
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "namespace": "{{ namespace(__class__=1) }}",
    "mutation": "{{ messages.append(1) }}",
    "files": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped(name: str) -> None:
    """Whatever a template tries, the answer is a TemplateError, within a second and little memory."""
    with pytest.raises(TemplateError):
        ChatTemplate(HOSTILE[name]).render([USER])


@pytest.mark.parametrize(
    "messages,options,problem",
    [
        ([], {}, "There are no messages"),
        (["hi"], {}, "A message must be an object, not str."),
        ([USER], {"add_generation_prompt": True, "continue_final_message": True}, "cannot be continued and a new one"),
        ([{"role": "user"}], {"continue_final_message": True}, "no text to continue"),
        ([{"role": "user", "content": [{"type": "image"}]}], {"continue_final_message": True}, "no text to continue"),
    ],
)
def test_messages_that_cannot_be_rendered(messages: Any, options: Any, problem: str) -> None:
    """Wrong input is a TemplateError that says what is wrong."""
    with pytest.raises(TemplateError, match=problem):
        ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").render(messages, **options)


def test_the_callers_messages_are_left_as_they_are() -> None:
    """Marking the last message to continue it happens on a copy."""
    message = {"role": "assistant", "content": [{"type": "text", "text": "so "}]}
    before = json.dumps(message)
    text = ChatTemplate("{% for m in messages %}{{ m.content[0].text }}!{% endfor %}").render(
        [message], continue_final_message=True
    )
    assert (text, json.dumps(message)) == ("so ", before)


def test_identity_follows_what_is_rendered() -> None:
    """Equal sources and tokens have one digest; either one changed has another."""
    assert ChatTemplate("a").digest == ChatTemplate({"default": "a"}).digest
    assert (
        len({ChatTemplate("a").digest, ChatTemplate("b").digest, ChatTemplate("a", special_tokens={"x": "y"}).digest})
        == 3
    )


@pytest.mark.parametrize(
    "source,expected",
    [
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
            True,
        ),
        ("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", False),
        (
            "{% for m in messages %}{{ m.content | trim }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}",
            False,
        ),
    ],
)
def test_prefix_stability(source: str, expected: object) -> None:
    """A template is stable when the prompt of the next turn begins with the prompt of this one."""
    reply = [{"role": "assistant", "content": "ho"}, USER]
    found = check_prefix_stability(ChatTemplate(source), [USER], reply)
    assert found.stable is expected
    assert found.stable == (found.seam == len(found.earlier))
    assert found.earlier[: found.seam] == found.later[: found.seam]


@pytest.mark.material("qwen3")
def test_a_reasoning_model_drops_its_thoughts() -> None:
    """Qwen 3 keeps no earlier thinking: with the empty thought of enable_thinking=False the next prompt differs."""
    template = load_chat_template(fetch("qwen3"))
    assert template is not None
    reply = [{"role": "assistant", "content": "ho"}, USER]
    found = check_prefix_stability(template, [USER], reply, enable_thinking=False)
    assert not found.stable
    assert found.earlier[found.seam :].startswith("<think>")


def test_every_place_of_a_template_is_looked_at(tmp_path: Path) -> None:
    """chat_template.jinja and its named companions, chat_template.json, and the three forms in tokenizer_config.json."""
    config = tmp_path / "tokenizer_config.json"
    assert load_chat_template(tmp_path) is None
    config.write_text(
        json.dumps({"chat_template": [{"name": "default", "template": "list"}], "bos_token": {"content": "B"}})
    )
    found = load_chat_template(tmp_path)
    assert found is not None
    assert (found.source, found.special_tokens) == ("list", {"bos_token": "B"})
    config.write_text(json.dumps({"chat_template": "text", "extra_special_tokens": {"image_token": "<i>"}}))
    found = load_chat_template(tmp_path)
    assert found is not None
    assert (found.source, found.special_tokens) == ("text", {"image_token": "<i>"})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert (found := load_chat_template(tmp_path)) is not None
    assert found.source == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert (found := load_chat_template(tmp_path)) is not None
    assert found.sources == {"default": "jinja", "tool_use": "tools"}
    (tmp_path / "mine.jinja").write_text("mine {{ image_token }}")
    assert (found := load_chat_template(tmp_path, template=tmp_path / "mine.jinja")) is not None
    assert found.render([USER]) == "mine <i>"


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    """Invalid JSON is a TemplateError with the path."""
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TemplateError, match=r"tokenizer_config\.json is not valid JSON"):
        load_chat_template(tmp_path)


@given(st.text(alphabet="{}%# abimessagsforend.|'*+~()[]0123456789\n", max_size=60))
def test_any_text_renders_or_is_refused(source: str) -> None:
    """No template escapes with another error than TemplateError."""
    try:
        ChatTemplate(source).render([USER])
    except TemplateError:
        return


@pytest.mark.parametrize(
    "config,message",
    [
        ({"chat_template": 5}, "neither a text nor a list"),
        ({"chat_template": [5]}, "neither a text nor a list"),
        ({"chat_template": [{"name": "default"}]}, "neither a text nor a list"),
        ({"chat_template": {"default": 5}}, "neither a text nor a list"),
        ({"chat_template": "x", "bos_token": [1]}, "'bos_token' in tokenizer_config.json is no text"),
        ({"chat_template": "x", "eos_token": {"content": 1}}, "'eos_token' in tokenizer_config.json is no text"),
    ],
)
def test_a_configuration_of_the_wrong_shape_is_an_error(tmp_path: Path, config: Any, message: str) -> None:
    """Nothing is left out silently: a template or a special token that is none is a TemplateError."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TemplateError, match=message):
        load_chat_template(tmp_path)


def test_any_name_may_be_a_variable() -> None:
    """A variable called like the method's own parameter is let through."""
    assert ChatTemplate("{{ messages[0].content }}").render([USER], self="me") == "hi"
