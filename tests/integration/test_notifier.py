"""Messages to a webhook and to a command: they arrive, whatever happens on the way."""

from __future__ import annotations

import json
import logging
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from acceptance.processes import WarmProcess
from integration.commands import DONE, FAILED, USAGE
from integration.conftest import MakePlace
from integration.job_store import control_session, request
from integration.queued import OfProject, run_here
from integration.receiver import SECRET, Receiver, receiving
from tidegate.core.units import Backoff
from tidegate.jobs.job import JobRequest, JobStatus
from tidegate.jobs.notifier import Notified, Notifier

NOW = Backoff(0.0, 0.0)


class Told(OfProject):
    """A project that tells people of its jobs."""

    def request(self, name: str = "orders", **options: Any) -> JobRequest:
        return request(name=name, **options)

    def fail(self, **options: Any) -> None:
        self.end(JobStatus.FAILED, "no <rows> & none", **options)

    def notify(self, backoff: Backoff = NOW, **options: Any) -> Notified:
        notifier = Notifier(self.project.context, backoff=backoff, **options)
        return notifier.run_once(self.control)

    def due(self) -> None:
        """The time for the next try has come."""
        self.execute("UPDATE notices SET try_at = now()")

    def waiting(self) -> list[tuple[Any, ...]]:
        return self.execute("SELECT tries, outcome, error FROM notices ORDER BY created_at")


@pytest.fixture(scope="module")
def receivers() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture(scope="module")
def shops(places: MakePlace, receivers: Receiver) -> Iterator[dict[str, Told]]:
    """The same control plane with a webhook, with a command, and with both."""
    webhook, command = {"webhook": receivers.url}, {"command": ["./hook", "$HOME; touch x", "*"]}
    first = places(notify=webhook)
    made = {
        "webhook": first,
        "command": places(beside=first, notify=command),
        "both": places(beside=first, notify=webhook | command),
        "none": places(beside=first, notify={"webhook": " "}),
    }
    with first.open() as project, control_session(project.context.plane) as parts:
        project.context.control_id()
        yield {
            name: Told(place=place, project=place.open(), **parts) for name, place in made.items()
        }


@pytest.fixture
def receiver(receivers: Receiver) -> Receiver:
    receivers.letting_go.clear()
    for kept in (receivers.answers, receivers.messages, receivers.keys, receivers.paths):
        kept.clear()
    return receivers


@pytest.fixture
def shop(shops: dict[str, Told], receiver: Receiver) -> Told:
    shops["webhook"].clean()
    return shops["webhook"]


