"""How much can flow through a network of pipes from one place to another: Dinic's algorithm.

Source: Dinic 1970, "Algorithm for Solution of a Problem of Maximum Flow in Networks with Power
Estimation". Distances from the source grow with every round, so rounds come to an end whatever the
capacities are.
"""

from __future__ import annotations

# Less than this is rounding and no flow.
_NOTHING = 1e-12


class Network:
    """Pipes between places that are numbers from 0.

    Attributes:
        n_places: How many places there are.
    """

    def __init__(self, n_places: int) -> None:
        self.n_places = n_places
        self._pipes: list[list[int]] = [[] for _ in range(n_places)]
        self._ends: list[int] = []
        self._capacity: list[float] = []

    def connect(self, start: int, end: int, capacity: float) -> None:
        """Lay a pipe; every second one is its way back, which begins empty."""
        for here, there, size in ((start, end, capacity), (end, start, 0.0)):
            self._pipes[here].append(len(self._ends))
            self._ends.append(there)
            self._capacity.append(size)

    def maximum_flow(self, source: int, sink: int) -> float:
        """The most that can flow from one place to another; the network stays as it is."""
        left, total = self._capacity.copy(), 0.0
        while True:
            distance = self._distances(source, left)
            if distance[sink] < 0:
                return total
            total += self._blocking_flow(source, sink, left, distance)

    def _distances(self, source: int, left: list[float]) -> list[int]:
        """Pipes from the source to each place along those that are not full; -1 for none."""
        distance = [-1] * self.n_places
        distance[source], waiting = 0, [source]
        for here in waiting:
            for pipe in self._pipes[here]:
                there = self._ends[pipe]
                if distance[there] < 0 and left[pipe] > _NOTHING:
                    distance[there] = distance[here] + 1
                    waiting.append(there)
        return distance

    def _blocking_flow(
        self, source: int, sink: int, left: list[float], distance: list[int]
    ) -> float:
        """Fill shortest ways until each has a full pipe; what led nowhere is not tried again."""
        way: list[int] = []
        tried, here, total = [0] * self.n_places, source, 0.0
        while True:
            if here == sink:
                filled = min(left[pipe] for pipe in way)
                for pipe in way:
                    left[pipe] -= filled
                    left[pipe ^ 1] += filled
                total, way, here = total + filled, [], source
            for pipe in self._pipes[here][tried[here] :]:
                if left[pipe] > _NOTHING and distance[self._ends[pipe]] == distance[here] + 1:
                    way.append(pipe)
                    here = self._ends[pipe]
                    break
                tried[here] += 1
            else:
                if not way:
                    return total
                back = way.pop()
                here = self._ends[back ^ 1]
                tried[here] += 1
