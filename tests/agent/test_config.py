"""Settings come from the nearest source that has them, and say which one that was."""

from __future__ import annotations

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.models import build_model
from hermes_nb.agent.settings.config import SandboxSettings, load_settings
from hermes_nb.agent.settings.files import read_dotenv
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import ScriptedModel

from tests.cpu import within


def write_config(home, text):
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(text, encoding="utf-8")


def test_defaults_need_no_home_and_create_none(home):
    settings = load_settings(environ={})
    assert settings.home == home
    assert settings.approve == "ask"
    assert settings.max_requests == 15
    assert not settings.endpoint.model
    assert not home.exists()


def test_what_is_the_same_is_read_once_and_whatever_changes_counts(home, administered):
    def of_the_moment(**options):
        return load_settings(environ=environment, **options)

    environment = {"HERMES_NB_MAX_REQUESTS": "7"}
    write_config(home, "model: first\n")
    before = of_the_moment()
    assert of_the_moment() is before
    write_config(home, "model: other\n")
    assert of_the_moment().endpoint.model == "other"
    (home / ".env").write_text("HERMES_NB_MODEL=from-env\n", encoding="utf-8")
    assert of_the_moment().endpoint.model == "from-env"
    environment["HERMES_NB_MAX_REQUESTS"] = "8"
    assert of_the_moment().max_requests == 8
    assert of_the_moment(overrides={"max_requests": 9}).max_requests == 9
    administered(settings={"max_requests": 3})
    assert of_the_moment().max_requests == 3
    assert of_the_moment(home=home.parent / "another").endpoint.model == ""


def test_the_nearest_source_wins(home):
    write_config(home, "model: theirs\nagent: {max_turns: 5}\nhermes_nb: {model: ours}\n")
    env = {"HERMES_NB_MODEL": "env"}
    assert load_settings(environ={}).endpoint.model == "ours"
    assert load_settings(environ=env).endpoint.model == "env"
    explicit = load_settings(environ=env, overrides={"model": "here"})
    assert explicit.endpoint.model == "here"
    assert explicit.sources["model"] == "given here"
    assert explicit.max_requests == 5
    assert explicit.sources["max_requests"] == "config.yaml"


def test_keys_of_the_environment_go_where_they_belong():
    both = {"OPENAI_API_KEY": "sk-openai", "OPENROUTER_API_KEY": "sk-router"}

    def endpoint(env, **overrides):
        return load_settings(environ=env, overrides=overrides).endpoint

    assert endpoint(both, model="gpt-x").api_key == "sk-openai"
    assert endpoint(both, model="vendor/model").api_key == "sk-router"
    assert "openrouter" in endpoint({"OPENROUTER_API_KEY": "sk-router"}).base_url
    local = endpoint(both, model="m", base_url="http://127.0.0.1:8000/v1")
    assert local.api_key == ""
    redirected = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k"}
    assert endpoint(redirected, model="m").api_key == "k"
    assert "sk-openai" not in repr(endpoint(both, model="gpt-x"))


def test_the_homes_dotenv_is_read_and_the_environment_wins(home):
    home.mkdir()
    (home / ".env").write_text(
        "# keys\nexport OPENAI_API_KEY='from-file'\nHERMES_NB_APPROVE=edits\n", encoding="utf-8"
    )
    settings = load_settings(environ={})
    assert settings.endpoint.api_key == "from-file"
    assert settings.approve == "edits"
    assert load_settings(environ={"OPENAI_API_KEY": "env"}).endpoint.api_key == "env"


def test_fallbacks_name_their_key_by_variable(home):
    write_config(
        home,
        "fallback_providers:\n"
        "  - {provider: openrouter, model: vendor/m}\n"
        "  - {base_url: 'https://other.example/v1', model: m, key_env: OTHER_KEY}\n",
    )
    env = {"OPENROUTER_API_KEY": "router", "OTHER_KEY": "other", "HERMES_NB_MODEL": "m"}
    first, second = load_settings(environ=env).fallbacks
    assert (first.model, first.api_key) == ("vendor/m", "router")
    assert (second.base_url, second.api_key) == ("https://other.example/v1", "other")


