"""`[maintenance]`: its defaults are those of the rules, and what is nearer to a table wins."""

from __future__ import annotations

from tidegate.config.maintenance import MaintenanceSettings
from tidegate.core.relation import Relation
from tidegate.core.table_actions import Action, Policy

ORDERS = Relation("raw", "orders")


def test_without_a_word_the_rules_defaults_hold() -> None:
    assert MaintenanceSettings().policy_of("lake", ORDERS) == Policy()


def test_a_table_wins_over_its_namespace_and_that_over_its_catalog() -> None:
    settings = MaintenanceSettings.model_validate(
        {
            "thresholds": {"small_files": 1, "snapshots": 1},
            "for": {
                "lake": {"thresholds": {"small_files": 2, "manifests": 2}},
                "lake:raw": {"thresholds": {"small_files": 3}},
                "lake:raw.orders": {
                    "thresholds": {"small_files": 4},
                    "rewrite_manifests": {"enabled": False},
                },
            },
        }
    )
    found = settings.policy_of("lake", ORDERS)
    thresholds = found.thresholds
    assert (thresholds.small_files, thresholds.manifests, thresholds.snapshots) == (4, 2, 1)
    assert found.disabled == {Action.REWRITE_MANIFESTS}
    beside = settings.policy_of("lake", Relation("raw", "items"))
    assert (beside.thresholds.small_files, beside.disabled) == (3, frozenset())
    elsewhere = settings.policy_of("other", ORDERS)
    assert elsewhere.thresholds.small_files == 1
