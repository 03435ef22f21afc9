"""``diff_prompts``: where two prompts part, why, who owns it, and what each fix gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from foreword.diagnose.causes import Context, Verdict
from foreword.diagnose.causes.e_template import special_tokens
from foreword.diagnose.changes import Change
from foreword.diagnose.expected import is_in_newest_turn
from foreword.diagnose.faults import Fault, find_faults
from foreword.diagnose.layout import Layout, format_path, neutral_layout
from foreword.diagnose.likeness import text_of
from foreword.diagnose.notes import OutsideCause
from foreword.diagnose.pair import Pair, read_pair
from foreword.diagnose.seam import Chip, chips, shared_tokens
from foreword.diagnose.splice import PieceEncoder
from foreword.diagnose.texts import common_prefix
from foreword.tokens.tokenizer import Tokenizer

_SHOWN = 200
_WINDOW = 3


@dataclass(frozen=True, slots=True)
class Seam:
    """One place where B stops matching A.

    Attributes:
        index: the token at which matching stops once all seams before this one are fixed.
        lost_tokens: tokens from here on that both requests share and B computes again.
        recovered_alone: tokens B gains when this seam alone is fixed, as replayed after the edit.
        recovered_together: tokens B gains when this and all seams before it are fixed.
        cost: what the lost tokens cost above the cache-read price, in dollars, where the price is known.
        a_chips: the tokens around the seam on A's side; the first _WINDOW of them are shared.
    """

    index: int
    code: str
    name: str
    layer: str
    path: str
    char: int
    a_text: str
    b_text: str
    owner: str
    edit: str
    evidence: str
    lost_tokens: int
    recovered_alone: int
    recovered_together: int
    a_chips: tuple[Chip, ...] = ()
    b_chips: tuple[Chip, ...] = ()
    cost: Decimal | None = None


Relation = Literal["identical", "appended", "expected", "seam"]


@dataclass(frozen=True, slots=True)
class Diff:
    """The verdict on two prompts; ``seams`` in the order in which they cost.

    Attributes:
        is_same_text: whether both render to the same text; with other ids that is the tokenizer's doing.
        unreachable_tokens: identical in both, and out of reach behind the seams.
        provider_reason: what the provider said of B's miss, where the log has it: a category and a count, as it came.
        repaired: both requests with every fix applied; they share ``shared_tokens + unreachable_tokens``.
    """

    relation: Relation
    shared_tokens: int
    shared_fraction: float
    shared_blocks: int
    block_size: int
    a_tokens: int
    b_tokens: int
    confidence: str
    is_same_text: bool
    seams: tuple[Seam, ...] = ()
    outside_causes: tuple[OutsideCause, ...] = ()
    unreachable_tokens: int = 0
    repaired: tuple[Any, Any] | None = None
    provider_reason: str = ""

    @property
    def identical(self) -> bool:
        """Whether both have the same token ids, whatever their text."""
        return self.relation == "identical"


def diff_prompts(
    a: Any,
    b: Any,
    tokenizer: Tokenizer,
    *,
    layout: Layout = neutral_layout,
    block_size: int = 16,
    other_tokenizer: Tokenizer | None = None,
    other_layout: Layout | None = None,
    same_session: bool | None = None,
    price: Callable[[int], Decimal] | None = None,
    encoder: PieceEncoder | None = None,
) -> Diff:
    """Compare two prompts in token ids.

    Args:
        a: the earlier prompt, a text or a request body.
        b: the later one.
        tokenizer: turns both into ids.
        layout: how a body becomes text: ``template_layout`` of the model's chat template, or the neutral one.
        block_size: tokens a block.
        other_tokenizer: B's tokenizer, where it is not A's.
        other_layout: B's layout, where it is not A's.
        same_session: whether both come from one session, where that is known.
        encoder: A's tokenizer with the pieces it knows, where many prompts are compared.
        price: dollars lost when this many tokens are billed in full instead of as a cache read.

    Raises:
        RequestError: a body is of no known API.
        TokenizerError: a text cannot be encoded.
    """
    pair = read_pair(
        a, b, tokenizer, layout=layout, other_tokenizer=other_tokenizer, other_layout=other_layout, encoder=encoder
    )
    return _judge(pair, block_size=block_size, same_session=same_session, price=price)


def _judge(pair: Pair, *, block_size: int, same_session: bool | None, price: Callable[[int], Decimal] | None) -> Diff:
    ids_a, ids_b = pair.ids("a"), pair.ids("b")
    shared = shared_tokens(ids_a, ids_b)
    found, notes = find_faults(pair, shared, same_session=same_session)
    fixes: dict[Change, str] = {}
    seams = tuple(_seams(pair, found, fixes, price))
    if not seams and _is_broken_template(pair, shared):
        seams = (_template_seam(pair, shared, price),)
    relation = _relation(pair, shared, seams, notes)
    return Diff(
        relation=relation,
        shared_tokens=shared,
        shared_fraction=round(shared / max(len(ids_a), len(ids_b), 1), 4),
        shared_blocks=shared // block_size,
        block_size=block_size,
        a_tokens=len(ids_a),
        b_tokens=len(ids_b),
        confidence=_confidence(pair),
        is_same_text=pair.text("a") == pair.text("b"),
        seams=seams,
        outside_causes=tuple(notes),
        unreachable_tokens=seams[-1].recovered_together if seams else 0,
        repaired=pair.fixed_documents(fixes) if fixes else None,
    )


def _confidence(pair: Pair) -> str:
    if isinstance(pair.a, str) and isinstance(pair.b, str):
        return "exact for this tokenizer"
    if pair.a_reading.is_neutral:
        return "order and content exact; token counts near, the server's template is not known"
    return "exact for this tokenizer and chat template"


def _relation(pair: Pair, shared: int, seams: Sequence[Seam], notes: Sequence[OutsideCause]) -> Relation:
    if seams:
        return "seam"
    if shared == len(pair.ids("a")) == len(pair.ids("b")):
        return "identical"
    if all(change.op == "append" for change in pair.changes) and not notes:
        return "appended"
    return "expected"


def _seams(
    pair: Pair, found: Sequence[Fault], fixes: dict[Change, str], price: Callable[[int], Decimal] | None
) -> Iterator[Seam]:
    """Each found change with its gains, all of them measured on requests composed and encoded after the fix."""
    shared = shared_tokens(pair.ids("a"), pair.ids("b"))
    steps: list[tuple[Fault, int, int, tuple[Sequence[int], Sequence[int]]]] = []
    before = pair.fixed({})
    for item in found:
        index = shared_tokens(*before)
        alone = _gain(pair, {item.change: item.verdict.fix}, shared)
        fixes[item.change] = item.verdict.fix
        after = pair.fixed(fixes)
        if _matters(pair, item, fixes, index):
            steps.append((item, alone, shared_tokens(*after) - shared, before))
            before = after
        else:
            del fixes[item.change]
    total = shared_tokens(*before)
    for item, alone, together, sides in steps:
        lost = total - shared_tokens(*sides)
        yield _seam(pair, item, sides, alone=alone, together=together, lost=lost, price=price)


def _gain(pair: Pair, fixes: Mapping[Change, str], shared: int) -> int:
    return shared_tokens(*pair.fixed(fixes)) - shared


def _matters(pair: Pair, item: Fault, fixes: Mapping[Change, str], index: int) -> bool:
    """A change in the newest turn of both matters only when a block or more of shared text stands behind it."""
    if not is_in_newest_turn(item.change, pair):
        return True
    return shared_tokens(*pair.fixed({**fixes, item.change: "move"})) - index >= pair.worth


def _seam(
    pair: Pair,
    item: Fault,
    sides: tuple[Sequence[int], Sequence[int]],
    *,
    alone: int,
    together: int,
    lost: int,
    price: Callable[[int], Decimal] | None,
) -> Seam:
    change, cause = item.change, item.verdict.cause
    index = shared_tokens(*sides)
    a_text, b_text = _side_text(change.a), _side_text(change.b)
    return Seam(
        index=index,
        code=cause.code,
        name=cause.name,
        layer=Context(pair.a, pair.b).layer(change),
        path=format_path(change.path),
        char=change.b_at + common_prefix(a_text, b_text) if isinstance(change.b_whole, str) else 0,
        a_text=a_text[:_SHOWN],
        b_text=b_text[:_SHOWN],
        owner=cause.owner,
        edit=cause.edit,
        evidence=item.verdict.evidence,
        lost_tokens=lost,
        recovered_alone=alone,
        recovered_together=together,
        a_chips=chips(sides[0], index - _WINDOW, index + _WINDOW, pair.a_reading.tokenizer),
        b_chips=chips(sides[1], index - _WINDOW, index + _WINDOW, pair.b_reading.tokenizer),
        cost=price(lost) if price else None,
    )


def _side_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return text_of(value) or ("" if value is None else repr(value))


def _is_broken_template(pair: Pair, shared: int) -> bool:
    """Whether B only adds turns to A and yet does not begin with A's ids: the template's doing."""
    if isinstance(pair.a, str) or pair.a_reading.is_neutral or pair.environment():
        return False
    appended = [item for change in pair.changes if change.op == "append" for item in change.b or ()]
    answered = bool(appended) and isinstance(appended[0], dict) and appended[0].get("role") == "assistant"
    only_appends = all(change.op == "append" for change in pair.changes)
    return answered and only_appends and shared < len(pair.ids("a"))


def _template_seam(pair: Pair, shared: int, price: Callable[[int], Decimal] | None) -> Seam:
    lost = len(pair.ids("a")) - shared
    evidence = f"the next turn keeps {shared} of the {lost + shared} tokens it should extend"
    change = Change("value", (), "", "")
    item = Fault(shared, change, Verdict.of("E1", evidence))
    sides = (pair.ids("a"), pair.ids("b"))
    return _seam(pair, item, sides, alone=lost, together=lost, lost=lost, price=price)


def diff_ids(a: Sequence[int], b: Sequence[int], tokenizer: Tokenizer, *, block_size: int = 16) -> Diff:
    """Compare ids as they were sent, from a log that kept them: a shift by one, or one text in two tokenisations."""
    shared = shared_tokens(a, b)
    verdict = _verdict_on_ids(a, b, shared, tokenizer)
    total = min(len(a), len(b))
    seam: tuple[Seam, ...] = ()
    if verdict is not None:
        lost = total - shared
        seam = (
            Seam(
                shared, verdict.cause.code, verdict.cause.name, "prompt", "", 0, "", "", verdict.cause.owner, verdict.cause.edit,
                verdict.evidence, lost, lost, lost,
                chips(a, shared - _WINDOW, shared + _WINDOW, tokenizer), chips(b, shared - _WINDOW, shared + _WINDOW, tokenizer),
            ),
        )  # fmt: skip
    relation: Relation = "seam" if seam else "identical" if len(a) == len(b) == shared else "appended"
    return Diff(
        relation, shared, round(shared / max(len(a), len(b), 1), 4), shared // block_size, block_size, len(a), len(b),
        "exact: the ids are the log's own", bool(seam) and verdict is not None and verdict.cause.code == "E2", seam,
        unreachable_tokens=total - shared if seam else 0,
    )  # fmt: skip


def _verdict_on_ids(a: Sequence[int], b: Sequence[int], shared: int, tokenizer: Tokenizer) -> Verdict | None:
    if shared == min(len(a), len(b)):
        return None
    if shared <= 1 and (shifted := special_tokens(a, b)):
        return shifted
    texts = [tokenizer.decode(list(ids), skip_special_tokens=False) for ids in (a, b)]
    alike = common_prefix(*texts)
    if alike >= min(map(len, texts)) or alike > len(tokenizer.decode(list(a[: shared + 1]), skip_special_tokens=False)):
        at = slice(shared, shared + 2)
        return Verdict.of("E2", f"one text, ids {list(a[at])} and {list(b[at])}")
    return Verdict.of("Z0", "the texts differ too")
