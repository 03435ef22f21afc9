"""Configuration: one way in, later sources win, and mistakes are answered with what was meant."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.config import Config, Setting, load_config, redact_url, settings
from foreword.errors import ConfigError, ForewordError


def test_defaults_are_those_of_the_specification(tmp_path: Path) -> None:
    """With no source at all, both cache levels are off and the bounds are the documented ones."""
    config = load_config(folder=tmp_path)

    assert config == Config()
    assert (config.tokenizer_cache_enable_l0, config.tokenizer_cache_enable_l1) == (False, False)
    assert config.tokenizer_cache_l0_max_entries == 10_000
    assert config.tokenizer_cache_l0_max_memory == 268_435_456
    assert config.tokenizer_cache_l1_max_memory == 52_428_800
    assert config.log_prompts is False
    assert config.source("port") == "default"


def test_later_sources_win_and_are_remembered(tmp_path: Path) -> None:
    """A flag beats a variable, a variable beats the file, the file beats the default; each value says which."""
    (tmp_path / "foreword.toml").write_text('port = 1001\nhost = "h"\nlog-level = "debug"\n')
    environ = {"FOREWORD_PORT": "1002", "FOREWORD_HOST": "0.0.0.0", "PATH": "/bin"}

    config = load_config({"port": "1003", "policy": None}, environ=environ, folder=tmp_path)

    assert (config.port, config.host, config.log_level, config.policy) == (1003, "0.0.0.0", "debug", "cache_aware")
    assert config.source("port") == "--port"
    assert config.source("host") == "FOREWORD_HOST"
    assert config.source("log_level") == f"{tmp_path / 'foreword.toml'}: log-level"
    assert config.source("policy") == "default"


def test_each_kind_is_read_from_text_and_from_toml(tmp_path: Path) -> None:
    """Booleans, numbers, paths and texts mean the same in a variable and in the file."""
    (tmp_path / "foreword.toml").write_text(
        'tokenizer-cache-enable-l0 = true\nrequest-timeout = 5\napi-keys = "keys"\nmax-tools = 3\n'
    )
    from_file = load_config(folder=tmp_path)
    from_variables = load_config(
        environ={
            "FOREWORD_TOKENIZER_CACHE_ENABLE_L0": "Yes",
            "FOREWORD_REQUEST_TIMEOUT": "5",
            "FOREWORD_API_KEYS": "keys",
            "FOREWORD_MAX_TOOLS": "3",
        },
        folder=tmp_path / "nowhere",
    )

    assert from_file == from_variables
    assert from_file.api_keys == Path("keys")
    assert from_file.request_timeout == 5.0


@pytest.mark.parametrize(
    "environ,message",
    [
        ({"FOREWORD_PORT": "eighty"}, "FOREWORD_PORT: 'eighty' is not a whole number."),
        ({"FOREWORD_PORT": "65536"}, "FOREWORD_PORT: '65536' is not from 0 to 65535."),
        ({"FOREWORD_REQUEST_TIMEOUT": "nan"}, "FOREWORD_REQUEST_TIMEOUT: 'nan' is not a number."),
        ({"FOREWORD_LOG_PROMPTS": "perhaps"}, "FOREWORD_LOG_PROMPTS: 'perhaps' is not true or false."),
        ({"FOREWORD_METRICS_NAMESPACE": "a-b"}, "FOREWORD_METRICS_NAMESPACE: 'a-b' does not match"),
        ({"FOREWORD_POLICY": "round-robin"}, "prefix_hash, did you mean 'round_robin'?"),
        ({"FOREWORD_PROT": "1"}, "Unknown environment variable FOREWORD_PROT, did you mean 'FOREWORD_PORT'?"),
        ({"FOREWORD_ZZZZ": "1"}, "Unknown environment variable FOREWORD_ZZZZ."),
        ({"FOREWORD_CONFIG": "/no/such.toml"}, "Cannot read the configuration file /no/such.toml: No such file"),
        ({"FOREWORD_PROMETHEUS_PORT": "30000"}, "--port and --prometheus-port are both 30000."),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], message: str, tmp_path: Path) -> None:
    """The error names the variable, what is wrong with it, and what was meant."""
    with pytest.raises(ConfigError) as caught:
        load_config(environ=environ, folder=tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text,message",
    [
        ("prot = 1", "unknown key 'prot', did you mean 'port'?"),
        ("max_body_bytes = 2048", "unknown key 'max_body_bytes', did you mean 'max-body-bytes'?"),
        ("port = 1.5", "port: '1.5' is not a whole number."),
        ("port = true", "port: 'True' is not a whole number."),
        ("host = 5", "host: '5' is not a text."),
        ("worker-urls = [1]", "worker-urls: '[1]' is not a list of texts."),
        ("port = ", "is not valid TOML"),
        ("[port]\nx = 1", "is not a whole number."),
    ],
)
def test_a_wrong_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    """The error names the file and the key."""
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are reported, not raised as they come."""
    file = tmp_path / "f.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(file=file)


