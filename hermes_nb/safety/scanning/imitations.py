"""Names that are another's but for a slip of the pen: packages to be installed, skills themselves.

Whoever registers `reqeusts` waits for those who mean `requests`, or for an agent that does as it is
told. What counts as a slip is a letter doubled, dropped or exchanged with its neighbour; names that
differ in a letter are too often two honest ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from hermes_nb.safety.reading.quick import matches
from hermes_nb.safety.reading.signs import Sign

_PACKAGES = (
    "aiohttp ansible anthropic arrow asyncio attrs axios babel beautifulsoup4 bcrypt black"
    " boto3 botocore bottle celery certifi cffi chardet charset-normalizer click colorama"
    " commander coverage cryptography cython dateutil debug django docker dotenv electron eslint"
    " express fastapi filelock flask gevent gunicorn httpx huggingface-hub idna importlib-"
    " metadata ipykernel ipython isort jinja2 joblib jquery jsonschema jupyter jupyterlab keras"
    " langchain lodash lxml markupsafe matplotlib minimist moment mongoose mypy networkx nodemon"
    " notebook numpy openai opencv-python openpyxl packaging pandas paramiko passlib pillow"
    " playwright plotly poetry prettier prometheus-client protobuf psutil psycopg2 pyarrow"
    " pycparser pycryptodome pydantic pygments pyjwt pymongo pyparsing pytest python-dateutil"
    " python-dotenv pytorch pyyaml react react-dom redis regex requests scikit-learn scipy"
    " seaborn selenium sentencepiece sentry-sdk setuptools simplejson socketio sqlalchemy"
    " starlette streamlit sympy tensorflow tokenizers torchvision tornado transformers tslib"
    " twisted typescript ujson urllib3 uvicorn virtualenv webpack websocket websockets werkzeug"
    " wheel winston yargs"
).split()
_WORDS = (
    "accounting analysis analyzer archive assistant auditor backup browser builder calculator"
    " calendar checker classifier cleaner client collector compiler compressor config"
    " configuration connector converter coverage database dataset debugger deploy deployment"
    " detector document documentation download editor email encoder extractor fetcher filter"
    " finder formatter generator github gitlab helper importer inspector installer kubernetes"
    " linter loader manager markdown merger metrics migration monitor notebook optimizer"
    " organizer parser planner plotter postgres presentation printer processor profiler project"
    " python reader refactor report reporter repository resolver review reviewer runner scanner"
    " scheduler scraper search security server slack spreadsheet storage summarizer template"
    " terraform tester testing tracker translator uploader validator viewer visualizer webapp"
    " website weather workflow wrapper writer"
).split()
_SHORTEST = 5
_INSTALLS = (
    r"\b(?:pip3?|pipx|uv|poetry|npm|pnpm|yarn|bun|conda|mamba)\s{1,3}(?:pip\s)?"
    r"(?:install|add|i)\s([^\n|;&`#)]{1,300})"
)
_NEEDS = ("install ", " add ", " i ")
_PACKAGE = re.compile(r"(?<![^\s\"'])([a-z][a-z0-9._-]{3,60})(?=[\s\"'\[=<>~!@,]|$)")
_NAME = re.compile(
    r"\A\s{0,4}---[^\n]{0,4}\n(?:[^\n]{0,300}\n){0,20}?name:[ \t\"']{0,4}([\w-]{1,64})"
)


def imitations(text: str) -> Iterator[Sign]:
    """Yield the names in a lower-case text that imitate well-known ones."""
    if any(need in text for need in _NEEDS):
        for command in matches(_INSTALLS, text):
            for name in _PACKAGE.finditer(command[1]):
                if name[1] in slips(" ".join(_PACKAGES)):
                    start = command.start(1) + name.start(1)
                    yield Sign("imitation", "package", 1, start, start + len(name[1]))
    if (named := _NAME.match(text)) is not None:
        known = slips(" ".join(_WORDS))
        if any(word in known for word in re.split(r"[-_]", named[1])):
            yield Sign("imitation", "skill", 1, *named.span(1))


@cache
def slips(names: str) -> frozenset[str]:
    """Return every slip of names, given in one line, that is none of the names itself."""
    known = names.split()
    found = {slip for name in known if len(name) >= _SHORTEST for slip in _slips(name)}
    return frozenset(found.difference(known))


def _slips(name: str) -> Iterator[str]:
    """Yield a name with a letter doubled, dropped, or exchanged with the next; not at its ends.

    The first letter stays, people get that right; without or with another last one it may be a
    plural.
    """
    if name[-1] not in "s" and name[-1].isalpha():
        yield name + name[-1]
    for at in range(1, len(name) - 1):
        one, two = name[at], name[at + 1]
        if one.isalpha():
            yield name[:at] + one + name[at:]
            yield name[:at] + name[at + 1 :]
        if one.isalpha() and two.isalpha() and one != two:
            yield name[:at] + two + one + name[at + 2 :]
