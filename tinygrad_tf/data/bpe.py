"""Byte-pair encoding as arithmetic on arrays: learning merges, and applying them.

Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), algorithm 1, on bytes.
All pieces lie in one array, chained by `after` and `before`; a merge is done at all its places at once. Work is
spent only where something changes, so a megabyte takes about a second.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Pair = tuple[int, int]

_SHIFT = 32  # a pair (a, b) is the one number a << 32 | b, whose order is the order of tuples
_END = -1


def pair_key(a: int, b: int) -> int:
    """The pair as one number, ordered as tuples are."""
    return a << _SHIFT | b


class Chain:
    """The tokens of many pieces, each linked to its neighbours within its piece; every token is a byte at first.

    An edge is two neighbouring tokens, named by the position of the left one.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        pieces = list(pieces)
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        self.tokens: Ints = np.frombuffer(b"".join(pieces), dtype=np.uint8).astype(np.int64)
        n = len(self.tokens)
        # One extra place at the end: what `after[_END]` and `before[_END]` touch.
        self.after: Ints = np.arange(1, n + 2)
        self.before: Ints = np.arange(-1, n)
        self.piece: Ints = np.repeat(np.arange(len(pieces)), lengths)
        ends = np.cumsum(lengths)[lengths > 0]
        self.after[ends - 1] = _END
        self.before[ends] = _END
        self.after[_END] = self.before[_END] = _END
        self.alive = np.ones(n, dtype=bool)

    def edges(self) -> Ints:
        """The positions of all edges, in order."""
        return np.flatnonzero(self.alive & (self.after[:-1] != _END))

    def keys(self, edges: Ints) -> Ints:
        """The pair at each edge, as one number."""
        keys: Ints = self.tokens[edges] << _SHIFT | self.tokens[self.after[edges]]
        return keys

    def merge(self, candidates: Ints, a: int, b: int, new: int) -> tuple[Ints, Ints, Ints]:
        """Replace (a, b) by `new` at every candidate where it still stands, leftmost first, without overlap.

        candidates: positions in ascending order. Returns the edges that went, the pairs that stood there, the edges
        that came.
        """
        at = candidates[self.alive[candidates]]
        right = self.after[at]
        stands = (self.tokens[at] == a) & (right != _END)
        at, right = at[stands], right[stands]
        stands = self.tokens[right] == b
        at, right = at[stands], right[stands]
        if a == b and len(at):
            # In a run such as aaaaa every second edge is taken, counted from the run's left end.
            index = np.arange(len(at))
            begins = np.ones(len(at), dtype=bool)
            begins[1:] = right[:-1] != at[1:]
            taken = (index - np.maximum.accumulate(np.where(begins, index, 0))) % 2 == 0
            at, right = at[taken], right[taken]
        gone = self._edges_at(np.concatenate([self.before[at], at, right]))
        gone_keys = self.keys(gone)
        beyond = self.after[right]
        self.tokens[at] = new
        self.alive[right] = False
        self.after[at] = beyond
        inner = beyond != _END
        self.before[beyond[inner]] = at[inner]
        return gone, gone_keys, self._edges_at(np.concatenate([self.before[at], at]))

    def _edges_at(self, positions: Ints) -> Ints:
        """Which of `positions` are edges; each once, in order."""
        positions = _distinct(positions[positions != _END])
        found: Ints = positions[self.after[positions] != _END]
        return found


def _distinct(positions: Ints) -> Ints:
    """In ascending order, each once. Sorting beats np.unique's hash table on nearly sorted positions by far."""
    positions = np.sort(positions, kind="stable")
    return positions[_changes(positions)]


def _changes(ordered: Ints) -> NDArray[np.bool_]:
    """Where an ordered array has a value for the first time."""
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def _groups(keys: Ints, edges: Ints) -> Iterable[tuple[int, Ints]]:
    """(key, its edges in order) for every key."""
    order = np.argsort(keys, kind="stable")
    keys, edges = keys[order], edges[order]
    bounds = np.flatnonzero(_changes(keys)).tolist() + [len(keys)]
    for begin, end in pairwise(bounds):
        yield int(keys[begin]), edges[begin:end]