def test_a_fallback_that_cannot_be_placed_is_left_out(home):
    """The list is Hermes Agent's as well: what only it knows is nobody else's business."""
    write_config(
        home,
        "fallback_providers:\n"
        "  - {provider: nous, model: hermes-x}\n"
        "  - {provider: openrouter}\n"
        "  - {base_url: 'http://127.0.0.1:1/v1'}\n"
        "  - just words\n"
        "  - {provider: OpenAI, model: gpt-x}\n",
    )
    env = {"OPENAI_API_KEY": "sk-openai", "OPENROUTER_API_KEY": "sk-router"}
    (only,) = load_settings(environ=env).fallbacks
    assert (only.model, only.base_url, only.api_key) == ("gpt-x", "", "sk-openai")
    write_config(home, "fallback_providers: {provider: openai, model: m}\n")
    assert load_settings(environ=env).fallbacks == ()


KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant",
    "AZURE_OPENAI_API_KEY": "azure",
    "AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com",
    "GEMINI_API_KEY": "gem",
    "OPENAI_API_KEY": "sk-openai",
    "OPENROUTER_API_KEY": "sk-router",
}
AZURE = "https://mine.openai.azure.com/openai/v1"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"
ROUTER = "https://openrouter.ai/api/v1"


@pytest.mark.parametrize(
    ("model", "without", "expected"),
    [
        ("anthropic/claude-x", "", ("claude-x", "https://api.anthropic.com/v1", "sk-ant")),
        ("anthropic/claude-x", "ANTHROPIC_API_KEY", ("anthropic/claude-x", ROUTER, "sk-router")),
        ("openai/gpt-x", "", ("gpt-x", "", "sk-openai")),
        ("gemini/gemini-x", "", ("gemini-x", GEMINI, "gem")),
        ("azure/mine", "", ("mine", AZURE, "azure")),
        ("openrouter/google/gemma", "", ("google/gemma", ROUTER, "sk-router")),
        ("ollama/qwen3", "", ("qwen3", "http://127.0.0.1:11434/v1", "")),
        ("google/gemma", "", ("google/gemma", ROUTER, "sk-router")),
        ("xai/grok", "OPENROUTER_API_KEY", ("grok", "https://api.x.ai/v1", "")),
    ],
)
def test_a_provider_in_the_models_name_has_its_own_address_and_key(home, model, without, expected):
    env = {name: key for name, key in KEYS.items() if name != without}
    settings = load_settings(environ=env | {"HERMES_NB_MODEL": model})
    end = settings.endpoint
    assert (end.model, end.base_url, end.api_key) == expected
    write_config(home, f"fallback_providers:\n  - {{model: {model}}}\n")
    (other,) = load_settings(environ=env).fallbacks
    if expected[0] != model:
        assert (other.model, other.base_url, other.api_key) == expected
    job = load_settings(environ=env | {"HERMES_NB_AUXILIARY_MODEL": model}).auxiliary["titles"]
    assert (job.model, job.base_url, job.api_key) == expected
    proxy = {"OPENAI_BASE_URL": "http://127.0.0.1:4000/v1", "HERMES_NB_MODEL": model}
    proxied = load_settings(environ=env | proxy).endpoint
    assert (proxied.model, proxied.base_url) == (model, "http://127.0.0.1:4000/v1")


