"""Whatever is done to a table of a lake, and whenever it is loaded: the target follows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.conftest import MakePlace
from integration.lake_sources import KEYED, Lake, open_lake
from tidegate.spark.session import SparkSessions

KEYS = st.integers(1, 6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), KEYS),
        st.tuples(st.just("upsert"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("clear"), KEYS),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("copy-on-write"), st.just(0)),
        st.tuples(st.just("run"), st.just(0)),
    ),
    min_size=4,
    max_size=9,
)


class Model:
    """What the table holds, kept beside it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.rows: dict[int, str] = {}
        self.count = 0

    def start(self) -> None:
        """A table of its own for each example; the target keeps the rows of the last one."""
        self.lake.sql("DROP TABLE IF EXISTS T")
        self.lake.create()
        self.rows = {}
        self.lake.insert(1, 2, 3, status="first")
        self.rows = dict.fromkeys((1, 2, 3), "first")
        self.lake.run(full_refresh=True)
        self.check()

    def do(self, operation: str, key: int) -> None:
        self.count += 1
        if operation == "upsert":
            status = f"s{self.count}"
            self.rows[key] = status
            self.lake.sql(
                f"MERGE INTO T t USING (SELECT {key} AS id, '{status}' AS status) s ON t.id = s.id"
                " WHEN MATCHED THEN UPDATE SET status = s.status"
                " WHEN NOT MATCHED THEN INSERT (id, status) VALUES (s.id, s.status)"
            )
        elif operation in ("delete", "clear"):
            gone = [one for one in self.rows if one == key or operation == "clear"]
            for one in gone:
                del self.rows[one]
            self.lake.sql(f"DELETE FROM T WHERE {key if operation == 'delete' else 'id'} = id")
        elif operation == "compact":
            self.lake.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        elif operation == "copy-on-write":
            names = ("delete", "update", "merge")
            given = ", ".join(f"'write.{one}.mode' = 'copy-on-write'" for one in names)
            self.lake.sql(f"ALTER TABLE T SET TBLPROPERTIES ({given})")
        else:
            self.run()

    def run(self) -> None:
        self.lake.run()
        self.check()

    def check(self) -> None:
        assert dict(self.lake.target("id, status")) == self.rows
        assert len(self.lake.target("id")) == len(self.rows)
        assert self.lake.project.watermark("orders").value == str(self.lake.table.main)


@pytest.fixture
def model(make_place: MakePlace, warm_spark: SparkSessions) -> Iterator[Model]:
    with open_lake(make_place, warm_spark, {**KEYED, "batch_rows": 2}) as lake:
        yield Model(lake)


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(operations=OPERATIONS)
def test_the_target_is_what_the_table_is(model: Model, operations: list[tuple[str, int]]) -> None:
    model.start()
    for operation, key in operations:
        model.do(operation, key)
    model.run()