def _totals(keys: Ints, weights: Ints) -> dict[int, int]:
    """Key -> the sum of its weights."""
    if not len(keys):
        return {}
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = np.flatnonzero(_changes(keys))
    return dict(zip(keys[begins].tolist(), np.add.reduceat(weights[order], begins).tolist(), strict=True))


def learn_merges(pieces: Iterable[bytes], n_merges: int) -> list[Pair]:
    """The merges that byte-pair encoding learns from `pieces`: always the pair that is most frequent now.

    Every neighbouring pair counts, overlapping ones too (aaa holds (a, a) twice); among equally frequent ones the
    smallest as a tuple is taken, so the result depends on nothing but the pieces. Ends early when no pair is left.

    Example:
        >>> learn_merges([b"aaabdaaabac"], 3)
        [(97, 97), (97, 98), (256, 257)]
    """
    frequency = Counter(pieces)
    chain = Chain(frequency)
    weight = np.array(list(frequency.values()), dtype=np.int64)[chain.piece]
    edges = chain.edges()
    keys = chain.keys(edges)
    counts = _totals(keys, weight[edges])
    places: dict[int, list[Ints]] = {key: [found] for key, found in _groups(keys, edges)}
    heap = [(-count, key) for key, count in counts.items()]
    heapq.heapify(heap)

    merges: list[Pair] = []
    while len(merges) < n_merges and heap:
        count, key = heapq.heappop(heap)
        if counts.get(key, 0) != -count or count == 0:
            continue  # an older count of a pair that has changed since
        a, b = key >> _SHIFT, key & (1 << _SHIFT) - 1
        new = 256 + len(merges)
        merges.append((a, b))
        candidates = _distinct(np.concatenate(places.pop(key)))
        gone, gone_keys, come = chain.merge(candidates, a, b, new)
        come_keys = chain.keys(come)
        for pair, found in _groups(come_keys, come):
            places.setdefault(pair, []).append(found)
        signed = np.concatenate([-weight[gone], weight[come]])
        for pair, difference in _totals(np.concatenate([gone_keys, come_keys]), signed).items():
            if difference:
                counts[pair] = counts.get(pair, 0) + difference
                heapq.heappush(heap, (-counts[pair], pair))
    return merges


class Merger:
    """Applies merges: always the pair of lowest rank, leftmost first, until none is left in any piece.

    A pair that comes to be by the merge of rank r contains the token 256 + r, so its own rank is higher. Hence one
    pass over the ranks, in order, is exact.

    Example:
        >>> Merger([(97, 97), (97, 98)]).apply([b"aaab"]).tolist()
        [256, 257]
    """

    def __init__(self, merges: Sequence[Pair]) -> None:
        self.merges = list(merges)
        keys = np.array([pair_key(a, b) for a, b in merges], dtype=np.int64)
        self._ranks = np.argsort(keys, kind="stable")
        self._keys = keys[self._ranks]

    def _ranked(self, chain: Chain, edges: Ints) -> Iterable[tuple[int, Ints]]:
        """(rank, edges in order) for every rank that occurs at `edges`."""
        if not len(self._keys) or not len(edges):
            return ()
        keys = chain.keys(edges)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = self._keys[found] == keys
        return _groups(self._ranks[found[known]], edges[known])

    def apply(self, pieces: Iterable[bytes]) -> Ints:
        """The tokens of all pieces, one after another."""
        chain = Chain(pieces)
        waiting: dict[int, list[Ints]] = {}
        heap: list[int] = []

        def wait(edges: Ints) -> None:
            for rank, found in self._ranked(chain, edges):
                if rank not in waiting:
                    waiting[rank] = []
                    heapq.heappush(heap, rank)
                waiting[rank].append(found)

        wait(chain.edges())
        while heap:
            rank = heapq.heappop(heap)
            candidates = _distinct(np.concatenate(waiting.pop(rank)))
            wait(chain.merge(candidates, *self.merges[rank], 256 + rank)[2])
        return chain.tokens[chain.alive]
