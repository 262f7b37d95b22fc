"""Messages to a webhook and to a command: they arrive, whatever happens on the way."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from integration.commands import DONE, FAILED, USAGE, tidegate
from integration.conftest import MakePlace, Place
from integration.job_store import request
from integration.receiver import SECRET, Receiver, receiving
from tidegate.control.jobs import Jobs
from tidegate.model.backoff import Backoff
from tidegate.model.job import JobStatus
from tidegate.pipeline.context import Context
from tidegate.runtime.notifier import Notified, Notifier

NOW = Backoff(0.0, 0.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as opened:
        yield opened


@pytest.fixture
def place(make_place: MakePlace, receiver: Receiver) -> Place:
    return make_place(databases=3, notify={"webhook": receiver.url})


def end(place: Place, status: JobStatus = JobStatus.FAILED, **options: Any) -> None:
    """A job that ends, as a worker would have it."""
    context = place.open().context
    context.control_id()
    jobs = Jobs(context.plane)
    with context.plane.connect() as control:
        job_id = jobs.submit(control, request(**options), "test").job_id
        assert job_id is not None
        claim = jobs.claim(control, "worker", job_id, lease_seconds=60)
        assert claim is not None
        error = "no <rows> & none" if status is JobStatus.FAILED else None
        assert jobs.finish(control, claim, status, actor="test", error=error)


def notify(place: Place, backoff: Backoff = NOW, **options: Any) -> Notified:
    context: Context = place.open().context
    with context.plane.connect() as control:
        return Notifier(context, backoff=backoff, **options).run_once(control)


def waiting(place: Place) -> list[tuple[Any, ...]]:
    return place.control.execute(
        "SELECT tries, outcome, error FROM tidegate_control.notices ORDER BY created_at"
    )


def test_a_failure_arrives_as_slack_takes_it(place: Place, receiver: Receiver) -> None:
    end(place)
    assert notify(place) == Notified(noticed=1, delivered=1)
    (message,) = receiver.messages
    assert message["text"] == "shop: orders failed: no &lt;rows&gt; &amp; none"
    assert {one["type"] for one in message["blocks"]} == {"section", "context"}
    assert notify(place) == Notified()
    end(place, JobStatus.DONE)
    assert notify(place) == Notified(noticed=1, delivered=1)
    assert receiver.texts[1] == "shop: orders works again, after it had failed once"


@pytest.mark.parametrize("answer", [500, 429, 404, 302, "close", "hang", "drip"])
def test_what_does_not_arrive_is_sent_again_with_the_same_id(
    place: Place, receiver: Receiver, answer: str | int
) -> None:
    end(place)
    receiver.answers[:] = [answer, answer]
    for tries in (1, 2):
        assert notify(place, webhook_timeout_seconds=0.5).put_off == 1
        ((counted, outcome, error),) = waiting(place)
        assert (counted, outcome) == (tries, None)
        assert error.startswith("the webhook ")
        place.control.execute("UPDATE tidegate_control.notices SET try_at = now()")
    receiver.letting_go.set()
    assert notify(place).delivered == 1
    assert len(receiver.messages) == 1
    assert len(set(receiver.keys)) == 1
    assert len(receiver.keys) == 3
    assert not [one for one in receiver.paths if "elsewhere" in one]


def test_a_receiver_that_asks_for_patience_gets_it(place: Place, receiver: Receiver) -> None:
    end(place)
    receiver.answers[:] = [429]
    notify(place)
    assert place.control.value(
        "SELECT try_at BETWEEN now() AND now() + interval '7 seconds' FROM tidegate_control.notices"
    )
    assert notify(place) == Notified()


def test_pauses_grow(place: Place, receiver: Receiver) -> None:
    end(place)
    pauses = []
    for _ in range(4):
        receiver.answers[:] = [500]
        notify(place, Backoff(100, 1_000))
        pauses.append(
            place.control.value(
                "SELECT extract(epoch FROM try_at - now())::int FROM tidegate_control.notices"
            )
        )
        place.control.execute("UPDATE tidegate_control.notices SET try_at = now()")
    for tries, pause in enumerate(pauses):
        longest = min(1_000, 100 * 2**tries)
        assert longest / 2 - 5 <= pause <= longest


def test_a_webhook_that_is_down_is_tried_once_a_look_however_much_waits(
    place: Place, receiver: Receiver
) -> None:
    for number in range(5):
        end(place, name=f"sync{number}")
    receiver.answers[:] = [500] * 5
    assert notify(place) == Notified(noticed=5, put_off=1)
    assert len(receiver.keys) == 1
    receiver.answers.clear()
    assert notify(place).delivered == 5


def test_what_has_not_arrived_for_a_day_is_given_up(place: Place, receiver: Receiver) -> None:
    end(place)
    receiver.answers[:] = [500, 500]
    notify(place)
    place.control.execute(
        "UPDATE tidegate_control.notices SET created_at = now() - interval '1 day', try_at = now()"
    )
    assert notify(place).given_up == 1
    assert waiting(place) == [(2, "given up", "the webhook answered 500")]
    assert notify(place) == Notified()


def test_a_notifier_killed_after_it_sent_sends_again_and_the_id_tells(
    place: Place, receiver: Receiver
) -> None:
    end(place)
    killed = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "sweeper", "--once"],
        cwd=place.folder,
        env={**os.environ, "TIDEGATE_FAILPOINT": "notice.delivered=kill"},
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(receiver.messages) == 1
    # Another may be at it, until the lease is over.
    assert notify(place) == Notified()
    place.control.execute(
        "UPDATE tidegate_control.notices SET try_at = try_at - interval '2 minutes'"
    )
    assert notify(place).delivered == 1
    assert len(receiver.keys) == 2
    assert len(set(receiver.keys)) == 1


def test_a_sweeper_tells_people(place: Place, receiver: Receiver) -> None:
    end(place)
    done = tidegate(place.folder, "sweeper", "--once", "--json")
    assert (done.code, done.document["notified"]) == (DONE, 1)
    assert len(receiver.messages) == 1


def script(folder: Path, text: str) -> str:
    path = folder / "hook"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_gets_the_message_on_its_input_and_in_its_environment(
    make_place: MakePlace, tmp_path: Path
) -> None:
    hook = script(
        tmp_path,
        "import json, os, sys\n"
        "found = {key: value for key, value in os.environ.items() if key.startswith('NOTICE_')}\n"
        "json.dump([json.load(sys.stdin), found, sys.argv[1:], os.getcwd()], open('got', 'w'))\n",
    )
    place = make_place(databases=3, notify={"command": [hook, "$HOME; touch x", "*"]})
    end(place)
    assert notify(place) == Notified(noticed=1, delivered=1)
    document, environment, arguments, folder = json.loads((place.folder / "got").read_text())
    assert document["event"] == environment["NOTICE_EVENT"] == "failure"
    assert document["id"] == environment["NOTICE_ID"]
    assert environment["NOTICE_TEXT"] == "shop: orders failed: no <rows> & none"
    assert arguments == ["$HOME; touch x", "*"]
    assert Path(folder) == place.folder


def test_a_command_that_fails_hangs_or_is_not_there_is_run_again(
    make_place: MakePlace, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    place = make_place(databases=3, notify={"command": [str(hook)]})
    end(place)
    assert notify(place).put_off == 1
    script(tmp_path, "raise SystemExit(3)")
    assert notify(place).put_off == 1
    # What a hanging command has started goes with it.
    script(
        tmp_path,
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n",
    )
    assert notify(place, command_timeout_seconds=3).put_off == 1
    assert "did not end within 3 seconds" in waiting(place)[0][2]
    child = int((place.folder / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
    script(tmp_path, "")
    assert notify(place).delivered == 1


def test_one_channel_that_fails_does_not_stop_the_other(
    make_place: MakePlace, receiver: Receiver, tmp_path: Path
) -> None:
    hook = script(tmp_path, "open('called', 'w')")
    place = make_place(databases=3, notify={"webhook": receiver.url, "command": [hook]})
    end(place)
    receiver.answers[:] = [500]
    assert notify(place) == Notified(noticed=2, delivered=1, put_off=1)
    assert (place.folder / "called").exists()
    assert notify(place) == Notified(delivered=1)


def test_a_channel_that_is_not_set_any_more_is_given_up_in_the_end(
    make_place: MakePlace, receiver: Receiver
) -> None:
    place = make_place(databases=3, notify={"webhook": receiver.url})
    end(place)
    receiver.answers[:] = [500]
    notify(place)
    toml = place.folder / "tidegate.toml"
    toml.write_text(toml.read_text().replace(receiver.url, " "))
    assert notify(place).put_off == 1
    assert "is not set any more" in waiting(place)[0][2]


def test_the_address_of_the_webhook_is_in_no_log_error_or_database(
    place: Place, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    context = place.open().context
    for answer in (500, "close", "hang", 302):
        end(place, name=f"sync{answer}")
        receiver.answers[:] = [answer]
        notify(place, Backoff(1_000, 1_000), webhook_timeout_seconds=0.3)
    refused = make_closed_port(receiver)
    notifier = Notifier(context)
    document = {"id": "x", "event": "test", "project": "shop", "text": "t"}
    unknown, plain = "http://no.such.host.invalid", f"https://127.0.0.1:{receiver.port}"
    for url in (refused, f"{unknown}/{SECRET}", f"{plain}/{SECRET}"):
        settings = context.settings.notify.model_copy(update={"webhook": secret(url)})
        notifier._settings = settings
        with pytest.raises(Exception, match="the webhook") as caught:
            notifier.send("webhook", document)
        told = "".join(traceback.format_exception(caught.value))
        assert SECRET not in told + repr(settings) + str(settings.model_dump())
    assert SECRET not in caplog.text
    assert SECRET not in repr(context.settings) + str(context.settings.model_dump_json())
    assert SECRET not in str(everything(place))


def secret(url: str) -> Any:
    from pydantic import SecretStr

    return SecretStr(url)


def make_closed_port(receiver: Receiver) -> str:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}/{SECRET}"


def everything(place: Place) -> list[Any]:
    with psycopg.connect(place.control.conninfo) as session:
        session.execute("SET search_path = tidegate_control")
        tables = session.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tidegate_control'::regnamespace"
            " AND relkind = 'r'"
        ).fetchall()
        return [session.execute(f"SELECT t::text FROM {one} t").fetchall() for (one,) in tables]


def test_a_test_message_by_command(place: Place, receiver: Receiver) -> None:
    done = tidegate(place.folder, "notify", "test")
    assert (done.code, done.out) == (DONE, "webhook: delivered\n")
    assert receiver.texts == ["shop: this is a test; notices arrive here"]
    receiver.answers[:] = [500]
    done = tidegate(place.folder, "notify", "test", "--json")
    assert done.code == FAILED
    assert done.document["failed"] == {"webhook": "the webhook answered 500"}
    assert SECRET not in done.said


def test_a_test_message_needs_somebody_to_go_to(make_place: MakePlace) -> None:
    done = tidegate(make_place(databases=3).folder, "notify", "test")
    assert done.code == USAGE
    assert "neither webhook nor command" in done.err


def test_a_loop_goes_on_after_the_database_was_away(place: Place, receiver: Receiver) -> None:
    project = place.open()
    project.context.control_id()
    loop = Notifier(project.context).loop()
    loop.run_once()
    place.control.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    loop.run_once()
    end(place)
    loop.run_once()
    loop.stop()
    assert len(receiver.messages) == 1
