"""`jupyter hermes proxy`: holds a model provider's API key and gives each user a daily budget.

It is a JupyterHub service. Users authenticate with their hub token, and the key never leaves this
process. Usage is based on the provider's own figures. A request is recorded with an estimate before
it is sent, and the provider's figures replace the estimate afterwards. If the proxy is killed, the
estimate remains. A user who disconnects mid-answer is charged for the whole answer.

No request starts once a budget is used up. If a request, together with those running, might exceed
the budget, it waits until their usage is known, so that no request is refused on the basis of an
estimate.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from hermes_nb.cli.command import OK
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.extras.hub.usage import GUESS, Usage

KNOWN = 60.0
"""Seconds that a token is trusted without asking the hub again; a revoked token stays valid that
long.
"""
LARGEST = 32_000_000
"""Maximum bytes in a request, and in an answer that is not streamed."""
ANSWER = 900.0
"""Timeout for an answer in seconds."""
UNSAID = 1_000
"""Estimated tokens in an answer until its usage is known."""
MOST = 1 << 31
"""Largest answer limit accepted from a request, in tokens; larger limits are reduced to this."""
MILLION = 1_000_000
AT_ONCE = 8
"""Maximum concurrent requests per user; others wait."""
PASSED = frozenset(
    "messages model stream tools tool_choice parallel_tool_calls response_format stop seed"
    " max_tokens max_completion_tokens temperature top_p top_k min_p logprobs top_logprobs"
    " frequency_penalty presence_penalty repetition_penalty repeat_penalty logit_bias"
    " reasoning reasoning_effort thinking enable_thinking verbosity chat_template_kwargs".split()
)
"""Request fields that are passed on. Others may incur costs beyond tokens, select a different model
or request several answers; so may tools that the provider runs."""
TOOLS = ("custom", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model's prices in dollars per million tokens; None if unknown."""

    input: float | None = None
    """Price of prompt tokens."""
    output: float | None = None
    """Price of answer tokens."""
    cached: float | None = None
    """Price of prompt tokens read from a cache; None for the price of prompt tokens."""
    longest: int = 32_000
    """Maximum tokens in an answer. Also charged if the provider reports no usage and the request
    sets no limit."""

    def dollars(self, read: int, written: int, cached: int = 0) -> float:
        """Return the cost of the given tokens in dollars."""
        full, again = self.input or 0.0, self.cached if self.cached is not None else self.input
        cost = full * (read - cached) + (again or 0.0) * cached + (self.output or 0.0) * written
        return cost / MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A user's daily budget; None for no limit."""

    tokens: int | None = None
    """Maximum tokens per day."""
    dollars: float | None = None
    """Maximum dollars per day."""

    def refusal(self, tokens: int, dollars: float) -> str:
        """Return a message if a limit is reached, otherwise ""."""
        again = f"it resets at 00:00 {time.strftime('%Z')}"
        if self.tokens is not None and tokens >= self.tokens:
            return f"today's budget of {self.tokens:,} tokens is used up ({tokens:,}); {again}"
        if self.dollars is not None and dollars >= self.dollars:
            return f"today's budget of ${self.dollars:.2f} is used up (${dollars:.2f}); {again}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The proxy's configuration; see docs/howto/jupyterhub.md."""

    upstream: str
    """Base URL of the provider's API."""
    ledger: str
    """Path of the SQLite file that stores usage."""
    models: dict[str, Model]
    """The allowed models, by name."""
    key: str = field(default="", repr=False)
    """The provider's API key."""
    budget: Limit = field(default_factory=Limit)
    """Budget for users without one of their own."""
    users: dict[str, Limit] = field(default_factory=dict)
    """Budgets for individual users, by name."""

    @classmethod
    def read(cls, path: Path) -> Rules:
        """Read a configuration file; raise `ConfigError` if it is invalid."""
        try:
            given = yaml.safe_load(path.read_text("utf-8"))
            key = Path(given.pop("key_file")).read_text("utf-8").strip()
            models = {str(name): Model(**(each or {})) for name, each in given["models"].items()}
            users = {str(name): Limit(**each) for name, each in given.pop("users", {}).items()}
            budget = Limit(**given.pop("budget", {}))
            rules = cls(**{**given, "models": models}, key=key, users=users, budget=budget)
            for each in (budget, *users.values()):
                each.refusal(0, 0.0)  # raises if a limit is not a number
            for model in models.values():
                model.dollars(1, range(model.longest).stop, 1)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error
        paid = any(limit.dollars is not None for limit in (budget, *users.values()))
        free = [name for name, each in models.items() if None in (each.input, each.output)]
        if paid and free:
            raise ConfigError(f"{path}: a budget in dollars requires a price for {free[0]!r}")
        return rules


