"""`jupyter hermes trajectories`: sessions as training data, and conversations led to make some.

Without `--prompts` the home's sessions are written. With it each prompt is led once, in a home and
a directory of its own, so that nothing of yours is in it; what is written is kept, a line at a
time, and the same command goes on where it was stopped or killed.
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
    "sessions hold what people said. Add --consent if all whose words are in them agree that a "
    "model is trained on them"
)
SAID = {"chat": "messages", "sharegpt": "conversations"}


def trajectories(arguments: argparse.Namespace) -> int:
    """Write sessions, or lead conversations; return 1 where a prompt came to nothing."""
    if arguments.prompts:
        return asyncio.run(_generate(arguments))
    if not arguments.consent:
        raise UsageProblem(CONSENT)
    return _export(arguments)


class Lines:
    """A file of trajectories that grows by whole lines; what was torn in a kill is taken away.

    `rejected` lies beside it, and has what was led and is not to be learned from.
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
        """Return the ids of what needs not be done again, counted."""
        ids = set()
        for about in _whole(self.path, SAID[self._form]):
            self._count(about)
            ids.add(about["id"])
        if self._retry:
            self.rejected.unlink(missing_ok=True)
        for about in _whole(self.rejected):
            self.flaws[about["flaw"]] += 1
            ids.add(about["id"])
        return ids

    def add(self, trajectory: Trajectory, why: str = "") -> None:
        """Write a conversation, or, where it has a flaw, why not; durable when this returns."""
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

    def told(self) -> str:
        """Return what there is by now: conversations, flaws, calls by tool."""
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


def _whole(path: Path, said: str = "metadata") -> Iterator[Mapping[str, Json]]:
    """Yield the metadata of a file's lines, which have `said`; a torn last one is cut off."""
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
                # Only what a kill has left of ours is cut off: it may be another file by mistake.
                if each.endswith(b"\n") or not each.startswith(begun[: len(each)]):
                    message = f"{path} is no file of trajectories in this form: {error}"
                    raise ConfigError(message) from error
                file.truncate(file.seek(-len(each), os.SEEK_END))
                return
            yield about


def _export(arguments: argparse.Namespace) -> int:
    lines = Lines(Path(arguments.output), arguments)
    with opened() as store, _alone(lines.path):
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
    print(lines.told(), file=sys.stderr)
    return OK


async def _generate(arguments: argparse.Namespace) -> int:
    settings = load_settings(overrides={"model": arguments.model})
    settings.insist(*(["model"] if arguments.model else []))
    prompts = list(dict.fromkeys(_prompts(Path(arguments.prompts))))
    lines = Lines(Path(arguments.output), arguments)
    with _alone(lines.path):
        done = lines.done()
        left = [prompt for prompt in prompts if name_of(prompt) not in done]
        ended = itertools.count(len(prompts) - len(left) + 1)

        async def lead(number: int) -> None:
            lines.add(*await _led(left[number], settings, arguments))
            print(f"{next(ended)} of {len(prompts)}", file=sys.stderr)

        try:
            await side_by_side(arguments.parallel, len(left), lead)
        finally:
            print(lines.told(), file=sys.stderr)
    return FAILED if lines.flaws else OK


async def _led(
    prompt: str, settings: Settings, arguments: argparse.Namespace
) -> tuple[Trajectory, str]:
    """Lead one conversation; return it, and why it came to nothing."""
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
                    if isinstance(event, MessageAdded):  # also what is compressed later
                        said.append(event.message)
                    elif isinstance(event, TurnEnded):  # of a failure the error, of a cut the note
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
    """Yield a file's prompts: a line each, as it is or as JSON with `prompt`."""
    try:
        texts = path.read_text("utf-8-sig").split("\n")  # JSON may hold what else ends a line
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
            raise ConfigError(f"{path}, line {number}: the prompt is no text")
        if found.strip():
            yield found


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a file for this process alone; raise `ConfigError` where another one writes it."""
    try:
        with locked(path, 0):
            yield
    except TimeoutError as error:
        raise ConfigError(f"{path} is being written by another process") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
