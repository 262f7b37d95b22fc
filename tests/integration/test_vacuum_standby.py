"""A standby that sends feedback holds back vacuum in every database of its primary."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import FAST
from integration.conftest import Database
from integration.holding import fill, kept_by_vacuum, look, snapshot
from integration.standbys import standby_of
from tidegate.model.vacuum_horizon import HolderKind, VacuumHolder
from tidegate.postgres.embedded import EmbeddedServer

SLOT = "standby_slot"
StartStandby = Callable[[str], EmbeddedServer]


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path / "primary", FAST)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(tmp_path)


@pytest.fixture
def start_standby(primary: EmbeddedServer, tmp_path: Path) -> Iterator[StartStandby]:
    """A maker of a standby that reports the oldest snapshot of its own sessions every second."""
    with ExitStack() as stack:

        def start(slot: str) -> EmbeddedServer:
            settings = {
                "primary_slot_name": slot,
                "hot_standby_feedback": "on",
                "wal_receiver_status_interval": "1s",
            }
            return stack.enter_context(standby_of(primary, tmp_path / "standby", settings))

        yield start


def from_outside(control: Database) -> list[VacuumHolder]:
    return [one for one in look(control).holders if one.kind is not HolderKind.SESSION]


def wait_for_feedback(control: Database) -> VacuumHolder:
    """Look until the standby's snapshot has come through and is not the newest any more."""
    until = time.monotonic() + 60
    while not (found := from_outside(control)) or not found[0].transactions:
        assert time.monotonic() < until
        control.execute("SELECT pg_current_xact_id()")
    return found[0]


def test_a_slot_of_a_standby_counts_until_it_is_dropped(
    primary: EmbeddedServer, start_standby: StartStandby
) -> None:
    control = Database(primary.conninfo())
    fill(control)
    control.execute(f"SELECT pg_create_physical_replication_slot('{SLOT}')")
    standby = start_standby(SLOT)
    with snapshot(Database(standby.conninfo("postgres"))):
        used = wait_for_feedback(control)
        assert (used.kind, used.name, used.state) == (HolderKind.SLOT, SLOT, "active")
        assert (used.seconds, used.is_late(0.0)) == (None, False)
        assert kept_by_vacuum(control) > 0
    standby.stop("immediate")
    until = time.monotonic() + 60
    while control.value("SELECT active FROM pg_replication_slots"):
        assert time.monotonic() < until
    horizon = look(control)
    assert horizon.held is not None
    assert horizon.held.found.startswith(f"replication slot '{SLOT}' (inactive) holds back vacuum")
    statement = f"SELECT pg_drop_replication_slot('{SLOT}')"
    assert horizon.held.fix.endswith(f": {statement}")
    control.execute("INSERT INTO t VALUES (1)")
    assert kept_by_vacuum(control) > 0
    control.execute(statement)
    assert from_outside(control) == []
    assert kept_by_vacuum(control) == 0


def test_a_standby_without_a_slot_counts_through_its_connection(
    primary: EmbeddedServer, start_standby: StartStandby
) -> None:
    control = Database(primary.conninfo())
    fill(control)
    standby = start_standby("")
    with snapshot(Database(standby.conninfo("postgres"))):
        holder = wait_for_feedback(control)
        assert (holder.kind, holder.application) == (HolderKind.STANDBY, "reports")
        assert kept_by_vacuum(control) > 0
        assert (holder.is_ours, holder.seconds, holder.is_late(0.0)) == (False, None, False)
