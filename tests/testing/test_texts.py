"""The texts are nasty, and the same ones for the same seed."""

import itertools

from tokenizers import Tokenizer

from foreword.testing.crafted import RECIPES, craft
from foreword.testing.texts import families

TOKENS = ("<|im_start|>", "<|im_end|>", "<s>")


def test_one_seed_gives_the_same_texts() -> None:
    """A failure comes back with its seed."""
    assert families(1, TOKENS, 100) == families(1, TOKENS, 100)
    assert families(1, TOKENS, 100) != families(2, TOKENS, 100)


def test_families_grow_and_are_edited() -> None:
    """Each grown text begins with the one before; most edits change the middle and keep the beginning."""
    made = families(3, TOKENS, 500)
    assert sum(len(list(family)) for family in made) >= 500
    for family in made:
        assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(family.grown))


def test_texts_have_what_goes_wrong() -> None:
    """Sizes from nothing to over 12 KB; growth that breaks off in a token; marks behind one; every kind of space."""
    texts = [text for family in families(4, TOKENS, 2000) for text in family]
    sizes = [len(text.encode()) for text in texts]
    assert (min(sizes), max(sizes) > 12_000) == (0, True)
    assert sum(500 < size < 700 for size in sizes) > 100
    assert sum(4_000 < size < 5_000 for size in sizes) > 5
    assert any(text.endswith("<|im_end"[:n]) for text in texts for n in range(3, 9))
    assert any(
        f"{token}{mark}" in text for text in texts for token in TOKENS for mark in ("\u0301", "\u0338", "\u0327")
    )
    assert all(any(space in text for text in texts) for space in ("\u00a0", "\r\n", "\t", "\u3000", "\u200d", "\x00"))


def test_every_recipe_makes_a_tokenizer() -> None:
    """Each loads, and a recipe made twice is the same."""
    for name, recipe in RECIPES.items():
        definition = craft(recipe)
        tokenizer = Tokenizer.from_str(definition)
        assert tokenizer.encode("hello").ids, name
    assert craft(RECIPES["cl100k-like"]) == craft(RECIPES["cl100k-like"])
