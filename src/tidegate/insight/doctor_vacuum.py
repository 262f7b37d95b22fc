"""Can vacuum keep the job queue small, and if not, who is in its way?"""

from __future__ import annotations

from tidegate.insight.vacuum_remarks import describe
from tidegate.model.check import Check, ok, warn
from tidegate.model.vacuum_horizon import Remark, VacuumHorizon


def check_vacuum(name: str, horizon: VacuumHorizon) -> list[Check]:
    """What holds back vacuum in the control database, and how full of dead rows the queue is."""
    checks = [_check_horizon(f"{name}: vacuum", horizon)]
    if horizon.catalogs_held is not None:
        checks.append(_warn(f"{name}: system catalogs", horizon.catalogs_held))
    if horizon.queue_crowded is not None:
        checks.append(_warn(f"{name}: job queue", horizon.queue_crowded))
    elif horizon.queue is not None:
        rows = f"{horizon.queue.dead:,} dead rows, {horizon.queue.live:,} live ones"
        checks.append(ok(f"{name}: job queue", rows))
    return checks


def _check_horizon(name: str, horizon: VacuumHorizon) -> Check:
    if horizon.held is not None:
        return _warn(name, horizon.held)
    if horizon.grant is not None:
        return warn(
            name,
            "how long others have held it back cannot be told: this role may not see their "
            "transactions",
            horizon.grant,
        )
    if horizon.holders:
        oldest = horizon.holders[0]
        return ok(name, f"not held back for long; the oldest is {describe(oldest).rstrip(',')}")
    return ok(name, "nothing holds it back")


def _warn(name: str, remark: Remark) -> Check:
    return warn(name, remark.found, remark.fix)