class Ledger:
    """All users' usage in SQLite, one row per request."""

    def __init__(self, path: str) -> None:
        self._rows = sqlite3.connect(path, isolation_level=None)
        self._rows.execute("PRAGMA journal_mode=WAL")
        self._rows.execute(
            "CREATE TABLE IF NOT EXISTS spent (id INTEGER PRIMARY KEY, day TEXT, user TEXT, "
            "model TEXT, input INTEGER, output INTEGER, dollars REAL, counted INTEGER, at REAL)"
        )
        self._rows.execute("CREATE INDEX IF NOT EXISTS spent_by ON spent (day, user)")
        self._under_way: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
        self._moved = asyncio.Event()

    def used(self, user: str) -> tuple[int, float]:
        """Return the tokens and dollars a user has spent today, including running requests."""
        asked = "SELECT sum(input + output), sum(dollars) FROM spent WHERE day = ? AND user = ?"
        tokens, dollars = self._rows.execute(asked, (_today(), user)).fetchone()
        return int(tokens or 0), float(dollars or 0.0)

    async def room(self, user: str, limit: Limit) -> None:
        """Wait until a user may start a request; raise HTTPError if the budget is used up."""
        under = self._under_way[user]
        while True:
            tokens, dollars = self.used(user)
            counted = tokens - sum(t for t, _ in under.values())
            if refusal := limit.refusal(counted, dollars - sum(d for _, d in under.values())):
                raise HTTPError(402, f"{user}: {refusal}")
            if len(under) < AT_ONCE and not limit.refusal(tokens, dollars):
                return
            await self._moved.wait()

    def begin(self, user: str, model: str, read: int, written: int, dollars: float) -> int:
        """Record a request with its estimated usage and return its number."""
        made = self._rows.execute(
            "INSERT INTO spent VALUES (NULL, ?, ?, ?, ?, ?, ?, 0, ?)",
            (_today(), user, model, read, written, dollars, time.time()),
        )
        number = int(made.lastrowid or 0)
        self._under_way[user][number] = read + written, dollars
        return number

    def over(self, user: str, number: int) -> None:
        """Mark a request as finished and wake the waiting ones."""
        del self._under_way[user][number]
        self._moved.set()
        self._moved = asyncio.Event()

    def settle(self, number: int, read: int, written: int, dollars: float) -> None:
        """Replace the estimate with the actual usage."""
        self._rows.execute(
            "UPDATE spent SET input = ?, output = ?, dollars = ?, counted = 1 WHERE id = ?",
            (read, written, dollars, number),
        )


def _today() -> str:
    return time.strftime("%Y-%m-%d")


class Hub:
    """Asks the hub for a token's user; `prefix` is this service's URL path."""

    def __init__(self) -> None:
        try:
            self._api = os.environ["JUPYTERHUB_API_URL"]
            self.prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
            self.url = os.environ["JUPYTERHUB_SERVICE_URL"]
        except KeyError as error:
            raise ConfigError(
                f"{error} is not set: start the proxy as a JupyterHub service"
            ) from error
        name = os.environ.get("JUPYTERHUB_SERVICE_NAME", "")
        self._scopes = {"access:services", f"access:services!service={name}"}
        self._known: dict[str, tuple[float, str]] = {}

    async def user(self, token: str) -> str:
        """Return a token's user; raise HTTPError if it may not use this service."""
        digest, now = hashlib.sha256(token.encode()).hexdigest(), time.monotonic()
        until, name = self._known.get(digest, (0.0, ""))
        if now < until:
            return name
        asked = HTTPRequest(f"{self._api}/user", headers={"Authorization": f"token {token}"})
        try:
            found = json.loads((await AsyncHTTPClient().fetch(asked)).body)
        except HTTPClientError as error:
            if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise HTTPError(401, "the hub does not accept this token") from None
            raise HTTPError(503, "the hub cannot be reached to check this token") from None
        except OSError:
            raise HTTPError(503, "the hub cannot be reached to check this token") from None
        if found.get("kind") != "user" or not self._scopes & set(found.get("scopes", ())):
            raise HTTPError(403, "this token may not use this service: it needs access:services")
        self._known = {key: each for key, each in self._known.items() if each[0] > now}
        self._known[digest] = now + KNOWN, str(found["name"])
        return str(found["name"])


class Handler(RequestHandler):
    """Base class for requests from an authenticated user."""

    rules: Rules
    ledger: Ledger
    hub: Hub

    def initialize(self, rules: Rules, ledger: Ledger, hub: Hub) -> None:
        self.rules, self.ledger, self.hub = rules, ledger, hub

    async def prepare(self) -> None:
        """Authenticate the user before anything else."""
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if kind.lower() not in ("bearer", "token") or not token.strip():
            raise HTTPError(401, "the request has no hub token")
        self.current_user = await self.hub.user(token.strip())

    def write_error(self, status_code: int, **kwargs: Json) -> None:
        """Send the error in the JSON format that model providers use."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        said = error.log_message if isinstance(error, HTTPError) else None
        said = said and said.replace("%%", "%")  # tornado doubled them for logging
        code = "insufficient_quota" if status_code == HTTPStatus.PAYMENT_REQUIRED else None
        self.finish({"error": {"message": said or self._reason, "code": code, "type": code}})

    def limit(self) -> Limit:
        """Return the user's budget."""
        return self.rules.users.get(self.current_user, self.rules.budget)


