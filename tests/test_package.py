"""The package as a whole."""

import foreword


def test_public_names_are_sorted_and_exist() -> None:
    """Every public name exists, and the list is in order."""
    assert foreword.__all__ == sorted(foreword.__all__)
    assert all(hasattr(foreword, name) for name in foreword.__all__)
