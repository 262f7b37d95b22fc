"""`/problems`: what each type of problem means, and what to do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from tidegate.api import problem_kinds as kinds
from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.problem_kinds import PROBLEM_KINDS, ProblemKind
from tidegate.api.problems import Problem

router = APIRouter(prefix="/problems", tags=["service"])


class ProblemPage(BaseModel):
    """One type of problem."""

    type: str
    title: str
    status: int
    text: str


class ProblemList(BaseModel):
    """Every type of problem."""

    problems: list[ProblemPage]


def _document(kind: ProblemKind) -> dict[str, object]:
    return {"type": kind.type, "title": kind.title, "status": kind.status, "text": kind.text}


_EXAMPLE = _document(kinds.TABLE_BUSY)


@router.get(
    "",
    summary="Every type of problem",
    response_model=ProblemList,
    **route(None, responses={200: shown("All of them.", {"problems": [_EXAMPLE]})}),
)
async def list_problems() -> Response:
    return answer({"problems": [_document(kind) for kind in PROBLEM_KINDS.values()]})


@router.get(
    "/{name}",
    summary="What one type of problem means",
    response_model=ProblemPage,
    **route(
        None,
        kinds.NOT_FOUND,
        kinds.INVALID,
        responses={200: shown("What it means.", _EXAMPLE)},
    ),
)
async def show_problem(
    name: Annotated[str, Path(max_length=100, description="The end of a problem's type.")],
) -> Response:
    if name not in PROBLEM_KINDS:
        raise Problem(kinds.NOT_FOUND, f"there is no problem {name}", hint="GET /problems")
    return answer(_document(PROBLEM_KINDS[name]))
