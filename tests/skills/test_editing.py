from __future__ import annotations

import pytest
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.editing import replaced
from hypothesis import given
from hypothesis import strategies as st


def test_line_ends_stay_as_they_are():
    assert replaced("a\r\nb\r\nc", "a\nb", "x\ny").text == "x\r\ny\r\nc"
    assert replaced("a\nb", "a\r\nb", "x\r\ny").text == "x\ny"


def test_places_are_counted():
    assert replaced("a b a", "a", "c", replace_all=True).count == 2
    with pytest.raises(SkillError, match="2 times"):
        replaced("a b a", "a", "c")


@given(st.text(max_size=60), st.text(max_size=20), st.text(max_size=20), st.booleans())
def test_a_replacement_is_exact_or_refused(text, old, new, everywhere):
    try:
        edit = replaced(text, old, new, replace_all=everywhere)
    except SkillError:
        return
    plain = [part.replace("\r\n", "\n") for part in (text, old, new)]
    assert edit.text.replace("\r\n", "\n") == plain[0].replace(plain[1], plain[2]).replace(
        "\r\n", "\n"
    )
    assert edit.count == plain[0].count(plain[1])
