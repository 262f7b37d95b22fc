"""Luigi's identities: what it calls one run of a task in its marker table."""

from __future__ import annotations

import hashlib
import json
import re

_SHOWN_PARAMETERS = 3
_SHOWN_CHARACTERS = 16
_SHOWN_DIGEST = 10


def luigi_id(family: str, /, **parameters: str) -> str:
    """The task_id that Luigi gives a class with parameters, each as Luigi writes it.

    >>> luigi_id("Revenue", day="2026-11-01")
    'Revenue_2026_11_01_bacb573612'
    """
    written = json.dumps(parameters, separators=(",", ":"), sort_keys=True)
    digest = hashlib.md5(written.encode(), usedforsecurity=False).hexdigest()
    first = [parameters[name] for name in sorted(parameters)[:_SHOWN_PARAMETERS]]
    shown = "_".join(text[:_SHOWN_CHARACTERS] for text in first)
    return f"{family}_{re.sub(r'[^A-Za-z0-9_]', '_', shown)}_{digest[:_SHOWN_DIGEST]}"