def test_the_address_of_azure_names_the_variable_that_is_missing(home):
    settings = load_settings(environ={"HERMES_NB_MODEL": "azure/mine"})
    with pytest.raises(ConfigError, match="AZURE_OPENAI_ENDPOINT"):
        build_model(settings)


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        ("https://openrouter.ai/api/v1", "sk-router"),
        ("https://eu.openrouter.ai/api/v1", "sk-router"),
        ("https://evil.example/openrouter.ai/v1", "sk-openai"),
        ("https://evilopenrouter.ai/v1", "sk-openai"),
        ("https://127.0.0.1:8000/v1", ""),
        ("http://LOCALHOST:8000/v1", ""),
        ("http://[::1]:8000/v1", ""),
        ("http://127.evil.example/v1", "sk-openai"),
        ("http://[broken", ""),
    ],
)
def test_a_key_goes_to_the_host_it_was_given_for(base_url, key):
    env = {"OPENAI_API_KEY": "sk-openai", "OPENROUTER_API_KEY": "sk-router"}
    settings = load_settings(environ=env, overrides={"model": "m", "base_url": base_url})
    assert settings.endpoint.api_key == key


SET_KEY = "hermes_nb: {model: gpt-x, api_key: sk-set}\n"
ELSEWHERE = "hermes_nb: {model: m, base_url: 'https://a.example/v1', api_key: sk-set}\n"
CLAUDE = "hermes_nb: {model: anthropic/claude-x, api_key: sk-set}\n"


@pytest.mark.parametrize(
    ("config", "env", "overrides", "key"),
    [
        (SET_KEY, {}, {"model": "gpt-y"}, "sk-set"),
        (SET_KEY, {}, {"model": "openai/gpt-y"}, "sk-set"),
        (SET_KEY, {}, {"model": "anthropic/claude-x"}, "sk-ant"),
        (SET_KEY, {}, {"model": "ollama/qwen3"}, ""),
        (SET_KEY, {"HERMES_NB_MODEL": "xai/grok"}, {}, ""),
        (SET_KEY, {}, {"base_url": "https://b.example/v1"}, "sk-openai"),
        (SET_KEY, {"HERMES_NB_BASE_URL": "http://127.0.0.1:9/v1"}, {}, ""),
        (ELSEWHERE, {}, {}, "sk-set"),
        (ELSEWHERE, {}, {"model": "other"}, "sk-set"),
        (ELSEWHERE, {}, {"base_url": "http://127.0.0.1:9/v1"}, ""),
        (ELSEWHERE, {"HERMES_NB_BASE_URL": "https://b.example/v1"}, {}, "sk-openai"),
        (ELSEWHERE, {"HERMES_NB_API_KEY": "sk-env"}, {}, "sk-env"),
        (
            ELSEWHERE,
            {"HERMES_NB_API_KEY": "sk-env"},
            {"base_url": "https://b.example/v1"},
            "sk-openai",
        ),
        (CLAUDE, {}, {"model": "anthropic/claude-y"}, "sk-set"),
        (CLAUDE, {}, {"api_key": "sk-here"}, "sk-here"),
        ("", {}, {"model": "groq/llama", "api_key": "sk-here"}, "sk-here"),
    ],
)
def test_a_key_does_not_follow_to_an_address_that_is_set_elsewhere(
    home, config, env, overrides, key
):
    write_config(home, config)
    env = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-ant"} | env
    assert load_settings(environ=env, overrides=overrides).endpoint.api_key == key


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"approve": "sometimes"}, r"approve is 'sometimes' \("),
        ({"max_requests": "many"}, "max_requests is 'many'"),
        ({"max_requests": -1}, "expected a whole number, 1 or more"),
        ({"max_requests": 2.5}, "expected a whole number, 1 or more"),
        ({"max_requests": True}, "expected a whole number, 1 or more"),
        ({"window": float("inf")}, "window is inf"),
        ({"window": float("nan")}, "window is nan"),
        ({"window": 10**400}, "expected a trillion or less"),
        ({"memory.nudge_interval": 2.5}, "memory.nudge_interval is 2.5"),
        ({"memory.nudge_interval": -1}, "expected a whole number, 0 or more"),
        ({"budget.cost": 1e13}, "expected a trillion or less"),
        (
            {"compression.threshold": True},
            "compression.threshold is True .*; expected 0.05 to 0.95",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(overrides, text):
    with pytest.raises(ConfigError, match=text):
        load_settings(environ={}, overrides=overrides)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "not valid YAML"),
        ("a: 1\nb: [1\nc: 2\n", "yaml is not valid YAML: line 3: expected"),
        ("hermes_nb:\n  approve: on edits\n", r"\(config.yaml, hermes_nb\)"),
        ("- a\n- b\n", "a mapping"),
    ],
)
def test_a_broken_config_file_says_so(home, text, problem):
    write_config(home, text)
    with pytest.raises(ConfigError, match=problem) as raised:
        load_settings(environ={})
    assert "\n" not in str(raised.value)


