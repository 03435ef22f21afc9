"""The certificate of cut points."""

import re

import pytest

from foreword.tokens.boundaries import (
    GPT2_PAIRS,
    PLAIN,
    AddedToken,
    Boundaries,
    Cut,
    Cuts,
    count_ids,
    is_overlap_free,
    needs_two_scans,
    pieces,
)
from foreword.tokens.tokenizer import TokenIds

IM_END = AddedToken(7, "<|im_end|>")
IM_END_LINE = AddedToken(8, "<|im_end|>\n")


def _boundaries(*tokens: AddedToken, pairs: re.Pattern[str] | None = None) -> Boundaries:
    return Boundaries(tokens, scanned=tokens, anchors=tokens, pairs=pairs)


def test_a_cut_is_where_a_stable_token_ends() -> None:
    """The rest is encoded from the token's own start, and loses the token's id."""
    cuts = _boundaries(IM_END).cuts("a<|im_end|>b")
    assert list(cuts) == [Cut(end=11, overlap=10, token=7)]
    assert cuts[0].resume == 1


def test_a_token_inside_a_longer_one_is_no_cut() -> None:
    """What follows could turn <|im_end|> into <|im_end|> and a line break; the longer token is a cut."""
    cuts = _boundaries(IM_END, IM_END_LINE).cuts("a<|im_end|>b<|im_end|>\nc")
    assert [(cut.end, cut.token) for cut in cuts] == [(23, 8)]


def test_a_token_at_the_end_of_a_longer_one_is_a_cut() -> None:
    """Nothing that follows can change its match."""
    cuts = _boundaries(AddedToken(1, "</s>"), AddedToken(2, "x</s>")).cuts("a</s>x</s>")
    assert [(cut.end, cut.token) for cut in cuts] == [(5, 1), (10, 2)]


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_matches_across_windows_are_those_of_one_scan(shift: int) -> None:
    """A text longer than a scanning window has the same cuts as a short one, wherever a match falls."""
    text = "x" * (65_500 + shift) + "<|im_end|>" * 9
    ends = [cut.end for cut in _boundaries(IM_END).cuts(text)]
    assert ends == [65_510 + shift + 10 * place for place in range(9)]


def test_plain_text_is_cut_at_the_first_safe_pair_after_each_spacing() -> None:
    """The character after the cut belongs to it, and is encoded again."""
    text = "word " * 2000
    cuts = _boundaries(pairs=GPT2_PAIRS).cuts(text)
    assert [(cut.end, cut.overlap, cut.token) for cut in cuts] == [(4100, 1, PLAIN), (8200, 1, PLAIN)]
    assert list(map(len, pieces(text, 0, cuts))) == [4099, 4100, 1801]


def test_plain_text_is_not_cut_inside_a_possible_token() -> None:
    """A pair that some added token has inside it is never a cut: the token's match would cover it."""
    assert len(_boundaries(AddedToken(1, "<d w>"), pairs=GPT2_PAIRS).cuts("word " * 2000)) == 0


def test_a_token_that_eats_its_surroundings_forbids_plain_cuts() -> None:
    """With lstrip, rstrip or single_word a match depends on what stands around it."""
    token = AddedToken(1, "<u>", rstrip=True)
    assert len(_boundaries(token, pairs=GPT2_PAIRS).cuts("word " * 2000)) == 0


def test_ids_are_counted_where_they_stand_for_matches() -> None:
    """Each match gives its id once, so its place among the ids is known."""
    cuts = _boundaries(IM_END).cuts("a<|im_end|>bc<|im_end|>")
    counted = count_ids(cuts, [TokenIds.of([5, 7, 6, 6, 7]).buffer], 10)
    assert [cut.ids_before for cut in counted] == [12, 15]


def test_ids_that_plain_text_made_void_the_cuts_of_a_piece() -> None:
    """One id more than matches: which of them is the token cannot be told."""
    cuts = _boundaries(IM_END).cuts("a<|im_end|>b")
    assert len(count_ids(cuts, [TokenIds.of([7, 7, 6]).buffer], 0)) == 0


def test_a_lone_surrogate_has_no_cuts() -> None:
    """The encoder decides what to do about it."""
    assert len(_boundaries(IM_END).cuts("\ud800<|im_end|>")) == 0


def test_one_scan_stands_for_two_unless_a_late_match_could_reach_into_an_early_one() -> None:
    """Only a token of the second pass that begins first makes a difference."""
    assert not needs_two_scans([_raw("<|a|>")], [_late("<|b|>")])
    assert not needs_two_scans([_raw("<|a")], [_late("a|>")])
    assert needs_two_scans([_raw("a|>")], [_late("<|a")])
    assert needs_two_scans([_raw("b")], [_late("abc")])
    assert needs_two_scans([_raw("<|a|>", rstrip=True)], [_late("\n\n")])
    assert not needs_two_scans([_raw("<|a|>", rstrip=True)], [])


def _raw(content: str, *, rstrip: bool = False) -> AddedToken:
    return AddedToken(1, content, rstrip=rstrip)


def _late(content: str) -> AddedToken:
    return AddedToken(2, content, normalized=True)


def test_overlap_free_sets_share_no_character() -> None:
    """Neither inside nor across one another."""
    assert is_overlap_free(["<|a|>", "<|b|>"])
    assert not is_overlap_free(["<|a|>", "<|a|>\n"])
    assert not is_overlap_free(["ab", "bc"])


def test_through_counts_the_cuts_up_to_an_end() -> None:
    """By halving: a cut belongs to the text once all its characters match."""
    cuts = Cuts()
    for end in (5, 9, 20):
        cuts.packed.extend((end, 1, PLAIN, end))
    assert [cuts.through(end) for end in (0, 4, 5, 8, 9, 19, 20, 99)] == [0, 0, 1, 1, 2, 2, 3, 3]
