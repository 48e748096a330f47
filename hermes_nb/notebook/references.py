"""`@` references in a prompt: resolve them and attach their text with its origin.

`@cell:7` `@error` `@df` (a variable) `@file:data/a.csv:10-25` `@folder:src` `@diff` `@staged`
`@git:5` `@url:https://…`; with an MCP server `@server:uri` (a resource) and
`@server:prompt/NAME?key=value`. Names with spaces are written in double quotes (`@file:"my
notes.md"`). Syntax and limits are the same as in Hermes Agent.

Files and git data are read with the model's own tools, so the same access rules apply. Addresses,
decorators and text in fenced blocks are not references. A reference that cannot be resolved is
reported to the user.
"""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hermes_nb.core.calls import as_output
from hermes_nb.core.errors import HermesError, ToolError
from hermes_nb.core.messages import Json, Message, Origin, Text, ToolCall
from hermes_nb.core.text import amount, estimate_tokens, head_tail, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place, Tool, ToolContext
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.completion import ENTRIES, bare
from hermes_nb.notebook.document.outline import rendered, with_outputs
from hermes_nb.notebook.document.outputs import html_to_text
from hermes_nb.notebook.execute.network import kernel_origin
from hermes_nb.notebook.shell import Shell
from hermes_nb.notebook.variables import describe, user_variables
from hermes_nb.safety.administrator import Policy
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.markup import code_span
from hermes_nb.safety.scan import scan, wrap
from hermes_nb.tools.files import files
from hermes_nb.tools.installed import wrapped
from hermes_nb.tools.mcp_tools import McpTools
from hermes_nb.tools.origins import keeping_origins
from hermes_nb.tools.terminal import terminal
from hermes_nb.tools.web import REDIRECTED, Web, WebResponse, redirected

MOST = 50_000
"""Maximum characters per attachment, as for a tool's result."""
VARIABLE = 4_000
"""Maximum characters of a variable's description."""
COMMITS = 10
"""Maximum commits for `@git:`."""
LINES = 1_000
"""Maximum lines of a file if no range is given."""
PAGE = 2_000_000
"""Maximum bytes to read from a web page."""
SECONDS = 20
"""Timeout for fetching a web page."""
WARNING, REFUSAL = 0.25, 0.5
"""Fractions of the context window that attachments may fill.

Above the first the user is warned, above the second nothing is attached.
"""
OWN = ("cell", "file", "folder", "git", "url")
"""Kinds of references with a value after a colon, apart from MCP servers."""
_LINES = re.compile(r":(\d{1,9})(?:-(\d{1,9}))?$")


@dataclass(frozen=True, slots=True)
class Attached:
    """A reference with the text that is sent with the prompt."""

    name: str
    """The reference as typed."""
    text: str
    """The text to attach."""
    origin: Origin
    """The text's origin, for the guard."""

    @property
    def part(self) -> Text:
        """The part of the message for the model."""
        return Text(f"[Attached: {self.name}]\n{self.text}", self.origin)

    @property
    def tokens(self) -> int:
        """Estimated tokens."""
        return estimate_tokens([Message(role="user", parts=(self.part,))])


class Missing(HermesError):
    """A reference cannot be resolved; the message explains why."""


