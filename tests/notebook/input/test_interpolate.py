"""Values in prompts, where they are asked for and nowhere else."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.interpolate import interpolate, literal
from hermes_nb.safety.redact import redact
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

same_shell = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        *(("n is $`n`.", "n is 42."), ("$`n``n`", "42`n`"), ("$` n + 1 `$`n`", "4342")),
        ("it says $`word`", "it says \\d+ {x!r} $`n`"),
        ("$`2 ** 0.5`, $`None`, $`True`", "1.4142135623730951, None, True"),
        *(("$`{'a': 1}['a']`", "1"), ("escaped $$`n`", "escaped $`n`")),
        *(("three $$$`n`", "three $$`n`"), ("open $`n", "open $`n")),
        ("two lines $`n\n`", "two lines $`n\n`"),
        *(("empty $`` and plain `n` and $n and ${n} and {n}", None), ("", "")),
    ],
)
def test_what_becomes_of_a_prompt(shell, prompt, text):
    shell.user_ns.update(n=42, word="\\d+ {x!r} $`n`")
    assert interpolate(prompt, shell) == (prompt if text is None else text)


def test_objects_are_described_within_a_budget(shell):
    pandas = pytest.importorskip("pandas")
    shell.user_ns["df"] = pandas.DataFrame({"age": range(100_000)})
    text = interpolate("Look at $`df`!", shell)
    assert text.startswith("Look at df: pandas DataFrame, 100000 x 1")
    assert "age  int64" in text
    assert interpolate("$`[1, 2]`", shell).startswith("[1, 2]: list, 2 items")
    shell.user_ns["items"] = ["x" * 500] * 10_000
    assert len(interpolate("$`items`", shell)) < 5_000
    shell.user_ns["long"] = "x" * 200_000
    assert 50_000 <= len(interpolate("$`long`", shell)) < 51_000
    assert "bits" in interpolate("$`10 ** 9999`", shell)


def test_secrets_stay_here(shell):
    key = "sk-" + "a1" * 20
    shell.user_ns.update(api_key=key, text=f"the key is {key}")
    assert "a1a1" not in interpolate("$`api_key` $`text`", shell)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("datta", "there is no variable 'datta'; near it: data"),
        ("len(datta)", "there is no variable 'datta'"),
        ("zzzz", "%whos"),
        ("data[5]", "raised IndexError: list index out of range"),
        ("data +", "is not a Python expression"),
        ("x = 1", "is not a Python expression"),
        ("Hostile()", "raised ValueError"),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_anything_is_sent(shell, expression, message):
    shell.user_ns["data"] = [1]
    shell.run_cell("class Hostile:\n    def __init__(self): raise ValueError('\\x1b[31m')")
    with pytest.raises(ConfigError, match="Nothing was sent") as caught:
        interpolate(f"Use $`data` and $`{expression}`", shell)
    assert message in str(caught.value)
    assert expression in str(caught.value)
    assert "\n" not in str(caught.value)


@same_shell
@given(st.text(st.characters() | st.sampled_from("$`{}\\%!\n")))
def test_text_without_a_request_is_unchanged(shell, text):
    text = text.replace("$`", "$")
    while "$`" in text:
        text = text.replace("$`", "$")
    assert interpolate(text, shell) == text


plain = st.text(st.characters(exclude_characters="$`") | st.sampled_from("{}\\%!\n"))


@same_shell
@given(plain, st.text(), plain)
def test_everything_around_a_value_and_in_it_survives(shell, before, value, after):
    shell.user_ns["value"] = value
    assert interpolate(f"{before}$`value`{after}", shell) == before + redact(value) + after
    assert interpolate(f"{before}$$`value`{after}", shell) == f"{before}$`value`{after}"


@same_shell
@given(st.text(st.characters() | st.sampled_from("$`{}\\n")))
def test_what_is_meant_literally_comes_out_as_it_was(shell, text):
    assert interpolate(literal(text), shell) == text
