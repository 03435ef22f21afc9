"""The folder of fetched models: where it is, what is in it, and how a model gets in whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foreword.errors import ConfigError
from foreword.models.digest import file_digest

_MANIFEST = "foreword.json"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """FOREWORD_CACHE, else the platform's cache folder: $XDG_CACHE_HOME or ~/.cache, ~/Library/Caches on macOS.

    Raises:
        ConfigError: FOREWORD_CACHE names the home of no user.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get("FOREWORD_CACHE"):
        try:
            return Path(named).expanduser()
        except RuntimeError as error:
            raise ConfigError(f"FOREWORD_CACHE: {named[:200]!r} is the home of no user here.") from error
    if (xdg := environ.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():
        return Path(xdg) / "foreword"
    home = Path(environ.get("HOME") or Path.home())
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "foreword"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model in the store.

    Attributes:
        source: the URL it came from.
        files: file name -> (bytes, SHA-256).
    """

    name: str
    folder: Path
    source: str
    files: Mapping[str, tuple[int, str]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())

    def problems(self, *, digests: bool = False) -> list[str]:
        """What is wrong with the files; by size, or by digest when asked."""
        found = []
        for name, (size, digest) in self.files.items():
            path = self.folder / name
            if not path.is_file():
                found.append(f"{name} is missing")
            elif path.stat().st_size != size:
                found.append(f"{name} has {path.stat().st_size:,} bytes in place of {size:,}")
            elif digests and file_digest(path) != digest:
                found.append(f"{name} was changed")
        return found


class ModelStore:
    """Models by name under ``<cache folder>/models``. Several processes may use one store."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or cache_folder()
        self.folder = self.cache / "models"

    def find(self, name: str) -> InstalledModel | None:
        """The model of that name, or None when it is not there or not whole."""
        model = self._read(self.folder / name)
        return model if model and not model.problems() else None

    def installed(self) -> list[InstalledModel]:
        """Every model, by name, whole or not."""
        if not self.folder.is_dir():
            return []
        return [model for path in sorted(self.folder.iterdir()) if (model := self._read(path))]

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold a model's name, so that one process fetches it and the others wait and find it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f".{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def staging(self, name: str, source: str) -> Path:
        """The folder a model is put together in before ``publish``; what is there from before may be resumed."""
        folder = self.folder / f".{name}.{source}.partial"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(self, name: str, staged: Path, *, source: str) -> InstalledModel:
        """Give a staged folder its manifest and its place, in one step, and drop other attempts at the model."""
        target = self.folder / name
        files = {path.name: (path.stat().st_size, file_digest(path)) for path in sorted(staged.iterdir())}
        manifest = {"name": name, "source": source, "fetched": datetime.now(UTC).isoformat(), "files": files}
        (staged / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)
        for leftover in self.folder.glob(f".{name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        return InstalledModel(name, target, source, files)

    def keep_files(self, kind: str, files: Mapping[str, str]) -> Path:
        """A folder that holds exactly these texts, named by their digest; written once."""
        digest = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
        target = self.cache / kind / digest[:32]
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=target.parent, prefix="."))
        for name, text in files.items():
            (staged / name).write_text(text, encoding="utf-8")
        try:
            staged.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(staged)
        return target

    @staticmethod
    def _read(folder: Path) -> InstalledModel | None:
        try:
            manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            files = {name: (size, digest) for name, (size, digest) in manifest["files"].items()}
            return InstalledModel(manifest["name"], folder, manifest["source"], files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