class References:
    """Resolves the references of a prompt."""

    def __init__(
        self,
        shell: Shell,
        access: NotebookAccess,
        guard: Guard,
        *,
        place: Place,
        root: Path,
        error: str,
        mcp: McpTools,
    ) -> None:
        """Create a resolver for one prompt.

        Args:
            shell: the kernel's IPython shell
            access: the kernel's notebook
            guard: decides whether a file or command needs approval
            place: the prompt's turn
            root: the working directory
            error: the last failed cell's failure as text, or "" for none
            mcp: the servers whose resources and prompts can be referenced
        """
        self._mcp = mcp
        self._shell = shell
        self._error = error
        self._access = access
        self._place = place
        self._guard = guard
        reading = keeping_origins(files(root) + terminal(root), access.marks, root)
        reading = wrapped(reading, source="notebook", guard=guard)
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in reading}

    async def of(self, prompt: str, window: int) -> tuple[list[Attached], str]:
        """Return a prompt's attachments and a message about them, or "" for none.

        `window` is the model's context window in tokens, or 0 if unknown.
        """
        found: dict[str, Attached] = {}
        problems = []
        for name, kind, what in named(prompt, tuple(self._mcp.connections)):
            if name in found:
                continue
            try:
                if (attached := await self._attached(name, kind, what)) is not None:
                    found[name] = attached
            except (HermesError, OSError) as error:
                problems.append(f"{code_span(name)} is sent as typed: {one_line(str(error), 200)}")
        total = sum(each.tokens for each in found.values())
        chips = [f"{code_span(each.name)} {amount(each.tokens)}" for each in found.values()]
        parts = [f"Attached: {' · '.join(chips)} tokens."] if chips else []
        if window and total > REFUSAL * window:
            parts = [
                f"Nothing was attached: {', '.join(chips)} tokens are more than half of the "
                "context window."
            ]
            found = {}
        elif window and total > WARNING * window:
            parts.append(f"That is {total / window:.0%} of the context window.")
        return list(found.values()), " ".join([*parts, *problems])

    async def _attached(self, name: str, kind: str, what: str) -> Attached | None:
        """Return one attachment, or None if it is not a reference; raise `HermesError`."""
        origin: Origin = "workspace"
        match kind:
            case "cell":
                text, origin = await self._cell(what)
            case "error":
                text, origin = self._error, kernel_origin()
                if not text:
                    raise Missing("no cell has failed")
            case "file":
                text, origin = await self._by_tool("read_file", _file(what))
            case "folder":
                text, origin = await self._by_tool("list_files", {"path": what, "depth": 2})
                first, more = text.split("\n")[:ENTRIES], text.count("\n") + 1 - ENTRIES
                text = "\n".join([*first, f"… {more} more"] if more > 0 else first)
            case "diff" | "staged":
                command = f"git diff{' --staged' if kind == 'staged' else ''}"
                text, origin = await self._git(command)
            case "git":
                if not what.isdecimal() or not 0 < int(what) <= COMMITS:
                    raise Missing(f"give the number of commits, 1 to {COMMITS}")
                command = f"git log -p -n {int(what)}"
                text, origin = await self._git(command)
            case "url":
                found = await in_thread(page, what, self._guard.policy)
                scanned = await in_thread(scan, found, name=what)
                text, origin = wrap(found, source=what, scanned=scanned), "outside"
            case _ if kind:
                found = await self._of_server(kind, what)
                scanned = await in_thread(scan, found, name=what)
                text, origin = wrap(found, source=name, scanned=scanned), "outside"
            case _:
                variables = user_variables(self._shell.user_ns, self._shell.user_ns_hidden)
                if what not in variables:
                    return None
                text, origin = describe(what, variables[what], budget=VARIABLE), kernel_origin()
        return Attached(name, text, origin)

    async def _cell(self, what: str) -> tuple[str, Origin]:
        """Return a cell with its outputs, by its execution count or its id."""
        document = await self._access.document(self._place)
        # After a restart of the kernel, two cells can have the same execution count.
        fits = [c for c in await document.cells() if what in (c.id, str(c.execution_count))][-1:]
        if not fits:
            raise Missing(f"there is no cell [{one_line(what, 40)}] in this notebook")
        shown = await with_outputs(document, fits)
        foreign = any(self._access.foreign(cell.source) for cell in shown)
        text = rendered(shown, {cell.id: cell.id for cell in shown}, images=False).text
        return text, "outside" if foreign else kernel_origin()

    async def _of_server(self, server: str, what: str) -> str:
        """Return the text of a server's resource or prompt; raise `ToolError`."""
        from hermes_nb.tools.mcp import PROMPT

        if not what.startswith(PROMPT):
            return head_tail((await self._mcp.resource(server, what)).text, MOST)
        name, _, query = what.removeprefix(PROMPT).partition("?")
        arguments = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        found = await self._mcp.prompt(server, urllib.parse.unquote(name), arguments)
        return head_tail(found.text, MOST)

    async def _git(self, command: str) -> tuple[str, Origin]:
        """Return git's output; raise `Missing` if git fails, for example outside a repository."""
        text, origin = await self._by_tool("terminal", {"command": command})
        # The last line of the tool's result says how the command ended.
        if not text.rpartition("\n")[2].startswith("[exit 0"):
            raise Missing(f"git says: {one_line(text.splitlines()[0], 150)}")
        return text, origin

    async def _by_tool(self, name: str, arguments: Mapping[str, Json]) -> tuple[str, Origin]:
        """Call a tool and return its result and origin; raise `Missing` if it needs approval."""
        tool = self._tools[name]
        decided = await in_thread(self._guard.decide, tool, arguments)
        if decided.verdict != "allow":
            what = (
                "this git command could run or change something here"
                if name == "terminal"
                else "it is not read"
            )
            raise Missing(f"{what} ({decided.why})")
        call = ToolCall(id="reference", name=name, arguments=dict(arguments))
        place = Place(notebook=self._access.path)
        asked = tool.run(ToolContext(call=call, permit=decided.way, place=place), arguments)
        output = as_output(await asked)
        origin: Origin = "outside" if output.origin == "outside" else "workspace"
        return head_tail(output.text, MOST), origin


