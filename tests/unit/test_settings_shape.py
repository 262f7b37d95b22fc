"""How a sync is shaped: columns, query, checks and statements, and what is refused there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.config import Settings, load_settings
from tidegate.core.errors import SettingsError

SYNC = '[project]\nname = "p"\n[connections]\nshop = "embedded"\n[sync.a]\n'
TABLE = SYNC + 'source = "shop:orders"\ntarget = "shop:raw.orders"\n'
QUERY = SYNC + 'source = "shop"\ntarget = "shop:raw.orders"\n'


def read(folder: Path, text: str) -> Settings:
    (folder / "tidegate.toml").write_text(text, encoding="utf-8")
    return load_settings(folder, environ={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (QUERY, 'sync.a.source is "shop"; expected "connection:schema.table", or a query'),
        (TABLE + 'query = "SELECT 1"', 'beside a query; expected the connection alone, "shop"'),
        (QUERY + 'query = "SELECT 1"\nwhere = "a"', "where is set beside a query"),
        (QUERY + 'query = " ; "', "a piece of SQL"),
        (TABLE + 'columns = ["a"]\nexclude_columns = ["b"]', "and columns are both set"),
        (TABLE + 'before_sql = "COMMIT"', "COMMIT would"),
        (TABLE + 'after_sql = ["ANALYZE a", "/* x */ -- y\\n rollback to x"]', "ROLLBACK would"),
        (TABLE + "before_sql = [1]", "a statement or a list of statements"),
        (TABLE + 'checks = "a > 0"', "a table of names and conditions"),
        (TABLE + "checks = { a = 1 }", "a table of names and conditions"),
        (TABLE + "reject_limit = 2", "a share from 0 to 1"),
        (TABLE + 'reject_limit = "101%"', "a share from 0 to 1"),
        (TABLE + "reject_limit = true", "a share from 0 to 1"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, text)
    assert words in str(raised.value)
    assert "sync.a" in str(raised.value)


def test_shapes_are_read_as_written(tmp_path: Path) -> None:
    sync = read(
        tmp_path,
        TABLE + 'columns = "id"\nwhere = "a;"\nafter_sql = ["ANALYZE a;", "CALL f()"]\n'
        'reject_limit = "2.5%"\nchecks = { a = "a > 0", "b c" = "b" }',
    ).sync["a"]
    assert (sync.columns, sync.where, sync.reject_limit) == (("id",), "a", 0.025)
    assert sync.after_sql == ("ANALYZE a", "CALL f()")
    assert sync.checks == {"a": "a > 0", "b c": "b"}