def test_kubernetes_service_links_are_no_settings(tmp_path: Path) -> None:
    """A service called foreword gives every pod FOREWORD_PORT=tcp://... and its like: they are passed over."""
    environ = {
        "FOREWORD_PORT": "tcp://10.0.0.1:80",
        "FOREWORD_SERVICE_HOST": "10.0.0.1",
        "FOREWORD_SERVICE_PORT_HTTP": "80",
        "FOREWORD_PORT_80_TCP_ADDR": "10.0.0.1",
        "FOREWORD_PORT_80_TCP": "tcp://10.0.0.1:80",
    }
    assert load_config(environ=environ, folder=tmp_path) == Config()


def test_empty_variables_are_not_set(tmp_path: Path) -> None:
    """`FOREWORD_PORT=` is how a compose file says nothing."""
    assert load_config(environ={"FOREWORD_PORT": ""}, folder=tmp_path).port == Config().port


def test_worker_urls_without_a_client_are_refused_once_and_without_the_password(tmp_path: Path) -> None:
    """A scheme this release has no client for gives one clear error that shows no secret."""
    with pytest.raises(ConfigError) as caught:
        load_config({"worker_urls": ("gopher://me:secret@h:1",)}, folder=tmp_path)
    assert str(caught.value).startswith("--worker-urls: this release has no client for workers at 'gopher://***@h:1'.")


def test_redact_url_keeps_what_is_no_secret() -> None:
    """Only the user part goes."""
    assert redact_url("http://u:p@h:1/x?a=b@c") == "http://***@h:1/x?a=b@c"
    assert redact_url("http://h:1/x") == "http://h:1/x"


def test_every_setting_has_distinct_names_and_a_sentence_of_help() -> None:
    """Names never collide, help ends in a full stop, defaults lie in their own range."""
    names = [name for row in settings() for name in (row.flag, row.variable, row.key)]
    assert len(names) == len(set(names))
    for row in settings():
        assert row.help.endswith("."), row.name
        assert row.default is None or row.parse(row.default, "default") == row.default


@given(
    st.sampled_from(settings()),
    st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.text()),
)
def test_any_value_is_read_or_refused(row: Setting, value: object) -> None:
    """Whatever a file may hold ends in a value of the setting's kind or in a ForewordError."""
    try:
        parsed = row.parse(value, "test")
    except ForewordError:
        return
    assert isinstance(parsed, row.kind)


@pytest.mark.parametrize(
    "text,message",
    [
        (f"request-timeout = 1{'0' * 400}", "is not a number"),
        ("x = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ('api-keys = "~nobody-of-that-name/x"', "is not a path"),
    ],
)
def test_what_python_cannot_hold_is_a_mistake_of_the_file(tmp_path: Path, text: str, message: str) -> None:
    """A number past every float, endless nesting and the home of nobody are each a ConfigError."""
    (tmp_path / "foreword.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(folder=tmp_path)
