"""The order in which things that require each other are done."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.tasks.registry import Cycle, build

# Edges lead from a number to lower ones, so that there is no cycle.
ACYCLIC = st.integers(1, 25).flatmap(
    lambda size: st.fixed_dictionaries(
        {
            node: st.lists(st.integers(0, max(0, node - 1)), max_size=4).map(
                lambda found, node=node: [one for one in found if one < node]
            )
            for node in range(size)
        }
    )
)


@given(ACYCLIC)
def test_everything_comes_once_and_after_what_it_requires(edges: dict[int, list[int]]) -> None:
    graph = build(edges, edges.__getitem__)

    assert sorted(graph.order) == sorted(edges)
    place = {node: number for number, node in enumerate(graph.order)}
    assert all(place[one] < place[node] for node in edges for one in edges[node])


@given(ACYCLIC, st.data())
def test_an_edge_back_is_found_and_its_path_told(
    edges: dict[int, list[int]], data: st.DataObject
) -> None:
    high = data.draw(st.sampled_from(sorted(edges)))
    reachable = build([high], edges.__getitem__).order
    low = data.draw(st.sampled_from(reachable))
    looped = {**edges, low: [*edges[low], high]}

    with pytest.raises(Cycle) as found:
        build([high], looped.__getitem__)

    path = found.value.path
    assert path[0] == path[-1]
    assert all(there in looped[here] for here, there in itertools.pairwise(path))


def test_a_chain_may_be_longer_than_the_stack_of_python() -> None:
    graph = build([20_000], lambda node: [node - 1] if node else [])
    assert graph.order == tuple(range(20_001))


def test_only_what_the_roots_need_is_asked_for_and_each_once() -> None:
    edges = {"a": [], "b": ["a"], "c": ["a", "b"], "elsewhere": ["a"]}
    asked: list[str] = []

    def requires(node: str) -> list[str]:
        asked.append(node)
        return edges[node]

    graph = build(["c", "b"], requires)

    assert graph.order == ("a", "b", "c")
    assert sorted(asked) == ["a", "b", "c"]
