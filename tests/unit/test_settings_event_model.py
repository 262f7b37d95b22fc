"""The model of events as TOML says it: read whole, or refused with every key that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.admin import scaffold
from tidegate.core.errors import SettingsError
from tidegate.events.model import EventModel, FieldType
from tidegate.events.model_file import query_problem, read_event_model

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "event-model.md"
GOOD = """
[facts]
table = "w.facts"
partition = "at"
hashed = ["at", "user_id"]
[facts.columns]
at = { type = "timestamptz", required = true }
total = { path = "$.order.total", type = "numeric( 18 , 2 )", default = 1.50 }
[dimensions.users]
table = "w.users"
key.user_id = { path = "$.user.id" }
attributes.email = { path = "$.user.email" }
[dimensions.places]
table = "w.places"
id = "place_id"
key.country = {}
key.city = {}
[[views]]
name = "w.mv_days"
unique = ["day"]
query = "SELECT at::date AS day FROM w.facts GROUP BY 1;"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "events.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_event_model(write(folder, text))
    lines = caught.value.message.splitlines()
    assert all(line.startswith("events.toml: ") for line in lines)
    return [line.removeprefix("events.toml: ") for line in lines]


def test_a_model_is_read_as_it_is_written(tmp_path: Path) -> None:
    model = read_event_model(write(tmp_path, GOOD))
    assert str(model.facts) == "w.facts"
    assert [one.name for one in model.columns] == ["at", "total"]
    at, total = model.columns
    assert (str(at.path), at.type, at.required) == ("$.at", FieldType.TIMESTAMPTZ, True)
    assert (str(total.path), total.precision, total.scale) == ("$.order.total", 18, 2)
    assert total.default == "1.50"
    assert [one.fact_column for one in model.dimensions] == ["user_id", "place_id"]
    assert model.views[0].query == "SELECT at::date AS day FROM w.facts GROUP BY 1"


def test_the_model_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = DOCS.read_text().partition("```toml\n")[2].partition("```")[0]
    assert read_event_model(write(tmp_path, text)).views


def test_the_template_is_the_star_that_was_promised(tmp_path: Path) -> None:
    for name, text in scaffold.other_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    model = read_event_model(tmp_path / "events.toml")
    assert str(model.facts) == "warehouse.fact_events"
    assert {str(one.table) for one in model.dimensions} == {
        "warehouse.dim_accounts",
        "warehouse.dim_users",
        "warehouse.dim_geography",
        "warehouse.dim_event_types",
        "warehouse.dim_experiments",
    }
    assert {str(one.name): one.unique for one in model.views} == {
        "analytics.mv_conversion_funnels": ("funnel", "step"),
        "analytics.mv_retention_cohorts": ("cohort_week",),
        "analytics.mv_revenue_summary": ("account_id", "day", "currency"),
        "analytics.mv_experiment_results": ("experiment", "variant"),
    }


