"""Every setting, declared once, and the one way in: defaults < TOML file < environment < flags.

A field of ``Config`` called ``max_body_bytes`` is the flag ``--max-body-bytes``, the variable
``FOREWORD_MAX_BODY_BYTES`` and the TOML key ``max-body-bytes``. Help, type, range and section sit in the field; the
options of ``foreword serve``, the output of ``foreword doctor`` and docs/reference/configuration.md are made from them.
To add a setting, add a field.
"""

from foreword.config.load import CONFIG_FILE, OTHER_VARIABLES, load_config, redact_url
from foreword.config.setting import Setting
from foreword.config.table import Config, settings

__all__ = ["CONFIG_FILE", "OTHER_VARIABLES", "Config", "Setting", "load_config", "redact_url", "settings"]
