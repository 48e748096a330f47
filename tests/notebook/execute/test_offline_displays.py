"""Displays of code that runs without network access cannot make the page load an address."""

from __future__ import annotations

import json

import pytest
from hermes_nb.notebook.execute.nested import execute

ADDRESS = "https://canary.invalid/"
IMAGE = f"HTML('<img src=\"{ADDRESS}\">')"
CHART = {"application/vnd.vegalite.v5+json": {"data": {"url": ADDRESS}}}
LOADS = {
    "HTML": f"display({IMAGE})",
    "encoded slashes": "display(HTML('<img src=\"&#47;&#47;canary.invalid\">'))",
    "a style": f"display(HTML('<p style=\"background: url({ADDRESS})\">text</p>'))",
    "a style sheet": f"display(HTML('<style>p {{background: url({ADDRESS})}}</style>'))",
    "a result": IMAGE,
    "Markdown": f"display(Markdown('![]({ADDRESS})'))",
    "SVG": f"display(SVG('<svg><image href=\"{ADDRESS}\"/></svg>'))",
    "a frame": f"display(IFrame('{ADDRESS}', 10, 10))",
    "JavaScript": f"display(Javascript('fetch(\"{ADDRESS}\")'))",
    "a chart": f"display({CHART!r}, raw=True)",
    "a widget": f"import ipywidgets; display(ipywidgets.{IMAGE})",
    "an update of the user's display": f"update_display({IMAGE}, display_id='users')",
}


@pytest.mark.parametrize("code", LOADS.values(), ids=LOADS)
def test_what_offline_code_displays_loads_nothing_from_the_network(shell, code):
    published = []
    shell.display_pub.publish = lambda data, **_: published.append(dict(data))
    shell.ex("from IPython.display import *\ndisplay('mine', display_id='users')")
    for offline in (False, True):
        published.clear()
        ran = shell.loop_runner(execute(shell, f"print('ran')\n{code}", offline=offline))
        assert ran.error is None
        shown = [*published, *(output["data"] for output in ran.outputs[1:])]
        assert shown
        active = json.dumps(
            [{k: v for k, v in data.items() if k != "text/plain"} for data in shown]
        )
        loads = "canary.invalid" in active or "widget-view" in active
        assert loads is not offline


def test_tables_of_offline_code_are_still_displayed(shell):
    code = "import pandas as pd\npd.DataFrame({'price': [1, 2]})"
    ran = shell.loop_runner(execute(shell, code, offline=True))
    table = ran.outputs[0]["data"]["text/html"]
    assert "<table" in table
    assert "<th>price</th>" in table
