"""What waits in a sync's slot while its source and target are compared.

The target's snapshot is the older one, and its watermark says which changes are in it. All that is
committed from there up to the source's snapshot waits in the slot: the keys that it touches differ
for that reason, and are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from psycopg import sql

from tidegate.errors import BusyError
from tidegate.model.lsn import lsn_value
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.cdc_source import CdcSource
from tidegate.pipeline.compare import LEFT_OUT
from tidegate.pipeline.context import Context
from tidegate.pipeline.sides import CHANGED, LeftOut
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import from_text
from tidegate.sources.changed_keys import Emptied, changed_keys
from tidegate.sources.peeking import Peek
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.slots import flushed_position


class Moved(Exception):
    """The slot went on behind the target's snapshot: what waited then cannot be known any more."""


def send_waiting(
    context: Context,
    sync: Sync,
    source: PostgresSource,
    target: Connection,
    watermark: Watermark,
    kinds: Mapping[str, str],
) -> LeftOut:
    """Put the keys that waiting changes touch into the target's session.

    To be called when the source's snapshot has been taken. `kinds` are the types in which keys are
    compared.
    """
    assert watermark.value is not None
    with context.databases.connect_source(sync.source.connection) as session:
        changes = CdcSource.of(context, sync, source, session)
        log = changes.log
        upto = flushed_position(session)
        with log.slot.held(lambda: None):
            state = log.slot.look()
            if (
                state is not None
                and state.confirmed is not None
                and lsn_value(state.confirmed) > lsn_value(watermark.value)
            ):
                raise Moved
            changes.check(watermark)
            peek = Peek(session, log.slot.name, log.publication.name, upto)
            with closing(iter(peek)) as messages:
                keys = changed_keys(messages, log.slot.name, source.table.relation, source.key)
                try:
                    with (
                        target.cursor() as cursor,
                        cursor.copy(sql.SQL("COPY {} (v) FROM STDIN").format(CHANGED)) as copy,
                    ):
                        for key in keys:
                            copy.write_row((list(key),))
                except Emptied:
                    raise BusyError(
                        f"sync {sync.name}: its source was emptied by TRUNCATE, and that is not "
                        "loaded yet: there is nothing to compare",
                        f"tidegate run {sync.name}; then verify again",
                    ) from None
    values = [
        from_text(sql.SQL("v[{}]").format(sql.Literal(place)), kinds[name])
        for place, name in enumerate(source.key, 1)
    ]
    sent = target.execute(
        sql.SQL("INSERT INTO {} SELECT DISTINCT ROW({})::text FROM {}").format(
            LEFT_OUT, sql.SQL(", ").join(values), CHANGED
        )
    )
    return LeftOut(sent.rowcount, 0)


def waits(
    context: Context, sync: Sync, source: PostgresSource, key: Mapping[str, str | None]
) -> bool:
    """Whether a change of the row with this key, as the source prints it, waits in the slot."""
    wanted = tuple(key[name] for name in source.key)
    with context.databases.connect_source(sync.source.connection) as session:
        log = CdcSource.of(context, sync, source, session).log
        upto = flushed_position(session)
        with log.slot.held(lambda: None):
            peek = Peek(session, log.slot.name, log.publication.name, upto)
            with closing(iter(peek)) as messages:
                keys = changed_keys(messages, log.slot.name, source.table.relation, source.key)
                try:
                    return any(one == wanted for one in keys)
                except Emptied:
                    return True
