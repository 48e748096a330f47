"""A JupyterLab server with jupyter-scheduler runs what is scheduled, each time once."""

from __future__ import annotations

import nbformat
import pytest
from hermes_nb.cli.main import main
from hermes_nb.extras.jobs.schedule import Schedule

from tests.e2e.harness import Server
from tests.environments import environment
from tests.loopback import Loopback, Reply, pause, says
from tests.patience import until

SYSTEM = "jupyter-scheduler"
MINUTELY, YEARLY = "* * * * *", "0 0 1 1 *"


@pytest.fixture
def answering(tmp_path):
    """A model that answers, set in the home of the server that runs the jobs."""
    with Loopback(says("Two new files.")) as model:
        yield model


@pytest.fixture
def lab(answering, tmp_path, monkeypatch):
    """A server whose home is this process's too."""
    python = environment(SYSTEM, "jupyterlab") / "bin" / "python"
    running = Server("lab", tmp_path / "lab", str(python))
    monkeypatch.setenv("HERMES_HOME", str(running.folder / "home"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(running.folder / "jupyter_runtime_dir"))
    settings = f"hermes_nb: {{base_url: '{answering.url}', model: loopback-model}}\n"
    (running.folder / "home" / "config.yaml").write_text(settings, "utf-8")
    yield running
    running.close()


@pytest.fixture
def schedule(lab):
    found = Schedule(lab.folder / "home")
    yield found
    found.close()


def definitions(lab):
    return lab.request("/scheduler/job_definitions")["job_definitions"]


def active(lab):
    """Return whether definitions are at work, by the number of their job."""
    return {int(each["name"].split()[1][:-1]): each["active"] for each in definitions(lab)}


def looks(lab):
    return lab.request("/scheduler/jobs")["jobs"]


def test_jobs_run_by_the_server_and_each_time_once(lab, schedule, answering, capsys):
    assert main(["jobs", MINUTELY, "What's new?", "--zone", "Europe/Berlin"]) == 0
    assert "Due jobs have not been run" in capsys.readouterr().out
    assert main(["jobs", "install", SYSTEM]) == 1
    said = capsys.readouterr().err
    assert "no one can confirm this here" in said and '"jobs", *words' in said
    assert definitions(lab) == []
    assert main(["jobs", "install", SYSTEM, "--yes"]) == 0
    (mine,) = definitions(lab)
    assert (mine["schedule"], mine["timezone"]) == (MINUTELY, "Europe/Berlin")
    assert mine["name"] == "Hermes 1: What's new?"
    assert list(lab.root.iterdir()) == [], "the server has a copy"

    capsys.readouterr()
    assert main(["jobs", YEARLY, "hello"]) == 0
    assert "Due jobs have not been run" not in capsys.readouterr().out
    assert active(lab) == {1: True, 2: True}
    for word in ("pause", "resume"):
        assert main(["jobs", word, "1"]) == 0
        assert active(lab) == {1: word == "resume", 2: True}

    assert until(schedule.runs, 100)
    assert main(["jobs", "run"]) == 0, "who else looks finds nothing to do"
    assert main(["jobs", "pause", "1"]) == 0
    assert until(lambda: [run.state for run in schedule.runs()] == ["done"])
    assert until(lambda: [job["status"] for job in looks(lab)] == ["COMPLETED"])
    assert schedule.runs()[0].text == "Two new files." and len(answering.bodies) == 1
    (file,) = (lab.folder / "jupyter_data_dir").glob("scheduler_staging_area/*/*-*-*-*-*.ipynb")
    (cell,) = nbformat.read(file, as_version=4).cells
    assert "Two new files." in "".join(output.text for output in cell.outputs)

    assert main(["jobs", "remove", "2"]) == 0
    assert active(lab) == {1: False}
    assert main(["jobs", "uninstall", "--yes"]) == 0
    assert definitions(lab) == []
    assert main(["jobs", "resume", "1"]) == 0
    assert definitions(lab) == []


def test_what_is_paused_in_jupyterlab_stays_so_until_it_is_to_go_on(lab, schedule):
    for word in ("hello", "again"):
        assert main(["jobs", YEARLY, word]) == 0
    assert main(["jobs", "install", SYSTEM, "--yes"]) == 0
    for each in definitions(lab):
        path = f"/scheduler/job_definitions/{each['job_definition_id']}"
        lab.request(path, "PATCH", {"active": False})
    assert main(["jobs", "resume", "1"]) == 0
    assert active(lab) == {1: True, 2: False}
    assert main(["jobs", "install", SYSTEM]) == 0
    assert active(lab) == {1: True, 2: True}


def test_removing_a_job_does_not_kill_it(lab, schedule, answering):
    answering.replies = [Reply([pause(8), *says("Slow.").steps])]
    assert main(["jobs", MINUTELY, "take your time"]) == 0
    assert main(["jobs", "install", SYSTEM, "--yes"]) == 0
    assert until(lambda: answering.bodies, 100)
    assert main(["jobs", "uninstall", "--yes"]) == 0
    assert active(lab) == {1: False}
    assert until(lambda: [run.state for run in schedule.runs()] == ["done"])


def test_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    assert main(["jobs", "install", SYSTEM, "--yes"]) == 1
    told = capsys.readouterr().err
    assert "no Jupyter server with jupyter-scheduler: you have no running Jupyter server" in told