def test_a_home_that_is_a_file_is_refused(home, monkeypatch):
    home.write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file"):
        load_settings(environ={})


def test_the_working_directory_is_no_source(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("hermes_nb: {base_url: 'http://evil'}", encoding="utf-8")
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://evil", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={}).endpoint.base_url == ""


def test_hermes_agents_own_modes_are_understood(home):
    write_config(home, "approvals: {mode: manual}\n")
    assert load_settings(environ={}).approve == "ask"
    write_config(home, "approvals: {mode: 'off'}\n")
    assert load_settings(environ={}).approve == "all"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("sk-1", "sk-1"), (" sk-1   # my key", "sk-1"), ("sk-1#2", "sk-1#2")),
        *(('"sk-1 # 2" # mine', "sk-1 # 2"), ("'sk-1'", "sk-1"), ('"it\'s"', "it's"), ("", "")),
        ("# none yet", ""),
    ],
)
def test_a_value_of_the_dotenv_is_what_hermes_agent_reads(home, written, value):
    home.mkdir()
    (home / ".env").write_text(f"A_KEY={written}\nexport B=2\n", encoding="utf-8")
    assert read_dotenv(home) == {"A_KEY": value, "B": "2"}


@pytest.mark.parametrize(
    "value", [" " * 200_000 + "x", "'" * 200_000, "#" * 200_000, "' " * 99_999]
)
def test_a_dotenv_line_of_any_length_is_read_in_time(home, value):
    home.mkdir()
    (home / ".env").write_text(f"A_KEY={value}\nB=2\n", encoding="utf-8")
    assert within(2, read_dotenv, home)["B"] == "2"


def test_the_sandbox(tmp_path):
    assert load_settings(home=tmp_path, environ={}).sandbox == SandboxSettings()
    chosen = load_settings(home=tmp_path, environ={"HERMES_NB_SANDBOX_REQUIRED": "landlock"})
    assert chosen.sandbox == SandboxSettings(required="landlock")
    assert load_settings(home=tmp_path, overrides={"sandbox.use": "off"}).sandbox.use == "off"
    with pytest.raises(ConfigError, match=r"sandbox\.required"):
        load_settings(home=tmp_path, overrides={"sandbox.required": "docker"})
    with pytest.raises(ConfigError, match="is off"):
        load_settings(
            home=tmp_path, overrides={"sandbox.required": "landlock", "sandbox.use": "off"}
        )


def test_keys_that_nothing_reads_are_named_once_with_the_nearest(home, tmp_path):
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(
        "model: {default: m, extra: 1}\nelsewhere: 1\n"
        "hermes_nb:\n  max_request: 3\n  zebra: 1\n  approve: ask\n  3: x\n"
        "  compression: {treshold: 0.4, threshold: 0.4}\n  memory: {notes: {directory: d}}\n",
        encoding="utf-8",
    )
    with Hermes(ScriptedModel(["One.", "Two."]), home=home, cwd=tmp_path) as hermes:
        hermes.ask("go")
        hermes.ask("go on")
        told = hermes.warnings
    assert [line.partition("; ")[0].partition("`")[2].partition("`")[0] for line in told] == [
        *("max_request", "zebra", "3", "compression.treshold")
    ]
    assert "did you mean `max_requests`?" in told[0]
    assert "did you mean `compression.threshold`?" in told[3]
    assert "`%hermes config` lists the settings" in told[1]
