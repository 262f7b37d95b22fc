"""Connection strings are shown without their secrets, whatever is in them."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from tidegate.core.errors import SettingsError
from tidegate.postgres.connection import MALFORMED, check, describe, mask, merge

SECRET = "Hunter2Zebra"
# Anything around a recognisable core, with the characters that confuse parsers made likely.
NOISE = st.text(st.sampled_from("@:/?#&=%'\\ []$aZ0é\t") | st.characters(), max_size=6)
WORDS = st.from_regex(r"[a-z]{1,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("conninfo", "masked"),
    [
        (f"postgresql://ana:{SECRET}@db/shop", "postgresql://ana:***@db/shop"),
        (f"postgres://ana:{SECRET}@db:5433/shop", "postgresql://ana:***@db:5433/shop"),
        (f"postgresql://:{SECRET}@db", "postgresql://:***@db"),
        ("postgresql://ana@db/shop", "postgresql://ana@db/shop"),
        (f"postgresql://db/shop?user=ana&password={SECRET}", "postgresql://ana:***@db/shop"),
        (
            f"postgresql://ana@db/shop?sslmode=require&sslpassword={SECRET}",
            "postgresql://ana@db/shop?sslmode=require&sslpassword=***",
        ),
        ("postgresql://a,b:1/shop", "postgresql://a,b:1/shop"),
        ("postgresql://[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql:///shop?host=/run/pg", "postgresql:///shop?host=/run/pg"),
        (f"host=db password={SECRET} dbname=shop", "host=db password=*** dbname=shop"),
        (f"host=db password='a {SECRET} \\' b'", "host=db password=***"),
        (f"host = db sslpassword = {SECRET}", "host=db sslpassword=***"),
        ("service=shop", "service=shop"),
        ("", ""),
    ],
)
def test_masking_hides_passwords_and_nothing_else(conninfo: str, masked: str) -> None:
    assert sorted(mask(conninfo).split()) == sorted(masked.split())


@pytest.mark.parametrize(
    "conninfo",
    [
        f"postgresql://ana:{SECRET}%zz@db/shop",
        f"postgresql://ana:{SECRET}@[db/shop",
        f"postgresql://ana:x@{SECRET}@db/shop",
        f"postgresql://ana:x/{SECRET}@db/shop",
        f"postgresql://ana:12/{SECRET}@db/shop",
        f"postgresql://ana:{SECRET}",
        f"postgresql://ana:{SECRET}/shop",
        f"host=db password='{SECRET}",
        f"host=db password=x {SECRET}",
        f"host=db {SECRET}=x",
        f"postgresql://db/shop?password=x&{SECRET}",
        f"postgresql://db/shop?pasword={SECRET}",
        f"postgresql://ana:x\0{SECRET}@db/shop",
        f"host=db\0{SECRET}",
        SECRET,
    ],
)
def test_a_malformed_string_is_neither_shown_nor_echoed_in_errors(conninfo: str) -> None:
    assert mask(conninfo) == MALFORMED
    assert describe(conninfo) == MALFORMED
    for use in (check, merge):
        with pytest.raises(SettingsError) as caught:
            use(conninfo)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_connection_string_inside_dbname_is_masked_too() -> None:
    inner = f"dbname='postgresql://ana:{SECRET}@db/shop'"
    assert SECRET not in mask(inner)
    assert SECRET not in describe(inner)


@given(before=NOISE, after=NOISE, user=WORDS, host=WORDS, dbname=WORDS)
def test_no_raw_url_password_survives(
    before: str, after: str, user: str, host: str, dbname: str
) -> None:
    password = before + SECRET + after
    for url in (
        f"postgresql://{user}:{password}@{host}/{dbname}",
        f"postgresql://{user}@{host}/{dbname}?password={password}",
        f" postgres://{host}/{dbname}?sslpassword={password}&user={user}",
    ):
        for shown in (mask(url), describe(url)):
            # A bare & or / can end a password early; then nothing at all may be shown.
            assert SECRET not in shown


@given(
    password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    user=WORDS, host=WORDS, dbname=WORDS,
)  # fmt: skip
def test_an_encoded_password_is_understood_hidden_and_the_rest_kept(
    password: str, user: str, host: str, dbname: str
) -> None:
    url = f"postgresql://{user}:{quote(password, safe='')}@{host}/{dbname}"
    assert check(url)["password"] == password
    assert mask(url) == f"postgresql://{user}:***@{host}/{dbname}"
    assert describe(url) == f"{user}@{host}/{dbname}"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), WORDS)
def test_a_merged_string_keeps_its_password_and_masks_it(noise: str, user: str) -> None:
    password = noise + SECRET
    merged = merge("host=db", password=password, user=user)
    assert conninfo_to_dict(merged)["password"] == password
    assert SECRET not in mask(merged)
    assert describe(merged) == f"{user}@db"


@given(st.text())
def test_masking_and_describing_never_raise(text: str) -> None:
    for conninfo in (text, "postgresql://" + text, "host=" + text):
        mask(conninfo)
        describe(conninfo)


def test_masked_text_is_still_a_connection_string() -> None:
    url = "postgresql://a%40b:x@h1:1,h2:2/my%20db?application_name=a%26b"
    assert conninfo_to_dict(mask(url)) == {**conninfo_to_dict(url), "password": "***"}
    words = r"user='a b' password=x options='-c a=\'b\''"
    assert conninfo_to_dict(mask(words)) == {**conninfo_to_dict(words), "password": "***"}


@pytest.mark.parametrize(
    ("conninfo", "described"),
    [
        ("postgresql://ana:x@db:5433/shop", "ana@db:5433/shop"),
        ("host=db dbname=shop", "db/shop"),
        ("host=/run/pg user=ana", "ana@/run/pg"),
        ("hostaddr=127.0.0.1 port=1", "127.0.0.1:1"),
        ("service=shop", "service=shop"),
        ("service=shop user=ana dbname=x", "service=shop (ana@/x)"),
        ("postgresql://h1:1,h2:2/shop", "h1:1,h2:2/shop"),
        ("", "(the server that libpq finds by default)"),
    ],
)
def test_a_description_is_short(conninfo: str, described: str) -> None:
    assert describe(conninfo) == described


def test_merging_adds_and_replaces_and_leaves_none_alone() -> None:
    merged = merge("postgresql://ana@db/shop", dbname="other", port=5433, sslmode=None)
    assert conninfo_to_dict(merged) == {
        "user": "ana", "host": "db", "dbname": "other", "port": "5433",
    }  # fmt: skip


def test_merging_an_unknown_option_names_it() -> None:
    with pytest.raises(SettingsError, match="no_such_option"):
        merge(f"host=db password={SECRET}", no_such_option="x")


def test_an_unescaped_password_is_explained() -> None:
    with pytest.raises(SettingsError, match="shop has an @") as caught:
        check("postgresql://ana:p@ss@db/shop", "connections.shop")
    assert "%40" in str(caught.value)


def test_an_at_sign_in_a_query_parameter_is_fine_to_connect_with() -> None:
    assert check("postgresql:///shop?user=ana@corp")["user"] == "ana@corp"
