"""The same load with dlt; run by the Python of its own environment, prints seconds as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time

import dlt
from dlt.destinations import postgres
from dlt.sources.sql_database import sql_table

# Of the backends, file formats and strategies that were tried on this table, the fastest.
SETTINGS = {
    "backend": "connectorx",
    "loader_file_format": "parquet",
    "merge_strategy": "upsert",
    "dlt": dlt.__version__,
}


def main() -> None:
    """Addresses come as the first line of standard input; each further line asks for a load."""
    source, target, dataset = json.loads(sys.stdin.readline())
    print(json.dumps(SETTINGS), flush=True)
    folder = tempfile.mkdtemp(prefix="dlt-")
    pipeline = dlt.pipeline(
        dataset,
        destination=postgres(target),
        dataset_name=dataset,
        pipelines_dir=folder,
    )
    for _ in sys.stdin:
        table = sql_table(
            credentials=source,
            table="orders",
            schema="public",
            backend=SETTINGS["backend"],
            backend_kwargs={"return_type": "arrow"},
            incremental=dlt.sources.incremental("updated_at"),
            chunk_size=100_000,
        )
        table.apply_hints(
            primary_key="id",
            write_disposition={
                "disposition": "merge",
                "strategy": SETTINGS["merge_strategy"],
            },
        )
        started = time.perf_counter()
        pipeline.run(table, loader_file_format=SETTINGS["loader_file_format"])
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
