"""The package as a whole."""

import foreword


def test_public_names_are_listed_and_exist() -> None:
    """Every public name that has a home is listed once, and exists. Their order is the linter's business (RUF022)."""
    assert sorted(foreword.__all__) == sorted([*foreword._HOMES, "__version__"])
    assert all(hasattr(foreword, name) for name in foreword.__all__)