@pytest.mark.parametrize(
    ("was", "becomes", "problem"),
    [
        ('partition = "at"', 'partition = "then"', 'facts.partition is "then", which is no column'),
        ('partition = "at"', 'partition = "total"', "which is a numeric; it must be a timestamptz"),
        (", required = true", "", "which is not required; an event without it belongs to no month"),
        ('["at", "user_id"]', '["user_id"]', "which is not in facts.hashed; a unique index"),
        ('["at", "user_id"]', "[]", "facts.hashed is empty"),
        ('["at", "user_id"]', '["at", "email"]', 'facts.hashed has "email", which is no column'),
        ('["at", "user_id"]', '["at", "at"]', 'facts.hashed has "at" twice'),
        ("total = {", "user_id = {", 'the facts would have "user_id" twice'),
        ("total = {", "loaded_in = {", '"loaded_in", a name that Tidegate keeps for itself'),
        ("1.50", '"much"', "facts.columns.total.default is not a numeric but a string"),
        ("1.50", "1.505", "facts.columns.total.default is more than 2 digits after the point"),
        ("default = 1.50", "default = 1, required = true", "is required and has a default"),
        ("default = 1.50", "max_length = 3", "has a max_length, which only a text has"),
        ('id = "place_id"\n', "", "dimensions.places.id is missing"),
        ("key.city = {}\n", "", "dimensions.places.id is not needed"),
        ("key.city = {}", "attributes.country = {}", 'dimensions.places has "country" twice'),
        ("key.city = {}", "key.first_seen_at = {}", '"first_seen_at", a name that Tidegate keeps'),
        ("key.city = {}", "key.email = {}", "with another path or type than elsewhere"),
        ("key.city = {}", 'key.city = { type = "jsonb" }', "is jsonb, which tells no rows apart"),
        ('id = "place_id"', 'id = "email"', '"email" is the id of a dimension and a field'),
        ('"w.places"', '"w.users"', "w.users is named twice"),
        ('"w.facts"', f'"w.{"f" * 56}"', "its partitions need 8 bytes more"),
        ('unique = ["day"]', "unique = []", "view w.mv_days has no unique columns"),
        ("at::date AS day", "now() AS day", "view w.mv_days uses now()"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, was: str, becomes: str, problem: str) -> None:
    assert was in GOOD
    found = refused(tmp_path, GOOD.replace(was, becomes, 1))
    assert any(problem in line for line in found), found


@pytest.mark.parametrize(
    ("was", "becomes", "problem"),
    [
        ("[facts]", "[fact]", 'fact is not a setting; did you mean "facts"?'),
        ('table = "w.facts"\n', "", "facts.table is missing"),
        ('"w.facts"', '"a.b.c"', "facts.table is wrong: 'a.b.c' is not a table name"),
        ("partition", "partitions", 'facts.partitions is not a setting; did you mean "partition"?'),
        ('["at", "user_id"]', '"at"', "facts.hashed is not a list of names"),
        ("numeric( 18 , 2 )", "numeric(2,3)", "expected a numeric such as numeric(18, 2)"),
        (
            "numeric( 18 , 2 )",
            "number",
            '"number", which is not a type here; did you mean "numeric"',
        ),
        ('"$.order.total"', '"order.total"', "facts.columns.total.path is wrong"),
        ('"$.order.total"', "7", "facts.columns.total.path is not text in quotes"),
        ("required = true", 'required = "yes"', "facts.columns.at.required is not true or false"),
        ("default = 1.50", "default = [1]", "facts.columns.total.default is not a text, a number"),
        ("default = 1.50", "max_length = 0", "max_length is not a whole number from 1"),
        ("default = 1.50", "examples = 1", "facts.columns.total.examples is not a list"),
        ("key.country = {}", "key.country = 1", "dimensions.places.key.country is not a table"),
        ("[[views]]", "[views]", "views is not a list"),
        (
            "query = ",
            "file = 'x'\nquery = ",
            'views."w.mv_days" needs a file or a query, and not both',
        ),
        ("query = ", "file = ", "which cannot be read: No such file"),
        ("unique", "uniq", 'views."w.mv_days".uniq is not a setting; did you mean "unique"?'),
        ("[facts]", "[facts", "Expected ']'"),
    ],
)
def test_what_is_written_wrong_is_refused_by_its_key(
    tmp_path: Path, was: str, becomes: str, problem: str
) -> None:
    assert was in GOOD
    (found,) = refused(tmp_path, GOOD.replace(was, becomes, 1))
    assert problem in found


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = GOOD.replace('partition = "at"', 'partition = "then"').replace('["at", ', '["x", ')
    assert len(refused(tmp_path, text)) >= 2


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"events\.toml: there is no such file") as caught:
        read_event_model(tmp_path / "events.toml")
    assert "tidegate init --template events" in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT now()",
        "select NOW ( ) from x",
        "WITH a AS (SELECT CURRENT_DATE) SELECT * FROM a",
        "SELECT localtimestamp",
        "SELECT 'x' || clock_timestamp()",
        "SELECT pg_catalog.now()",
        "SELECT random()",
        "SELECT 1 /* ' */, now() -- '",
    ],
)
def test_a_view_that_changes_by_itself_is_refused(query: str) -> None:
    assert "so that every refresh would rewrite every row" in (query_problem(query) or "")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT now FROM x",
        'SELECT "now", x."current_date" FROM x',
        "SELECT 'now()' -- current_date",
        "SELECT $$now()$$, E'\\'now()' /* now() */ FROM x",
        "  -- first\n WITH a AS (SELECT 1) SELECT * FROM a;\n",
    ],
)
def test_a_view_may_speak_of_such_words(query: str) -> None:
    assert query_problem(query) is None


def test_only_one_select_makes_a_view() -> None:
    assert query_problem("SELECT 1; DROP TABLE x") == "holds more than one statement"
    assert query_problem("DELETE FROM x") == "is not a SELECT"
    assert query_problem("-- nothing") == "is not a SELECT"


def test_fields_are_read_once_though_several_tables_have_them(tmp_path: Path) -> None:
    text = GOOD.replace("key.city = {}", 'key.user_id = { path = "$.user.id" }')
    model: EventModel = read_event_model(write(tmp_path, text))
    names = [one.name for one in model.fields]
    assert names == ["at", "total", "user_id", "email", "country"]