@lru_cache(maxsize=8)
def _reference(servers: tuple[str, ...]) -> re.Pattern[str]:
    kinds = "|".join(map(re.escape, (*OWN, *servers)))
    # Not in an email address, a path, a decorator with dots or code in backquotes.
    return re.compile(
        rf"(?<![\w@./`])@(?:(?P<kind>{kinds}):(?P<what>\"[^\"\n]+\"[\d:-]*|[^\s`\"]+)"
        r"|(?P<word>[^\W\d]\w*))"
    )


def named(prompt: str, servers: tuple[str, ...] = ()) -> Iterable[tuple[str, str, str]]:
    """Yield a prompt's references in order: text as typed, kind, and target.

    A variable's kind is "". The names in `servers` are also kinds.
    """
    for match in _reference(servers).finditer(bare(prompt)):
        if match["word"]:
            word = match["word"]
            yield match[0], word if word in ("error", "diff", "staged") else "", word
            continue
        quoted = match["what"].startswith('"')
        typed = match["what"]
        # Punctuation at the end belongs to the sentence.
        what = typed if quoted else typed.rstrip(".,;:!?)]}'") or typed
        yield f"@{match['kind']}:{what}", match["kind"], what.replace('"', "")


def _file(what: str) -> dict[str, Json]:
    """Return the arguments of `read_file` for a path with an optional range of lines."""
    lines = _LINES.search(what)
    if lines is None:
        return {"path": what, "offset": 1, "limit": LINES}
    first, last = int(lines[1]), int(lines[2] or lines[1])
    if not 0 < first <= last:
        raise ToolError(f"{first}-{last} is not a range of lines")
    return {"path": what[: lines.start()], "offset": first, "limit": last - first + 1}


def page(address: str, policy: Policy) -> str:
    """Return the text of a page; raise `Missing` if it cannot or must not be fetched."""
    if why := policy.why("network"):
        raise Missing(why)
    if not address.startswith(("http://", "https://")):
        raise Missing("a URL must start with http:// or https://")
    found = _fetched(address)
    text = found.text
    if found.kind == "text/html":
        return head_tail(html_to_text(text), MOST)
    if not found.kind.startswith("text/") and "json" not in found.kind and "xml" not in found.kind:
        raise Missing(f"it is {found.kind}, not text")
    return head_tail(text, MOST)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects, which are raised as errors instead."""

    def redirect_request(self, *_: object) -> None:
        return None


def _fetched(address: str) -> WebResponse:
    """Return the content at an address; redirects may only lead to the public internet.

    The user chose the typed address, so it may be private. A redirect's target is chosen by the
    server.
    """
    request = urllib.request.Request(address, headers={"User-Agent": "hermes_nb"})  # noqa: S310
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=SECONDS) as reply:
            charset = reply.headers.get_content_charset() or ""
            kind = reply.headers.get_content_type()
            return WebResponse(address, reply.status, kind, charset, reply.read(PAGE))
    except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
        leads = ""
        if isinstance(error, urllib.error.HTTPError):
            leads = error.headers.get("Location", "") if error.code in REDIRECTED else ""
            error.close()
        if not leads:
            raise Missing(f"the page cannot be read ({one_line(str(error), 100)})") from error
    found = Web().page(redirected(address, leads), robots=False)
    if found.status != http.client.OK:
        raise Missing(f"{one_line(found.url, 100)} responded with status {found.status}")
    return replace(found, data=found.data[:PAGE])
