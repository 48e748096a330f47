"""`jupyter hermes jobs`: manage jobs, or run due ones as cron and timers do each minute."""

from __future__ import annotations

import argparse
import asyncio
import sys

from hermes_nb.agent.settings.sources import home_directory
from hermes_nb.cli.command import FAILED, OK
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import one_line
from hermes_nb.extras.jobs.schedule import Run, Schedule, local_time, run_due


def jobs(arguments: argparse.Namespace) -> int:
    """Run due jobs or a command; return the exit code."""
    schedule = Schedule(home_directory(), warn=lambda told: print(told, file=sys.stderr))
    try:
        if arguments.words == ["run"]:  # runs every minute, so import little
            return asyncio.run(_due(schedule))
        print(asyncio.run(_run_command(schedule, arguments)))
    finally:
        schedule.close()
    return OK


async def _run_command(schedule: Schedule, arguments: argparse.Namespace) -> str:
    """Run a `%hermes schedule` command and return its output."""
    from hermes_nb.agent.models import build_model
    from hermes_nb.agent.settings.config import load_settings
    from hermes_nb.cli.terminal import ask_on_terminal
    from hermes_nb.extras.jobs.commands import Commands, cron_for
    from hermes_nb.notebook.display.tables import printed

    def ask(question: str) -> str | None:
        return ask_on_terminal(question) if sys.stdin.isatty() else None

    async def translate(when: str) -> str:
        model = build_model(load_settings())
        try:
            return await cron_for(when, model)
        finally:
            await model.aclose()

    commands = Commands(schedule, "jupyter hermes jobs", ask, translate)
    return printed(await commands.perform(arguments))


async def _due(schedule: Schedule) -> int:
    """Run due jobs. Print only unusual results, because cron sends all output by mail."""
    odd: list[Run] = []

    def tell(run: Run) -> None:
        if run.state == "done" and not run.missed:
            return
        odd.append(run)
        zones = {job.id: job.zone for job in schedule.jobs()}
        when = local_time(run.due, zones.get(run.job, ""), named=True)
        text = one_line(visible(run.text), 200)
        print(f"job {run.job}, {when}: {run.came_to}: {text}", flush=True)

    await run_due(schedule, tell)
    return FAILED if any(run.state != "done" for run in odd) else OK
