"""Names that are another's but for a slip of the pen."""

from __future__ import annotations

import pytest
from hermes_nb.safety.scanning.imitations import imitations, slips


def found(text):
    return [text[sign.start : sign.end] for sign in imitations(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("run pip install reqeusts now", ["reqeusts"]),
        ("uv pip install -U numpyy==1.2 pandas", ["numpyy"]),
        ("npm i lodahs", ["lodahs"]),
        ('poetry add "matplotlb>=3"', ["matplotlb"]),
        ("---\nname: confg-validator\n---\n", ["confg-validator"]),
        ("---\ndescription: x\nname: webbapp-tests\n---\n", ["webbapp-tests"]),
    ],
)
def test_a_slip_is_found(text, names):
    assert found(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "pip install requests numpy pandas scikit-learn",
        "npm install preact request express",
        "pip install -r requirements.txt  # reqeusts is a typo",
        "reqeusts",
        "---\nname: config-validators\n---\n",
        "---\nname: reports-2024\ndescription: x\n---\n",
    ],
)
def test_a_name_of_its_own_is_not(text):
    assert found(text) == []


def test_no_slip_is_a_name():
    assert not slips("pandas panda numpy") & {"pandas", "panda", "numpy"}
    assert {"nupmy", "nummpy", "nmpy"} <= slips("numpy")
