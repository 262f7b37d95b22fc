"""Iceberg's procedures for maintenance, as Spark's SQL calls them; every name is quoted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tidegate.lake.catalog import Catalog, backticked, literal
from tidegate.model.maintenance import RewriteDataFiles, RewritePositionDeleteFiles
from tidegate.model.relation import Relation


def expire_snapshots(
    catalog: Catalog, relation: Relation, older_than: datetime, retain_last: int
) -> str:
    return _call(
        catalog,
        relation,
        "expire_snapshots",
        older_than=_timestamp(older_than),
        retain_last=str(int(retain_last)),
    )


def find_orphan_files(catalog: Catalog, relation: Relation, older_than: datetime) -> str:
    """Only told, never removed: what goes is decided here, file by file."""
    return _call(
        catalog,
        relation,
        "remove_orphan_files",
        older_than=_timestamp(older_than),
        dry_run="true",
    )


def rewrite_data_files(
    catalog: Catalog, relation: Relation, options: RewriteDataFiles, *, dangling: bool = False
) -> str:
    """With `dangling`, delete files that have nothing left to delete go as well."""
    given = {"min-input-files": str(options.min_input_files)}
    if options.target_file_bytes is not None:
        given["target-file-size-bytes"] = str(options.target_file_bytes)
    if options.delete_file_threshold:
        given["delete-file-threshold"] = str(options.delete_file_threshold)
    if options.partial_progress:
        given["partial-progress.enabled"] = "true"
    if dangling:
        given["remove-dangling-deletes"] = "true"
    strategy = "sort" if options.sort else "binpack"
    return _call(
        catalog,
        relation,
        "rewrite_data_files",
        strategy=literal(strategy),
        options=_map(given),
    )


def rewrite_position_delete_files(
    catalog: Catalog,
    relation: Relation,
    options: RewritePositionDeleteFiles,
    *,
    everything: bool = False,
) -> str:
    """With `everything`, single files and large ones too: what they delete in vain is left out."""
    given = {"min-input-files": str(options.min_input_files)}
    if everything:
        given["rewrite-all"] = "true"
    return _call(catalog, relation, "rewrite_position_delete_files", options=_map(given))


def rewrite_manifests(catalog: Catalog, relation: Relation) -> str:
    return _call(catalog, relation, "rewrite_manifests")


def _call(catalog: Catalog, relation: Relation, procedure: str, **arguments: str) -> str:
    given = {"table": literal(catalog.procedure_name(relation)), **arguments}
    texts = ", ".join(f"{name} => {value}" for name, value in given.items())
    return f"CALL {backticked(catalog.name)}.system.{procedure}({texts})"


def _map(values: Mapping[str, str]) -> str:
    return f"map({', '.join(literal(word) for pair in values.items() for word in pair)})"


def _timestamp(moment: datetime) -> str:
    """With its zone, whatever that of the session is; Iceberg counts in milliseconds."""
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return f"TIMESTAMP '{text} UTC'"
