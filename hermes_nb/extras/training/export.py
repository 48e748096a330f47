"""`jupyter hermes trajectories`: export sessions as training data, or generate conversations.

Without `--prompts`, the sessions in the Hermes directory are exported. With it, one conversation is
generated per prompt, in a separate Hermes directory and working directory, so that it contains no
personal data. Output is written line by line. Rerunning the command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hermes_nb.agent.api import Hermes
from hermes_nb.agent.jobs import side_by_side
from hermes_nb.agent.models import build_model
from hermes_nb.agent.session.manager import the_one
from hermes_nb.agent.session.retention import ALL
from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.cli.command import FAILED, OK, UsageProblem
from hermes_nb.cli.terminal import opened
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.files import append_line, locked
from hermes_nb.core.messages import Json
from hermes_nb.core.text import number_of, one_line
from hermes_nb.core.tools import Toolset
from hermes_nb.extras.training.trajectories import (
    Trajectory,
    flaw,
    line,
    name_of,
    schemas,
    shortened,
    tokens_of,
    trajectory_of,
)
from hermes_nb.safety.redact import redact

CONSENT = (
    "sessions contain people's words. Add --consent if all of them agree that a model is trained "
    "on these"
)
SAID = {"chat": "messages", "sharegpt": "conversations"}


def trajectories(arguments: argparse.Namespace) -> int:
    """Export sessions or generate conversations; return 1 if a prompt failed."""
    if arguments.prompts:
        return asyncio.run(_generate(arguments))
    if not arguments.consent:
        raise UsageProblem(CONSENT)
    return _export(arguments)


class Lines:
    """A trajectories file, appended in whole lines; an incomplete last line is removed.

    `rejected` is a second file next to it, with the generated conversations that are unsuitable for
    training.
    """

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        self.path = path
        self.rejected = path.with_name(f"{path.stem}.rejected.jsonl")
        self.kept = 0
        self.flaws: collections.Counter[str] = collections.Counter()
        self.calls: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self._form, self._tokens = arguments.form, arguments.tokens
        self._retry = arguments.retry

    def done(self) -> set[str]:
        """Return the ids of the conversations in the files, and count them."""
        ids = set()
        for about in _complete_lines(self.path, SAID[self._form]):
            self._count(about)
            ids.add(about["id"])
        if self._retry:
            self.rejected.unlink(missing_ok=True)
        for about in _complete_lines(self.rejected):
            self.flaws[about["flaw"]] += 1
            ids.add(about["id"])
        return ids

    def add(self, trajectory: Trajectory, why: str = "") -> None:
        """Write a conversation, or the reason it was rejected; durable on return."""
        why = why or flaw(trajectory)
        if self._tokens:
            trajectory = shortened(trajectory, self._tokens)
            why = why or "too long" * (tokens_of(trajectory) > self._tokens)
        text = line(trajectory, self._form)
        about = json.loads(text)["metadata"]
        if why:
            self.flaws[why] += 1
            text = json.dumps({"metadata": {**about, "flaw": why}})
        else:
            self._count(about)
        data = f"{text}\n".encode("utf-8", "replace")
        append_line(self.rejected if why else self.path, data, durable=True)

    def summary(self) -> str:
        """Return a summary: the number of conversations, of rejections, and of calls by tool."""
        parts = [f"{number_of(self.kept, 'conversation')} in {self.path}"]
        if self.flaws:
            whys = ", ".join(f"{why} {count}" for why, count in self.flaws.most_common(5))
            parts.append(f"{self.flaws.total()} left out ({whys})")
        for name, count in sorted(self.calls.items()):
            failed = f", {self.failed[name]} failed" if self.failed[name] else ""
            parts.append(f"{name} {number_of(count, 'call')}{failed}")
        return "; ".join(parts)

    def _count(self, about: Mapping[str, Json]) -> None:
        self.kept += 1
        for name, counted in about["tools"].items():
            self.calls[name] += counted["calls"]
            self.failed[name] += counted["failed"]


def _complete_lines(path: Path, said: str = "metadata") -> Iterator[Mapping[str, Json]]:
    """Yield each line's metadata; remove an incomplete last line.

    Raises:
        ConfigError: a line has no metadata or no `said` key.
    """
    if not path.exists():
        return
    begun = f'{{"{said}": '.encode()
    with path.open("rb+") as file:
        for each in file:
            try:
                found = json.loads(each)
                about = found["metadata"]
                _ = found[said], about["id"], about["tools"]
            except (ValueError, KeyError, TypeError) as error:
                # Remove only an incomplete line in our own format, since it may be a different
                # file.
                if each.endswith(b"\n") or not each.startswith(begun[: len(each)]):
                    message = f"{path} is not a file of trajectories in this form: {error}"
                    raise ConfigError(message) from error
                file.truncate(file.seek(-len(each), os.SEEK_END))
                return
            yield about


def _export(arguments: argparse.Namespace) -> int:
    lines = Lines(Path(arguments.output), arguments)
    with opened() as store, _file_lock(lines.path):
        done = lines.done()
        if arguments.sessions:
            found = [the_one(store, name) for name in arguments.sessions]
            if None in found:
                missing = arguments.sessions[found.index(None)]
                raise ConfigError(f"there is no session {missing!r}")
        else:
            found = list(store.sessions(limit=ALL))
        for stored in found:
            if stored is not None and stored.id not in done:
                done.add(stored.id)
                lines.add(trajectory_of(stored, store.rows(stored.id), Toolset()))
    print(lines.summary(), file=sys.stderr)
    return OK


async def _generate(arguments: argparse.Namespace) -> int:
    settings = load_settings(overrides={"model": arguments.model})
    settings.insist(*(["model"] if arguments.model else []))
    prompts = list(dict.fromkeys(_prompts(Path(arguments.prompts))))
    lines = Lines(Path(arguments.output), arguments)
    with _file_lock(lines.path):
        done = lines.done()
        left = [prompt for prompt in prompts if name_of(prompt) not in done]
        ended = itertools.count(len(prompts) - len(left) + 1)

        async def lead(number: int) -> None:
            lines.add(*await _run_prompt(left[number], settings, arguments))
            print(f"{next(ended)} of {len(prompts)}", file=sys.stderr)

        try:
            await side_by_side(arguments.parallel, len(left), lead)
        finally:
            print(lines.summary(), file=sys.stderr)
    return FAILED if lines.flaws else OK


async def _run_prompt(
    prompt: str, settings: Settings, arguments: argparse.Namespace
) -> tuple[Trajectory, str]:
    """Run one conversation; return it, and the reason it failed or ""."""
    why, said = "", []
    with tempfile.TemporaryDirectory(
        prefix="hermes-trajectory-", ignore_cleanup_errors=True
    ) as folder:
        hermes = Hermes(
            build_model(settings),
            home=Path(folder, "home"),
            cwd=arguments.cwd or tempfile.mkdtemp(dir=folder),
            tools=arguments.tools.split(",") if arguments.tools else None,
            approve=arguments.approve,
            window=settings.window,
        )
        hermes.progress = False
        async with hermes:
            try:
                async for event in hermes.stream(prompt, max_requests=arguments.max_requests):
                    if isinstance(event, MessageAdded):  # also those compressed later
                        said.append(event.message)
                    elif isinstance(event, TurnEnded):  # failed, or the answer was truncated
                        why = event.error or event.note * (event.reason == "answered")
            except HermesError as error:
                why = str(error)
            return Trajectory(
                id=name_of(prompt),
                messages=tuple(said),
                system=hermes.system_prompt,
                model=settings.endpoint.model,
                tools=tuple(schemas(said, hermes.tools)),
            ), redact(one_line(why, 100))


def _prompts(path: Path) -> Iterator[str]:
    """Yield the prompts in a file, one per line, as text or as JSON with `prompt`."""
    try:
        texts = path.read_text("utf-8-sig").split("\n")  # JSON may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, text in enumerate(texts, start=1):
        found = text.strip()
        if found.startswith("{"):
            try:
                found = json.loads(found)["prompt"]
            except (ValueError, KeyError) as error:
                raise ConfigError(f"{path}, line {number} has no prompt: {error}") from error
        if not isinstance(found, str):
            raise ConfigError(f"{path}, line {number}: the prompt is not text")
        if found.strip():
            yield found


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Lock a file for this process; raise `ConfigError` if another one is writing to it."""
    try:
        with locked(path, 0):
            yield
    except TimeoutError as error:
        raise ConfigError(f"{path} is being written by another process") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
