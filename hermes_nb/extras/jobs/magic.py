"""The command definition of `%hermes schedule`."""

from __future__ import annotations

from hermes_nb.notebook.commands.table import Command

SCHEDULE = Command(
    usage=(
        '["CRON or TIME" PROMPT or NOTEBOOK, list, show, pause, resume, run, history or remove '
        "[ID], install, uninstall] [--approve MODE] [--model NAME] [--timeout S] [--zone NAME] "
        "[--cwd DIRECTORY] [--to ADAPTER:CHAT] [--yes]"
    ),
    about="prompts and notebooks that run by the clock, with nobody there",
    run="hermes_nb.extras.jobs.commands:schedule",
    words=("list", "show", "pause", "resume", "run", "history", "remove", "install", "uninstall"),
)
