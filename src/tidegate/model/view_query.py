"""What the query of a materialized view may be: one SELECT that gives the same rows every time."""

from __future__ import annotations

import re

_SKIPPED = re.compile(
    r"""--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$[A-Za-z_]*\$).*?\1""",
    re.DOTALL,
)
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\s*\()?")
_CALLED = frozenset(
    [
        "now",
        "clock_timestamp",
        "statement_timestamp",
        "transaction_timestamp",
        "timeofday",
        "random",
        "random_normal",
        "gen_random_uuid",
        "uuidv4",
        "uuidv7",
    ]
)
_SPOKEN = frozenset(
    ["current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"]
)


def query_problem(query: str) -> str | None:
    """Why a view cannot have this query, or None."""
    plain = _SKIPPED.sub(" '' ", query).strip()
    words = [(word.lower(), bool(call)) for word, call in _WORD.findall(plain)]
    if ";" in plain.rstrip("; \n"):
        return "holds more than one statement"
    if not words or words[0][0] not in ("select", "with"):
        return "is not a SELECT"
    for word, is_call in words:
        if word in _SPOKEN or (word in _CALLED and is_call):
            shown = f"{word}()" if word in _CALLED else word
            return (
                f"uses {shown}, so that every refresh would rewrite every row; "
                "mv_refresh_log says when it was refreshed"
            )
    return None
