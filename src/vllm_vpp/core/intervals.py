"""Arithmetic on sets of time intervals, each a sorted list of disjoint (start, end) pairs.

Owns merging, intersection and difference; knows nothing of what the intervals mean.
"""

from collections.abc import Iterable

__all__ = ["Intervals", "intersect", "length", "merge", "subtract"]

Intervals = list[tuple[int, int]]


def merge(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Union: sorted, disjoint, empty ones dropped."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Intervals) -> int:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Times in both; both merged."""
    found: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Times in `left` and not in `right`; both merged."""
    found: Intervals = []
    j = 0
    for start, end in left:
        at = start
        while j < len(right) and right[j][1] <= at:
            j += 1
        k = j
        while k < len(right) and right[k][0] < end:
            if right[k][0] > at:
                found.append((at, right[k][0]))
            at = max(at, right[k][1])
            k += 1
        if at < end:
            found.append((at, end))
    return found
