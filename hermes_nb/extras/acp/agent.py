"""The agent's side of the Agent Client Protocol, version 1.

A session of the client's is a stored session of Hermes in a working directory, and a prompt is a
turn. The working directory of each session is stored in the Hermes directory, in `acp/SESSION`.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from acp import PROTOCOL_VERSION, Client, RequestError, schema, update_agent_message_text
from jupyter_core.paths import jupyter_runtime_dir

import hermes_nb
from hermes_nb.agent.models import WAYS_OUT, build_model
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import APPROVE_MODES, Settings, load_settings
from hermes_nb.agent.settings.sources import within
from hermes_nb.core.errors import ConfigError, FailureKind, HermesError
from hermes_nb.core.events import TurnEnded
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.loop import BUSY
from hermes_nb.core.messages import Message, Text, Usage
from hermes_nb.core.protocols import StoredSession
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.acp.prompts import Block, Server, message_of, with_servers
from hermes_nb.extras.acp.talk import COMMANDS, HINTS, NoSession, Talk
from hermes_nb.extras.acp.updates import Updates, history
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.guard import Mode
from hermes_nb.safety.redact import redact

STOPS: dict[str, schema.StopReason] = {
    "answered": "end_turn",
    "budget": "max_turn_requests",
    "interrupted": "cancelled",
}
MODES = {
    "ask": ("Ask", "Reading is allowed. Everything else needs your approval."),
    "edits": ("Edit files", "Files in the working directory may change. Nothing runs unasked."),
    "all": ("Allow all", "Everything is allowed, except what lasts longer than the session."),
    "never": ("Read only", "Everything that needs approval is refused."),
}
LOGIN = schema.AuthMethodAgent(
    id="key",
    name="API key",
    description=(
        "Run `jupyter hermes chat`, and there `/key` and `/model NAME`. Or set OPENAI_API_KEY (or "
        "another provider's key) and HERMES_NB_MODEL for this command."
    ),
)
LISTED = 200
"""Maximum number of recent sessions that `list_sessions` looks at."""
NOTEBOOK = "notebook"
"""Name of the MCP server for the notebook of `--kernel`."""


class HermesAgent:
    """Handles the requests of one client.

    Args:
        wishes: settings that the command line overrides
        kernel: the kernel whose notebook the sessions can use, or ""
    """

    def __init__(self, wishes: Mapping[str, str | None], *, kernel: str = "") -> None:
        self._wishes, self._kernel = dict(wishes), kernel
        self._talks: dict[str, Talk] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def on_connect(self, conn: Client) -> None:
        """Receive the connection to the client."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: object) -> schema.InitializeResponse:
        """Describe the agent."""
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_info=schema.Implementation(
                name="hermes_nb", title="Hermes", version=hermes_nb.__version__
            ),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
                mcp_capabilities=schema.McpCapabilities(http=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[LOGIN],
        )

    async def authenticate(self, method_id: str, **_: object) -> schema.AuthenticateResponse:
        """Check that there is a model now; the user sets the key elsewhere."""
        if method_id != LOGIN.id:
            raise _invalid(f"there is no authentication method {method_id!r}")
        try:
            model = await in_thread(build_model, self._settings(()))
        except HermesError as error:
            raise _problem(error) from error
        await model.aclose()
        return schema.AuthenticateResponse()

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Server] | None = None, **_: object
    ) -> schema.NewSessionResponse:
        """Start a session."""
        talk = await self._opened(cwd, mcp_servers or ())
        return schema.NewSessionResponse(session_id=talk.id, modes=self._offer(talk))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Server] | None = None, **_: object
    ) -> schema.LoadSessionResponse:
        """Resume a session, and send its history."""
        talk = await self._opened(cwd, mcp_servers or (), session_id)
        for update in history(talk.session.messages, talk.session.agent.tools):
            await talk.send(update)
        return schema.LoadSessionResponse(modes=self._offer(talk))

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Server] | None = None, **_: object
    ) -> schema.ResumeSessionResponse:
        """Resume a session."""
        talk = await self._opened(cwd, mcp_servers or (), session_id)
        return schema.ResumeSessionResponse(modes=self._offer(talk))

    async def close_session(self, session_id: str, **_: object) -> schema.CloseSessionResponse:
        """Stop a session's turn and release the session."""
        talk = self._talk(session_id)
        del self._talks[session_id]
        await talk.aclose()
        return schema.CloseSessionResponse()

    async def list_sessions(
        self, cwd: str | None = None, **_: object
    ) -> schema.ListSessionsResponse:
        """List the sessions that clients have started, the latest first."""
        settings = self._settings(())

        def read() -> list[StoredSession]:
            with closing(open_store(settings, _ignore)) as store:
                return store.sessions(limit=LISTED)

        try:
            rows = await in_thread(read)
        except HermesError as error:
            raise _problem(error) from error
        found = []
        for row in rows:
            where = _directory(settings.home, row.id)
            if row.messages and where and cwd in (None, where):
                when = datetime.datetime.fromtimestamp(row.written, datetime.UTC).isoformat()
                found.append(
                    schema.SessionInfo(
                        session_id=row.id, cwd=where, title=row.title or None, updated_at=when
                    )
                )
        return schema.ListSessionsResponse(sessions=found)

    async def set_session_mode(
        self, mode_id: Mode, session_id: str, **_: object
    ) -> schema.SetSessionModeResponse:
        """Choose the approval mode of a session."""
        talk = self._talk(session_id)
        if mode_id not in _allowed():
            raise _invalid(f"the mode {mode_id!r} is not available")
        talk.guard.mode = mode_id
        return schema.SetSessionModeResponse()

    async def prompt(
        self, prompt: Sequence[Block], session_id: str, **_: object
    ) -> schema.PromptResponse:
        """Run a turn or a command."""
        talk = self._talk(session_id)
        if talk.busy:
            raise RequestError(-32600, BUSY)
        try:
            message = message_of(prompt, talk.root, talk.home)
            if told := await talk.command(_typed(message)):
                await talk.send(update_agent_message_text(redact(told)))
                return schema.PromptResponse(stop_reason="end_turn")
            ending, fold = await talk.run(message)
        except HermesError as error:
            raise _problem(error) from error
        return await _ended(talk, ending, fold)

    async def cancel(self, session_id: str, **_: object) -> None:
        """Stop a session's turn."""
        if talk := self._talks.get(session_id):
            talk.stop()

    async def aclose(self) -> None:
        """Stop everything, after the client has left."""
        talks, self._talks = list(self._talks.values()), {}
        for talk in talks:
            with suppress(HermesError):
                await talk.aclose()

    def _talk(self, session_id: str) -> Talk:
        if (talk := self._talks.get(session_id)) is None:
            raise RequestError.resource_not_found(session_id)
        return talk

    def _settings(self, servers: Sequence[Server]) -> Settings:
        settings = load_settings(overrides=self._wishes)
        settings.insist(*(name for name, wish in self._wishes.items() if wish is not None))
        settings = with_servers(settings, servers)
        if not self._kernel:
            return settings
        # The kernel asks in its notebook, so the client does not ask as well.
        command = ["-m", "hermes_nb.cli", "mcp", "--kernel", self._kernel]
        env = {"JUPYTER_RUNTIME_DIR": jupyter_runtime_dir()}  # servers do not inherit ours
        server = {NOTEBOOK: {"command": sys.executable, "args": command, "env": env}}
        mcp = settings.mcp
        mcp = replace(mcp, servers={**mcp.servers, **server}, allow=(*mcp.allow, NOTEBOOK))
        return replace(settings, mcp=mcp)

    async def _opened(self, cwd: str, servers: Sequence[Server], wanted: str = "") -> Talk:
        root = Path(cwd)
        if not (root.is_absolute() and await in_thread(root.is_dir)):
            raise _invalid(f"{cwd!r} is not the absolute path of a directory")
        if (old := self._talks.get(wanted)) is not None:
            if old.busy:
                raise RequestError(-32600, BUSY)
            await self.close_session(wanted)
        try:
            settings = self._settings(servers)
            talk = Talk(self._client, settings, root, wanted)
            await talk.open()
            await in_thread(_remember, settings.home, talk.id, root)
        except NoSession as error:
            raise RequestError.resource_not_found(wanted) from error
        except HermesError as error:
            raise _problem(error) from error
        self._talks[talk.id] = talk
        return talk

    def _offer(self, talk: Talk) -> schema.SessionModeState:
        """Return the modes for the response, and send the commands after it.

        Before the response, the client does not know a new session.
        """
        task = asyncio.create_task(_offered(talk))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _modes(talk)


