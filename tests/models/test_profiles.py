"""What is known of a model by its name and place."""

from __future__ import annotations

import pytest
from hermes_nb.models.profiles import profile_for


@pytest.mark.parametrize(
    ("name", "window"),
    [
        *(("gpt-4o-mini", 128_000), ("openai/gpt-4.1-nano", 1_047_576), ("gpt-4", 8_192)),
        *(("gpt-5-mini", 400_000), ("anthropic/claude-sonnet-4.5", 200_000)),
        *(("meta-llama/Llama-3.3-70B-Instruct", 131_072), ("llama3.2:3b", 131_072)),
        *(("o3-mini", 200_000), ("google/gemini-2.5-pro", 1_048_576), ("gemma3:27b", 131_072)),
        *(("google/gemma-3-1b-it", 32_768), ("Qwen/Qwen2.5-Coder-0.5B-Instruct", 32_768)),
        *(("nobody-knows-this", None), ("turbo16k", None), ("solo3", None)),
    ],
)
def test_windows_by_family(name, window):
    assert profile_for(name).window == window


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *(("gemma-3-27b-it", "text"), ("meta-llama/Llama-3.1-8B", "text")),
        *(("codellama:7b", "text"), ("microsoft/phi-4", "text"), ("phi3:mini", "text")),
        *(("gpt-4o", "structured"), ("ollama/qwen2.5", "structured")),
        *(("dolphin-mixtral", "structured"), ("Delphi-2", "structured")),
    ],
)
def test_strategies_by_family(name, strategy):
    assert profile_for(name).strategy == strategy


def test_reasoning_goes_back_where_it_is_wanted():
    assert profile_for("gpt-4o").echo_policy == "never"
    assert profile_for("deepseek-reasoner", "https://api.deepseek.com").echo_policy == "turn"
    assert profile_for("deepseek-r1").echo_policy == "never"
    assert profile_for("kimi-k2-thinking").echo == ("reasoning_content",)
    router = profile_for("deepseek/deepseek-r1", "https://openrouter.ai/api/v1")
    assert (router.echo, router.echo_policy) == (("reasoning_details",), "always")


def test_caching_breakpoints_are_for_claude_where_they_are_taken():
    assert (
        profile_for("anthropic/claude-opus-4", "https://openrouter.ai/api/v1").caching
        == "system_and_3"
    )
    assert profile_for("claude-opus-4", "https://api.anthropic.com/v1").caching == "system_and_3"
    assert profile_for("openai/gpt-4o", "https://openrouter.ai/api/v1").caching == "prefix"
    assert profile_for("claude-opus-4", "http://localhost:4000").caching == "prefix"


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        *(("gpt-4o-mini", True), ("gpt-4o-audio-preview", False), ("openai/gpt-4.1-nano", True)),
        *(("gpt-4", False), ("gpt-3.5-turbo", False), ("gpt-oss-120b", False), ("o3", True)),
        *(("o3-mini", False), ("anthropic/claude-sonnet-4.5", True), ("claude-2.1", False)),
        *(("google/gemini-2.5-flash", True), ("gemma3:27b", True), ("google/gemma-3-1b-it", False)),
        ("meta-llama/Llama-3.3-70B-Instruct", False),
        *(("meta-llama/Llama-3.2-11B-Vision-Instruct", True), ("llama3.2-vision:11b", True)),
        *(("qwen2.5vl:7b", True), ("Qwen/Qwen2.5-VL-72B-Instruct", True)),
        *(("Qwen/Qwen3-Coder", False), ("mistral-small-latest", False)),
        *(("mistralai/mistral-small-3.2-24b-instruct", True), ("deepseek-chat", False)),
        *(("x-ai/grok-4-fast", True), ("nobody-knows-this", False), ("revision-7b", False)),
    ],
)
def test_only_what_is_known_to_see_is_sent_pictures(name, sees):
    assert profile_for(name).vision is sees
