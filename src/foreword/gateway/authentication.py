"""API keys: a file of them, held as digests, and whose request a key makes it."""

from __future__ import annotations

import hashlib
import hmac
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from foreword.errors import ConfigError
from foreword.gateway.errors import Refusal

log = structlog.get_logger()

_COMMENT = re.compile(r"(?:^|\s)#")


@dataclass(frozen=True, slots=True)
class Account:
    """Whose key it is, and whether it may change the server and read its metrics."""

    organisation: str
    admin: bool = False


class ApiKeys:
    """The accounts by key. Only sha256 digests are kept, and they are compared in constant time."""

    def __init__(self, accounts: Mapping[bytes, Account]) -> None:
        self._accounts = {digest[:8]: (digest, account) for digest, account in accounts.items()}

    def __len__(self) -> int:
        return len(self._accounts)

    @classmethod
    def load(cls, path: Path) -> ApiKeys:
        """Read ``organisation key [admin]`` lines; ``#`` at the start or after a space begins a comment. Raises ConfigError naming the line."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            raise ConfigError(f"Cannot read the API keys in {path}: {error}.", path=str(path)) from error
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("api_keys.readable_by_others", path=str(path), remedy=f"chmod 600 {path}")
        accounts: dict[bytes, Account] = {}
        for number, line in enumerate(lines, start=1):
            words = _COMMENT.split(line, maxsplit=1)[0].split()
            if words:
                digest, account = _parse_line(words, f"{path}, line {number}")
                if digest in accounts:
                    raise ConfigError(f"{path}, line {number}: this key is in the file twice.")
                accounts[digest] = account
        if not accounts:
            raise ConfigError(f"{path} has no API key.", hint="Each line is: organisation key [admin]")
        return cls(accounts)

    def find(self, key: bytes) -> Account | None:
        """The account of a key, or None."""
        digest = hashlib.sha256(key).digest()
        known, account = self._accounts.get(digest[:8], (b"", None))
        return account if hmac.compare_digest(digest, known) else None

    def authenticate(self, headers: Mapping[bytes, bytes]) -> Account:
        """The account that ``Authorization: Bearer KEY`` or ``x-api-key: KEY`` names; raises Refusal (401)."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            key = headers.get(b"x-api-key", b"")
        if not key:
            raise _unauthorised("No API key was given.", "Send it as 'Authorization: Bearer KEY'.")
        account = self.find(key.strip())
        if account is None:
            raise _unauthorised("The API key is not known here.", "Check the key, or ask the server's operator.")
        return account


def _unauthorised(message: str, hint: str) -> Refusal:
    challenge = ((b"www-authenticate", b"Bearer"),)
    return Refusal(message, status=401, code="invalid_api_key", hint=hint, headers=challenge)


def _parse_line(words: list[str], place: str) -> tuple[bytes, Account]:
    organisation, *rest = words
    if not rest or len(rest) > 2 or rest[1:] not in ([], ["admin"]):
        raise ConfigError(f"{place}: expected 'organisation key [admin]'.")  # never the line itself: it has the key
    digest = hashlib.sha256(rest[0].encode()).digest()
    return digest, Account(organisation, admin=rest[1:] == ["admin"])
