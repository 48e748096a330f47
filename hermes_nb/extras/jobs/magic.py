"""The command definition of `%hermes schedule`."""

from __future__ import annotations

from hermes_nb.notebook.commands.table import Command, declared

SCHEDULE = declared(
    Command(
        name="schedule",
        group="Automate",
        about="run a prompt or a notebook at set times, unattended",
        run="hermes_nb.extras.jobs.commands:schedule",
        page="howto/schedule.md",
        examples=(
            'schedule "0 7 * * 1-5" "What is new in data/?"',
            'schedule "every Monday at 9" report.ipynb',
        ),
        values={
            '"WHEN" PROMPT or NOTEBOOK': "run this at the times of a cron line or of words",
            "list": "list the jobs",
            "show ID": "show a job in full",
            "pause ID": "do not run a job until `resume`",
            "resume ID": "run a paused job again at its times",
            "run ID": "run a job now",
            "history [ID]": "list the runs of a job, or of all",
            "remove ID": "delete a job and its history",
            "install": "start due jobs by cron, a systemd timer or jupyter-scheduler",
            "uninstall": "undo install",
            "[--approve MODE]": "ask (default), edits, all or never: what runs without approval",
            "[--model NAME]": "the model for the job",
            "[--timeout S]": "maximum seconds of a run (default: 3600)",
            "[--zone NAME]": "time zone (default: that of this computer)",
            "[--cwd DIRECTORY]": "working directory",
            "[--to ADAPTER:CHAT]": "send the answer to a chat of the gateway",
            "[--yes]": "do not ask before changing anything",
        },
    )
)
