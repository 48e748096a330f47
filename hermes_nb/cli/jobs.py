"""`jupyter hermes jobs`: what is scheduled, and what cron and timers call each minute."""

from __future__ import annotations

import argparse
import asyncio
import sys

from hermes_nb.agent.config import load_settings
from hermes_nb.agent.models import build_model
from hermes_nb.agent.schedule import Run, Schedule, cron_for, run_due
from hermes_nb.cli.main import FAILED, OK
from hermes_nb.cli.run import ask_on_terminal
from hermes_nb.core.text import one_line, visible
from hermes_nb.notebook.commands.schedule import Commands
from hermes_nb.notebook.display.tables import moment, printed


def jobs(arguments: argparse.Namespace) -> int:
    """Run what is due, or do what the words say."""
    settings = load_settings()
    schedule = Schedule(settings.home, warn=lambda told: print(told, file=sys.stderr))

    async def translate(when: str) -> str:
        model = build_model(settings)
        try:
            return await cron_for(when, model)
        finally:
            await model.aclose()

    def ask(question: str) -> str | None:
        return ask_on_terminal(question) if sys.stdin.isatty() else None

    try:
        if arguments.words == ["run"]:
            return asyncio.run(_due(schedule))
        commands = Commands(schedule, "jupyter hermes jobs", ask, translate)
        print(printed(asyncio.run(commands.perform(arguments))))
    finally:
        schedule.close()
    return OK


async def _due(schedule: Schedule) -> int:
    """Run what is due; what did not go as planned is printed, so that cron sends it by mail."""
    odd: list[Run] = []

    def tell(run: Run) -> None:
        if run.state == "done" and not run.missed:
            return
        odd.append(run)
        text = one_line(visible(run.text), 200)
        print(f"job {run.job}, {moment(run.due)}: {run.came_to}: {text}", flush=True)

    await run_due(schedule, tell)
    return FAILED if any(run.state != "done" for run in odd) else OK
