"""The one way in: defaults < TOML file < environment < flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foreword.config.setting import PREFIX, did_you_mean
from foreword.config.table import Config, settings
from foreword.errors import ConfigError

CONFIG_FILE = "foreword.toml"
OTHER_VARIABLES = {
    "FOREWORD_API_KEY": "The admin's key that `foreword cache` sends; `foreword serve` does not read it.",
    "FOREWORD_CONFIG": "The configuration file, as --config.",
    "FOREWORD_CACHE": "The folder that downloaded models are kept in.",
}
"""Variables that are no setting of the gateway."""

WORKER_SCHEMES: tuple[str, ...] = ("http", "https", "grpc", "grpcs", "zmq+ipc", "ipc")
"""Schemes of --worker-urls that this release has a client for."""


def load_config(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    folder: Path = Path(),
) -> Config:
    """Read every source, later ones winning: defaults, TOML file, environment, flags.

    Args:
        flags: setting name -> value as typed; None stands for a flag that was not given.
        environ: the process's variables.
        file: the TOML file; without it FOREWORD_CONFIG, else foreword.toml in ``folder`` where there is one.
        folder: where foreword.toml is looked for.

    Raises:
        ConfigError: a key, variable or value is unknown or wrong.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = (_read_file(environ or {}, file, folder), _read_environment(environ or {}), _read_flags(flags or {}))
    rows = {row.name: row for row in settings()}
    for layer in layers:
        for name, (value, source) in layer.items():
            values[name] = rows[name].parse(value, source)
            sources[name] = source
    config = Config(**values, sources=sources)
    _check_worker_urls(config)
    _check_ports(config)
    return config


_Layer = dict[str, tuple[Any, str]]
"""Setting name -> raw value and where it stands."""


def _read_flags(flags: Mapping[str, Any]) -> _Layer:
    flag_of = {row.name: row.flag for row in settings()}
    return {name: (value, flag_of[name]) for name, value in flags.items() if value is not None and value != ()}


def _read_environment(environ: Mapping[str, str]) -> _Layer:
    known = {row.variable: row.name for row in settings()}
    layer: _Layer = {}
    for variable, value in sorted(environ.items()):
        ours = variable.startswith(PREFIX) and variable not in OTHER_VARIABLES
        if not ours or not value or _is_service_link(variable, value):
            continue
        if variable not in known:
            suggestion = _suggest_variable(variable, [*known, *OTHER_VARIABLES])
            raise ConfigError(f"Unknown environment variable {variable}{suggestion or '.'}", variable=variable)
        layer[known[variable]] = (value, variable)
    return layer


def _suggest_variable(variable: str, known: list[str]) -> str:
    """Compare what follows FOREWORD_: with it, every two variables would look alike."""
    suggestion = did_you_mean(variable.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known])
    return suggestion.replace("mean '", f"mean '{PREFIX}")


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes set it: every pod beside a service called ``foreword`` is given FOREWORD_PORT=tcp://..."""
    if variable == "FOREWORD_PORT":
        return value.startswith(("tcp://", "udp://"))
    return bool(re.fullmatch(r"FOREWORD_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)(_PROTO|_PORT|_ADDR)?)", variable))


def _read_file(environ: Mapping[str, str], file: Path | None, folder: Path) -> _Layer:
    """The TOML file's layer; a file that was named must exist, the usual one need not."""
    named = file or (Path(environ["FOREWORD_CONFIG"]) if environ.get("FOREWORD_CONFIG") else None)
    path = named or folder / CONFIG_FILE
    if named is None and not path.exists():
        return {}
    known = {row.key: row.name for row in settings()}
    layer: _Layer = {}
    for key, value in _parse_toml(path).items():
        if key not in known:
            suggestion = did_you_mean(key.replace("_", "-"), known)
            raise ConfigError(f"{path}: unknown key {key!r}{suggestion or '.'}", path=str(path), key=key)
        layer[known[key]] = (value, f"{path}: {key}")
    return layer


def _parse_toml(path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only a configuration file needs it, and `--help` must be fast

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file {path}: {error.strerror}.", path=str(path)) from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply.", path=str(path)) from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"{path} is not valid TOML: {error}.", path=str(path)) from error


def _check_worker_urls(config: Config) -> None:
    for url in config.worker_urls:
        scheme = url.partition(":")[0].lower()
        if scheme not in WORKER_SCHEMES:
            offered = f"Use one of {', '.join(WORKER_SCHEMES)}." if WORKER_SCHEMES else ""
            raise ConfigError(
                f"{config.source('worker_urls')}: this release has no client for workers at {redact_url(url)!r}.",
                hint=offered or "Leave --worker-urls out and the embedded engine is the worker.",
                scheme=scheme,
            )


def _check_ports(config: Config) -> None:
    if config.port and config.port == config.prometheus_port:
        raise ConfigError(
            f"--port and --prometheus-port are both {config.port}.",
            hint="Leave --prometheus-port out to serve /metrics on the main port.",
        )


def redact_url(url: str) -> str:
    """The URL without a password."""
    return re.sub(r"//[^/@\s]*@", "//***@", url)