class Models(Handler):
    """Lists the models."""

    def get(self) -> None:
        data = [{"id": name, "object": "model", "owned_by": "hub"} for name in self.rules.models]
        self.finish({"object": "list", "data": data})


class Used(Handler):
    """Returns the user's budget and today's usage."""

    def get(self) -> None:
        (tokens, dollars), limit = self.ledger.used(self.current_user), self.limit()
        most = {"tokens": limit.tokens, "dollars": limit.dollars}
        self.finish({"user": self.current_user, "tokens": tokens, "dollars": dollars, "most": most})


class Chat(Handler):
    """Passes a request on and records its usage."""

    left = False

    def on_connection_close(self) -> None:
        """Record that the client has disconnected."""
        self.left = True

    async def post(self) -> None:
        try:
            given = json.loads(self.request.body)
            asked = {key: value for key, value in given.items() if key in PASSED}
            name = asked["model"] = str(asked["model"])
            tools = [each for each in asked.pop("tools", None) or () if each["type"] in TOOLS]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise HTTPError(400, "the request must be a JSON object with a `model`") from None
        if name not in self.rules.models:
            there = ", ".join(self.rules.models)
            raise HTTPError(404, f"there is no model {name[:80]!r} here; the models are: {there}")
        await self.ledger.room(self.current_user, self.limit())
        if self.left:
            return
        model, read = self.rules.models[name], len(self.request.body) // GUESS
        number = self.ledger.begin(
            self.current_user, name, read, UNSAID, model.dollars(read, UNSAID)
        )
        asked |= {"tools": tools} if tools else {}
        if asked.get("stream"):
            asked["stream_options"] = {"include_usage": True}
        usage = Usage()
        try:
            await self._passed_on(asked, usage)
            usage.end()
            allowed = [asked.get(key) for key in ("max_tokens", "max_completion_tokens")]
            limits = [min(each, MOST) for each in allowed if isinstance(each, int) and each > 0]
            used = usage.tokens(read, max(limits, default=model.longest))
            self.ledger.settle(number, used[0], used[1], model.dollars(*used))
        finally:
            self.ledger.over(self.current_user, number)
        if not self._finished:
            with suppress(StreamClosedError):
                self.finish()

    async def _passed_on(self, asked: dict[str, Json], usage: Usage) -> None:
        """Send the request and pass on the response; if there is none, respond with status 502."""

        def take(piece: bytes) -> None:
            usage.take(piece)
            self.write(piece)
            self.flush()  # read to the end even if the client has disconnected

        def head(line: str) -> None:
            name, _, value = line.strip().partition(":")
            if name.startswith("HTTP/"):
                self.set_status(int(name.split()[1]))
                usage.status = self.get_status()
            elif name.lower() in ("content-type", "retry-after", "x-request-id"):
                self.set_header(name, value.strip())
                usage.stream |= "event-stream" in value.lower()

        def send(write: Callable[[bytes], None]) -> asyncio.Future[None]:
            usage.sent = True  # from here on the provider may charge for it
            write(body)
            return asyncio.ensure_future(asyncio.sleep(0))

        body = json.dumps(asked).encode()
        sent = HTTPRequest(
            f"{self.rules.upstream.rstrip('/')}/chat/completions",
            method="POST",
            body_producer=send,
            headers={
                "Content-Length": str(len(body)),
                "Authorization": f"Bearer {self.rules.key}",
                "Content-Type": "application/json",
            },
            follow_redirects=False,
            request_timeout=ANSWER,
            streaming_callback=take,
            header_callback=head,
        )
        try:
            await AsyncHTTPClient().fetch(sent, raise_error=False)
        except (OSError, HTTPClientError):  # no response, or an incomplete one
            if self._headers_written:  # a regular end would make an incomplete answer look complete
                with suppress(StreamClosedError):
                    await self.flush()
                self.detach().close()
            else:
                self.set_status(HTTPStatus.BAD_GATEWAY)
                self.write({"error": {"message": "the model's provider cannot be reached"}})


def proxy(arguments: argparse.Namespace) -> int:
    """Serve until stopped."""
    os.umask(0o077)  # the ledger contains each user's usage
    rules, hub = Rules.read(Path(arguments.config)), Hub()
    asyncio.run(_serve(rules, hub))
    return OK


async def _serve(rules: Rules, hub: Hub) -> None:
    AsyncHTTPClient.configure(None, max_clients=1_000, max_body_size=LARGEST)
    given = {"rules": rules, "ledger": Ledger(rules.ledger), "hub": hub}
    routes = [("v1/models", Models), ("v1/chat/completions", Chat), ("used", Used)]
    app = Application([(f"{hub.prefix}{path}", kind, given) for path, kind in routes])
    where = urlsplit(hub.url)
    server = HTTPServer(app, max_buffer_size=LARGEST)
    server.listen(where.port or 80, where.hostname or "127.0.0.1")
    print(f"serving {', '.join(rules.models)} at {hub.url}{hub.prefix}v1", file=sys.stderr)
    await asyncio.Event().wait()
