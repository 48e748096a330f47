"""The sources of system prompts: identity, memory, skills, past sessions, project files.

There is one object per Hermes directory and working directory. Files are read or written only when
needed. If a source cannot be read, the user gets a message, and the turn continues.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.agent.settings.config import McpSettings, Settings
from hermes_nb.agent.settings.files import read_dotenv
from hermes_nb.core.conversation import Preface
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Event, MessageAdded, TurnEnded
from hermes_nb.core.messages import Json, Message, Origin, Text, least_trusted
from hermes_nb.core.protocols import ChatModel, SessionStore
from hermes_nb.core.regular_files import Refused, read_regular
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.curated import CuratedMemory, Outcome, Snapshot
from hermes_nb.memory.hermes_agent import HermesDatabase
from hermes_nb.memory.providers import ANSWER_SECONDS, RECORDED_SECONDS, Guarded, open_provider
from hermes_nb.memory.recall import Recall
from hermes_nb.prompt.builder import IDENTITY, Prompt, PromptTexts
from hermes_nb.prompt.context_files import (
    ContextFile,
    ProjectContext,
    SkippedFile,
    ensure_identity,
    find_context,
    identity_text,
    read_identity,
    scanned,
)
from hermes_nb.prompt.hints import HintTracker
from hermes_nb.safety.administrator import Policy, not_roots
from hermes_nb.safety.marks import marks_of
from hermes_nb.safety.provenance import RECALLED, Trust
from hermes_nb.skills.discovery import installed_roots, standard_roots
from hermes_nb.skills.library import Library
from hermes_nb.skills.sources import Sources
from hermes_nb.tools.mcp_tools import PROJECT

if TYPE_CHECKING:
    from hermes_nb.tools.mcp_wire import ServerSpec

ADMIN_SKILLS = Path("share", "hermes_nb", "skills")
"""The administrator's skills folder, relative to a prefix such as `/usr/local`."""
MOST_SERVERS = 1_000_000
"""Maximum size of a project's list of MCP servers, in bytes."""
PREFIXES = ("/usr/local", "/usr")
"""Prefixes for `ADMIN_SKILLS`, in addition to Python's own."""


