"""Group E: templates and tokenizers."""

from __future__ import annotations

import unicodedata

from tests.cases.build import Case, assistant, case, chat, prose, system, talk, user
from tests.cases.templates import (
    render_effort,
    render_headers,
    render_no_think_opening,
    render_plain,
    render_think_opening,
)

from foreword.diagnose.layout import template_layout

RULES = prose(200, 31)


@case
def empty_think_block_in_the_opening() -> Case:
    """Thinking off: the generation prompt has an empty think block, the history has none."""
    layout = template_layout(render_no_think_opening)
    a, b = (
        chat(system(RULES), *talk(2), user("Go.")),
        chat(system(RULES), *talk(2), user("Go."), assistant("Going."), user("On.")),
    )
    return Case("67", "E1", "empty think block in the generation prompt only", a, b, layouts=(layout, layout))


@case
def think_tag_in_the_opening() -> Case:
    """The last tokens of the prompt (header and think tag) differ from the history."""
    layout = template_layout(render_think_opening)
    a, b = (
        chat(system(RULES), *talk(8), user("Go.")),
        chat(system(RULES), *talk(8), user("Go."), assistant("Going."), user("On.")),
    )
    return Case("68", "E1", "think tag in the generation prompt", a, b, layouts=(layout, layout))


@case
def output_tokenised_again() -> Case:
    """The text is the same, one token was sampled where two are encoded."""
    return Case("73", "E2", "sampled token encoded as two", extra={"retokenise": True})


@case
def router_without_bos() -> Case:
    """The router encodes without special tokens, the engine with."""
    return Case("74", "E3", "BOS on one side only", extra={"bos": (False, True)})


@case
def double_bos() -> Case:
    """The template writes BOS and the tokenizer adds another."""
    return Case("75", "E3", "BOS twice", extra={"bos": (True, 2)})


@case
def cache_hit_with_the_other_flag() -> Case:
    """A cache whose key leaves out add_special_tokens answers with the other flag's ids."""
    return Case("76", "E3", "cached ids of the other flag", extra={"bos": (True, False)})


@case
def effort_in_the_head() -> Case:
    """The template writes the effort at token 8."""
    layout = template_layout(render_effort)
    a = chat(system(RULES), *talk(3), user("Go."), reasoning_effort="high")
    b = chat(system(RULES), *talk(3), user("Go."), assistant("Going."), user("On."), reasoning_effort="low")
    return Case("77", "E4", "effort rendered into the head", a, b, layouts=(layout, layout))


@case
def trailing_space() -> Case:
    """The specification's ``Instructions:`` and ``Instructions: ``."""
    a, b = f"Instructions:\n{RULES}", f"Instructions: \n{RULES}"
    return Case("S1", "E5", "trailing space", a, b, fixed=(a, a))


@case
def decomposed_accents() -> Case:
    """One side is NFD."""
    text = f"Réponds en français, à l'heure.\n{RULES}"
    return Case("S2", "E5", "NFC and NFD", text, unicodedata.normalize("NFD", text), fixed=(text, text))


@case
def line_ends() -> Case:
    """One side has CRLF."""
    return Case("S3", "E5", "LF and CRLF", RULES, RULES.replace("\n", "\r\n"), fixed=(RULES, RULES))


@case
def joiner() -> Case:
    """A zero-width joiner that nobody sees."""
    a = f"Serve the customer well.\n{RULES}"
    return Case("S4", "E5", "zero-width joiner", a, a.replace("customer", "cus\u200dtomer"), fixed=(a, a))


@case
def another_vocabulary() -> Case:
    """The same text under another vocabulary."""
    body = chat(system(RULES), user("Go."))
    return Case("S5", "E6", "tokenizer changed", body, body, extra={"other_tokenizer": True})


@case
def another_template() -> Case:
    """The same messages under another template."""
    body = chat(system(RULES), user("Go."))
    return Case(
        "S6",
        "E7",
        "chat template changed",
        body,
        body,
        layouts=(template_layout(render_plain), template_layout(render_headers)),
    )