def script(shop: Told, text: str) -> None:
    path = shop.place.folder / "hook"
    path.write_text(f"#!{sys.executable} -IS\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_failure_arrives_as_slack_takes_it(shop: Told, receiver: Receiver) -> None:
    shop.fail()
    assert shop.notify() == Notified(noticed=1, delivered=1)
    (message,) = receiver.messages
    assert message["text"] == "shop: orders failed: no &lt;rows&gt; &amp; none"
    assert {one["type"] for one in message["blocks"]} == {"section", "context"}
    assert shop.notify() == Notified()
    shop.end(JobStatus.DONE)
    assert shop.notify() == Notified(noticed=1, delivered=1)
    assert receiver.texts[1] == "shop: orders works again, after it had failed once"


@pytest.mark.parametrize("answer", [500, 404, 302, "close", "hang", "drip"])
def test_what_does_not_arrive_is_sent_again_with_the_same_id(
    shop: Told, receiver: Receiver, answer: str | int
) -> None:
    shop.fail()
    receiver.answers[:] = [answer, answer]
    for tries in (1, 2):
        assert shop.notify(webhook_timeout_seconds=0.3).put_off == 1
        ((counted, outcome, error),) = shop.waiting()
        assert (counted, outcome) == (tries, None)
        assert error.startswith("the webhook ")
        shop.due()
    receiver.letting_go.set()
    assert shop.notify().delivered == 1
    assert len(receiver.messages) == 1
    assert len(set(receiver.keys)) == 1
    assert len(receiver.keys) == 3
    assert not [one for one in receiver.paths if "elsewhere" in one]


def test_pauses_grow_and_a_receiver_that_asks_for_patience_gets_it(
    shop: Told, receiver: Receiver
) -> None:
    shop.fail()
    for tries in range(4):
        receiver.answers[:] = [500]
        shop.notify(Backoff(100, 400))
        pause = shop.value("SELECT extract(epoch FROM try_at - now())::int FROM notices")
        longest = min(400, 100 * 2**tries)
        assert longest / 2 - 5 <= pause <= longest
        shop.due()
    receiver.answers[:] = [429]
    shop.notify()
    assert shop.value("SELECT try_at BETWEEN now() AND now() + interval '7 seconds' FROM notices")
    assert shop.notify() == Notified()


def test_a_webhook_that_is_down_is_tried_once_a_look_however_much_waits(
    shop: Told, receiver: Receiver
) -> None:
    for number in range(5):
        shop.fail(name=f"sync{number}")
    receiver.answers[:] = [500] * 5
    assert shop.notify() == Notified(noticed=5, put_off=1)
    assert len(receiver.keys) == 1
    receiver.answers.clear()
    assert shop.notify().delivered == 5


def test_what_has_not_arrived_for_a_day_is_given_up(
    shop: Told, receiver: Receiver, shops: dict[str, Told]
) -> None:
    shop.fail()
    receiver.answers[:] = [500, 500]
    shop.notify()
    # So is what a channel was to tell that is not set any more.
    assert shops["none"].notify().put_off == 1
    assert "is not set any more" in shop.waiting()[0][2]
    shop.execute("UPDATE notices SET created_at = now() - interval '1 day', try_at = now()")
    assert shop.notify().given_up == 1
    assert shop.waiting() == [(3, "given up", "the webhook answered 500")]
    assert shop.notify() == Notified()


def test_a_notifier_killed_after_it_sent_sends_again_and_the_id_tells(
    shop: Told, receiver: Receiver
) -> None:
    shop.fail()
    command = ["tidegate", "sweeper", "--once", "--project", str(shop.place.folder)]
    log = shop.place.folder / "sweeper"
    killed = WarmProcess(command, log, {"TIDEGATE_FAILPOINT": "notice.delivered=kill"})
    assert killed.wait().code == -signal.SIGKILL
    assert len(receiver.messages) == 1
    # Another may be at it, until the lease is over.
    assert shop.notify() == Notified()
    shop.execute("UPDATE notices SET try_at = try_at - interval '2 minutes'")
    done = shop.run("sweeper", "--once", "--json")
    assert (done.code, done.document["notified"]) == (DONE, 1)
    assert len(receiver.keys) == 2
    assert len(set(receiver.keys)) == 1


def test_a_command_gets_the_message_on_its_input_and_in_its_environment(
    shop: Told, shops: dict[str, Told]
) -> None:
    told = shops["command"]
    script(
        told,
        "import json, os, sys\n"
        "found = {key: value for key, value in os.environ.items() if key.startswith('NOTICE_')}\n"
        "json.dump([json.load(sys.stdin), found, sys.argv[1:], os.getcwd()], open('got', 'w'))\n",
    )
    told.fail()
    assert told.notify() == Notified(noticed=1, delivered=1)
    document, environment, arguments, folder = json.loads((told.place.folder / "got").read_text())
    assert document["event"] == environment["NOTICE_EVENT"] == "failure"
    assert document["id"] == environment["NOTICE_ID"]
    assert environment["NOTICE_TEXT"] == "shop: orders failed: no <rows> & none"
    assert arguments == ["$HOME; touch x", "*"]
    assert Path(folder) == told.place.folder


def test_a_command_that_fails_hangs_or_is_not_there_is_run_again(
    shop: Told, shops: dict[str, Told]
) -> None:
    told = shops["command"]
    (told.place.folder / "hook").unlink(missing_ok=True)
    told.fail()
    assert told.notify().put_off == 1
    script(told, "raise SystemExit(3)")
    assert told.notify().put_off == 1
    # What a hanging command has started goes with it.
    script(
        told,
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n",
    )
    assert told.notify(command_timeout_seconds=3).put_off == 1
    assert "did not end within 3 seconds" in told.waiting()[0][2]
    child = int((told.place.folder / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
    script(told, "")
    assert told.notify().delivered == 1


def test_one_channel_that_fails_does_not_stop_the_other(
    shop: Told, receiver: Receiver, shops: dict[str, Told]
) -> None:
    told = shops["both"]
    script(told, "open('called', 'w')")
    told.fail()
    receiver.answers[:] = [500]
    assert told.notify() == Notified(noticed=2, delivered=1, put_off=1)
    assert (told.place.folder / "called").exists()
    assert told.notify() == Notified(delivered=1)


def test_the_address_of_the_webhook_is_in_no_log_error_or_database(
    shop: Told, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    context = shop.project.context
    for answer in (500, "close", "hang", 302):
        shop.fail(name=f"sync{answer}")
        receiver.answers[:] = [answer]
        shop.notify(Backoff(1_000, 1_000), webhook_timeout_seconds=0.3)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{one.getsockname()[1]}"
    notifier = Notifier(context)
    document = {"id": "x", "event": "test", "project": "shop", "text": "t"}
    plain = f"https://127.0.0.1:{receiver.port}"
    for url in (closed, "http://no.such.host.invalid", plain):
        secret = SecretStr(f"{url}/{SECRET}")
        settings = context.settings.notify.model_copy(update={"webhook": secret})
        notifier._settings = settings
        with pytest.raises(Exception, match="the webhook") as caught:
            notifier.send("webhook", document)
        told = "".join(traceback.format_exception(caught.value))
        assert SECRET not in told + repr(settings) + str(settings.model_dump())
    assert SECRET not in caplog.text
    assert SECRET not in repr(context.settings) + str(context.settings.model_dump_json())
    tables = shop.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tidegate_control'::regnamespace"
        " AND relkind = 'r'"
    )
    rows = [shop.execute(f"SELECT t::text FROM {one} t") for (one,) in tables]
    assert SECRET not in str(rows)


def test_a_test_message_by_command(shop: Told, receiver: Receiver, shops: dict[str, Told]) -> None:
    done = shop.run("notify", "test")
    assert (done.code, done.out) == (DONE, "webhook: delivered\n")
    assert receiver.texts == ["shop: this is a test; notices arrive here"]
    receiver.answers[:] = [500]
    done = shop.run("notify", "test", "--json")
    assert done.code == FAILED
    assert done.document["failed"] == {"webhook": "the webhook answered 500"}
    assert SECRET not in done.said
    done = run_here(shops["none"].place, "notify", "test")
    assert done.code == USAGE
    assert "neither webhook nor command" in done.err


def test_a_loop_goes_on_after_the_database_was_away(shop: Told, receiver: Receiver) -> None:
    loop = Notifier(shop.project.context).loop()
    loop.run_once()
    shop.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    loop.run_once()
    shop.fail()
    loop.run_once()
    loop.stop()
    assert len(receiver.messages) == 1