class PromptSources:
    """The sources of prompts and tools for one Hermes directory and working directory.

    `tell` shows the user a line for each omitted, changed or blocked text, and how to fix it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        workdir: Path,
        store: SessionStore,
        tell: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.workdir = workdir
        self.trust = Trust(settings.home)
        self.marks = marks_of(settings.home)
        self.sources = Sources(settings.home)
        self.memory = CuratedMemory(settings.home, limits=settings.memory.limits)
        roots = standard_roots(
            settings.home,
            workdir=workdir,
            external=[*settings.skills.external_dirs, self.sources.directory],
            installed=installed_roots(settings.policy, tell),
            admin=_admin_skills(settings.policy),
            shipped=shipped_skills(),
        )
        self.library = Library(
            [root for root in roots if not settings.policy.why("skills", root.source)],
            accepts=self.trust.accepts,
        )
        state = HermesDatabase(settings.home / "state.db", note=tell)
        self.recall = Recall([store, state])
        self.project = ProjectContext()
        self.identity: ContextFile | SkippedFile | None = None
        self._tell = tell
        self._told: set[str] = set()
        self._provider: Guarded | None = None
        self._provider_opened = False
        self._said: list[Message] = []

    @property
    def provider(self) -> Guarded | None:
        """The external memory, opened on first use; None if it is not configured."""
        if not self._provider_opened:
            self._provider_opened = True
            memory = self.settings.memory
            try:
                self._provider = open_provider(
                    memory.provider,
                    self.settings.home,
                    settings=memory.options,
                    policy=self.settings.policy,
                    warn=self._tell,
                    seconds=ANSWER_SECONDS if self.settings.cassette == "off" else RECORDED_SECONDS,
                )
            except ConfigError as error:
                self._tell(str(error))
        return self._provider

    def prepare(self) -> None:
        """Write the default identity file if it is missing, so that the user can edit it."""
        try:
            ensure_identity(self.settings.home, IDENTITY)
        except OSError as error:
            self._once(f"the home directory cannot be written: {error}")

    def material(self, tools: Toolset) -> PromptTexts:
        """Read and return the texts for a prompt; report files that were not loaded in full."""
        accepts, scan = self.trust.accepts, partial(self.library.scanned, scan=scanned)
        self.identity = read_identity(self.settings.home, IDENTITY, accepts=accepts, scan=scan)
        self.project = find_context(self.workdir, accepts=accepts, scan=scan)
        self._report(self.identity, *self.project.files, *self.project.skipped)
        snapshot = self._snapshot()
        return PromptTexts(
            identity=identity_text(self.identity, IDENTITY),
            provider=self.provider.static_block() if self.provider else "",
            message=self.settings.system_message,
            memory=snapshot.memory,
            user=snapshot.user if self.settings.memory.user_profile else "",
            skills=self._index(tools),
            project=self.project.block,
        )

    def foreign(self) -> bool:
        """Return whether a project's instruction file contains untrusted content."""
        return any(map(self.marks.holds, (file.path for file in self.project.files)))

    def tracker(self, messages: Iterable[Message] = ()) -> HintTracker:
        """Return a tracker of subdirectory hints, omitting those already in `messages`."""
        results = (message.text for message in messages if message.role == "tool")
        seen = [name for text in results for name in HintTracker.seen_in(text)]
        tracker = HintTracker(self.workdir, accepts=self.trust.accepts)
        tracker.mark([*seen, *(file.path for file in self.project.files)])
        return tracker

    def recalled(self, prompt: str) -> str:
        """Return the external memory's text for a prompt; may block for seconds."""
        return self.provider.prefetch(prompt) if self.provider else ""

    def on_event(self, event: Event) -> None:
        """Collect a turn's messages; pass them to the external memory when it ends."""
        if isinstance(event, MessageAdded):
            self._said.append(event.message)
        elif isinstance(event, TurnEnded):
            said, self._said = self._said, []
            if self.provider is not None:
                self.provider.turn_ended(said)

    def written(self, outcome: Outcome) -> None:
        """Notify the external memory of a write to the curated one."""
        if self.provider is not None:
            for change in outcome.changes:
                self.provider.on_memory_write(
                    outcome.target, change.action, change.before, change.after
                )

    def learned(self, session: str, turn: int) -> int:
        """Return the number of notes a turn saved, from the memory's history; raise OSError."""
        records = self.memory.history()
        of_turn = (session, turn)
        mine = [each for each in records if (each.origin.session, each.origin.turn) == of_turn]
        return sum(bool(change.after) for each in mine for change in each.changes)

    def delegated(self, goal: str, summary: str) -> None:
        """Pass a child's task and answer to the external memory; may block."""
        if self.provider is not None:
            self.provider.on_delegation(goal, summary)

    def session_ended(self, messages: Sequence[Message]) -> None:
        """Pass an ending session's messages to the external memory, and close the memory.

        The next session opens it again.
        """
        provider, self._provider, self._provider_opened = self._provider, None, False
        if provider is not None:
            provider.session_ended(messages)

    def mcp_servers(self, settings: McpSettings) -> dict[str, ServerSpec]:
        """Return the MCP servers in the settings, and the project's if the project is trusted.

        Servers in the administrator's policy override any others with the same name.
        """
        settled, file = self.settings.policy, self.mcp_file
        shared = settled.values.get("mcp_servers")
        if not (settings.servers or shared or file):
            return {}
        from hermes_nb.tools.mcp_wire import specs

        env = {**read_dotenv(self.settings.home), **os.environ}
        found = specs(settings.servers, env, "config.yaml")
        if file is not None:
            theirs = specs(_servers_of(file.source), env, PROJECT)
            if file.trusted:
                found = {**theirs, **found}  # the user's settings take precedence
            else:
                names = ", ".join(map(one_line, theirs))
                self._once(
                    f"`{PROJECT}` here names MCP servers ({names}), which run programs or contact "
                    f"addresses. To use them, run `%hermes trust {PROJECT}`, then `%hermes new`"
                )
        found = {
            name: replace(spec, problem=spec.problem or settled.why("mcp", spec.target))
            for name, spec in found.items()
        }
        found |= specs(shared, env, settled.file)
        if why := settled.why("network"):
            return {name: replace(spec, problem=why) for name, spec in found.items()}
        return found

    @property
    def mcp_file(self) -> ContextFile | None:
        """The project's list of MCP servers, or None if it is missing or empty."""
        path = self.workdir / PROJECT
        try:
            text = read_regular(path, MOST_SERVERS)[0].decode("utf-8")
        except (OSError, Refused, UnicodeDecodeError):
            return None
        return (
            ContextFile(
                name=PROJECT,
                path=path.resolve(),
                verdict="suspicious",
                text_loaded="",
                characters=len(text),
                trusted=self.trust.accepts(path, text),
                source=text,
            )
            if _servers_of(text)
            else None
        )

    def untrusted(self) -> list[ContextFile]:
        """Return the files in the current prompt in which the scan found something."""
        mcp = self.mcp_file
        own = (None if mcp is None or mcp.trusted else mcp, self.identity)
        files = [file for file in (*own, *self.project.files) if file]
        return [f for f in files if isinstance(f, ContextFile) and f.verdict != "clean"]

    def _snapshot(self) -> Snapshot:
        if not self.settings.memory.enabled:
            return Snapshot()
        snapshot = self.memory.snapshot()
        for note in snapshot.notes:
            self._once(note)
        return snapshot

    def _index(self, tools: Toolset) -> str:
        if "skill_view" not in tools:
            return ""
        names = [tool.name for tool in tools]
        return self.library.index(
            self.settings.skills.index_tokens,
            query=self.project.block[:2_000],
            tools=names,
            toolsets={tool.toolset for tool in tools},
        )

    def _report(self, *files: ContextFile | SkippedFile | None) -> None:
        for file in files:
            if isinstance(file, SkippedFile):
                self._once(f"{file.name} was not loaded: {file.reason}")
            elif file is not None and file.verdict != "clean" and not file.trusted:
                self._once(said_of(file))

    def _once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)


