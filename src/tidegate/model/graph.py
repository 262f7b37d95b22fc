"""What has to be done before what: an order without cycles, or the path of the cycle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Cycle(Exception):
    """Something requires itself; `path` begins and ends with it."""

    def __init__(self, path: Sequence[Hashable]) -> None:
        super().__init__(" → ".join(map(str, path)))
        self.path = tuple(path)


@dataclass(frozen=True, slots=True)
class Graph(Generic[Node]):
    """All nodes that some roots need, each after what it requires."""

    order: tuple[Node, ...]
    requires: Mapping[Node, tuple[Node, ...]]

    def needed_by(self, node: Node) -> tuple[Node, ...]:
        """Those that wait for a node, in order."""
        return tuple(one for one in self.order if node in self.requires[one])


def build(roots: Iterable[Node], requires: Callable[[Node], Iterable[Node]]) -> Graph[Node]:
    """Ask every node once what it requires; Cycle names the path.

    >>> build(["c"], {"c": ["b", "a"], "b": ["a"], "a": []}.__getitem__).order
    ('a', 'b', 'c')
    """
    found: dict[Node, tuple[Node, ...]] = {}
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        # By hand instead of by recursion: a chain may be longer than Python's stack.
        path: list[Node] = []
        open_: dict[Node, None] = {}
        pending: list[tuple[Node, bool]] = [(root, False)]
        while pending:
            node, is_left = pending.pop()
            if is_left:
                path.pop()
                del open_[node]
                done.add(node)
                order.append(node)
                continue
            if node in done:
                continue
            if node in open_:
                raise Cycle([*path[path.index(node) :], node])
            if node not in found:
                found[node] = tuple(dict.fromkeys(requires(node)))
            path.append(node)
            open_[node] = None
            pending.append((node, True))
            pending.extend((one, False) for one in reversed(found[node]))
    return Graph(tuple(order), found)