async def _offered(talk: Talk) -> None:
    commands = [
        schema.AvailableCommand(
            name=name,
            description=about,
            input=schema.AvailableCommandInput(
                root=schema.UnstructuredCommandInput(hint=HINTS[name])
            )
            if name in HINTS
            else None,
        )
        for name, about in COMMANDS.items()
    ]
    with suppress(ConnectionError):
        await talk.send(
            schema.AvailableCommandsUpdate(
                session_update="available_commands_update", available_commands=commands
            )
        )


async def _ended(talk: Talk, ending: TurnEnded, fold: Updates) -> schema.PromptResponse:
    if ending.reason == "failed":
        error = redact(ending.error)
        if ending.failure == FailureKind.AUTH.value:
            raise RequestError.auth_required({"details": error})
        raise RequestError(-32603, error)
    if ending.note:
        await talk.send(update_agent_message_text(f"\n\n{redact(ending.note)}"))
    return schema.PromptResponse(stop_reason=STOPS[ending.reason], usage=_usage(fold.usage))


def _usage(used: Usage) -> schema.Usage:
    return schema.Usage(
        input_tokens=used.input,
        output_tokens=used.output,
        total_tokens=used.input + used.output,
        thought_tokens=used.reasoning,
        cached_read_tokens=used.cached,
        cached_write_tokens=used.written,
    )


def _typed(message: Message) -> str:
    first = message.parts[0]
    return first.text if isinstance(first, Text) and len(message.parts) == 1 else ""


def _allowed() -> list[Mode]:
    return [m for m in APPROVE_MODES if within(m) == m and not policy().why("modes", m)]


def _modes(talk: Talk) -> schema.SessionModeState:
    made = [schema.SessionMode(id=m, name=MODES[m][0], description=MODES[m][1]) for m in _allowed()]
    return schema.SessionModeState(available_modes=made, current_mode_id=talk.guard.held)


def _remember(home: Path, session: str, root: Path) -> None:
    make_private(home / "acp")
    write_atomic(home / "acp" / session, str(root).encode("utf-8", "surrogateescape"))


def _directory(home: Path, session: str) -> str:
    with suppress(OSError):
        return (home / "acp" / session).read_bytes().decode("utf-8", "surrogateescape")
    return ""


def _invalid(why: str) -> RequestError:
    return RequestError(-32602, why)


def _problem(error: HermesError) -> RequestError:
    text = redact(str(error))
    if isinstance(error, ConfigError) and str(error).startswith(WAYS_OUT):
        return RequestError.auth_required({"details": text})
    return RequestError(-32603, text)


def _ignore(_: str) -> None:
    """Leave warnings about the store to the sessions."""
