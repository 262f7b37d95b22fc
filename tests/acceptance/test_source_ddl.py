"""Whatever the owner of a table does to it: equal in the end, or stopped with the way on.

TIDEGATE_SEED=17 runs one seed alone.
"""

from __future__ import annotations

import pytest

from acceptance.ddl_storm import SETTINGS, SYNCS, Storm
from chaos_seeds import chosen, seeds
from integration.conftest import MakePlace, make_place

__all__ = ["make_place"]


@pytest.mark.chaos
@pytest.mark.parametrize("seed", seeds(range(1, 204)))
def test_no_change_of_a_source_loses_rows_or_keeps_others_waiting(
    make_place: MakePlace, seed: int
) -> None:
    place = make_place(*SYNCS, databases=2, **SETTINGS)
    storm = Storm(place, chosen(seed), commands=4)
    storm.rage()
    storm.calm()
    print(f"seed {seed}: {storm.killed} killed, {dict(storm.table.done)}, {dict(storm.said)}")