def _servers_of(text: str) -> object:
    """Return the servers in a `.mcp.json` file's text, or None if it is invalid."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document.get("mcpServers") if isinstance(document, dict) else None


MOST_PREFILL = 200_000
"""Maximum size of a prefill file, in bytes."""


def read_prefill(path: Path) -> tuple[Message, ...]:
    """Return the messages in a JSON file, which must alternate between user and assistant."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_PREFILL + 1)
        listed = json.loads(data) if len(data) <= MOST_PREFILL else None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"the prefill messages cannot be read: {error}") from error
    given = listed if isinstance(listed, list) else [None]
    found = [_prefilled(each, ("user", "assistant")[at % 2]) for at, each in enumerate(given)]
    messages = tuple(each for each in found if each is not None)
    # The user speaks next, so the last message must be the assistant's.
    if len(messages) != len(given) or len(messages) % 2:
        raise ConfigError(
            f"{path.name} must be a list of messages that alternate between user and assistant: "
            '[{"role": "user", "content": "…"}, {"role": "assistant", '
            '"content": "…"}]'
        )
    return messages


def _prefilled(given: Json, role: str) -> Message | None:
    """Return an entry in the file as a message, or None if it is not a message with that role."""
    text = given.get("content") if isinstance(given, Mapping) else None
    if not isinstance(text, str) or given.get("role") != role:
        return None
    return Message.user(text) if role == "user" else Message.assistant(text)


def preface_of(folder: Path, system: str, prefill: str) -> Preface:
    """Make a preface from system text and the path of a prefill file, relative to `folder`.

    Raises `ConfigError` if the file is invalid.
    """
    messages = read_prefill(folder / Path(prefill).expanduser()) if prefill else ()
    return Preface(system=system.strip(), prefill=messages)


def said_of(file: ContextFile) -> str:
    """Return the message to the user about a file in which the scan found something."""
    done = "was blocked" if file.verdict == "blocked" else "was loaded without a passage"
    what = "; ".join(
        f"{finding.category}: “{one_line(visible(finding.passage), 100)}”"
        for finding in file.findings[:3]
    )
    return (
        f"{file.name} {done}, because it may contain instructions that are not yours "
        f"({what}). If you trust it: %hermes trust {file.name}"
    )


def shipped_skills() -> Path | None:
    """Return the folder of the skills that ship with this package, in a wheel or a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "shipped_skills", package.parent / "skills"):
        if (candidate / "data-analysis").is_dir():
            return candidate
    return None


def _admin_skills(policy: Policy) -> list[Path]:
    """Return the folders for the administrator's skills.

    With a policy, folders that users can write to are skipped.
    """
    found = [Path(prefix) / ADMIN_SKILLS for prefix in dict.fromkeys((sys.prefix, *PREFIXES))]
    return [each for each in found if not (policy and not_roots(each))]


def background(prompt: Prompt, sources: PromptSources | None) -> tuple[Text, ...]:
    """Return the parts of the prompt that neither the user nor this package wrote.

    A memory service's text gets the same header as its recalled text.
    """
    project: Origin = "outside" if sources is not None and sources.foreign() else "workspace"
    origins: dict[str, Origin] = {"project": project, "memory provider": "outside"}
    told = {"memory provider": f"{RECALLED}system prompt):\n"}
    found = (
        (
            told.get(layer.name, "") + layer.text,
            [origins[name] for name in layer.name.split(", ") if name in origins],
        )
        for layer in prompt.layers
    )
    return tuple(Text(text, least_trusted(each)) for text, each in found if each)


def known_tools(sources: PromptSources, *, model: ChatModel, source: str = "agent") -> Toolset:
    """Return the enabled tools for memory, past sessions, skills and plans.

    `model` summarises past conversations. `source` is recorded as the origin of writes.
    """
    from hermes_nb.tools.memory import memory_tools
    from hermes_nb.tools.plan import plan_tools
    from hermes_nb.tools.sessions import session_tools
    from hermes_nb.tools.skills import skills

    settings = sources.settings
    tools = Toolset()
    if settings.memory.enabled:
        tools += memory_tools(
            sources.memory,
            source=source,
            write_approval=settings.memory.write_approval,
            on_written=sources.written,
        )
    tools += session_tools(sources.recall, model=model)
    if settings.skills.enabled:
        tools += skills(sources.library)
    return tools + plan_tools()
