"""java.util.PriorityQueue with its order of equal elements, which decides between Flink's equal matches. Pure.

The elements are tuples that are compared by their first item alone. A queue is a list in the array order of Java's
heap, in which Flink also iterates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Element: TypeAlias = tuple[Any, ...]
Heap: TypeAlias = list[Element]


def push(heap: Heap, element: Element) -> None:
    """Add an element (``siftUp``)."""
    index = len(heap)
    heap.append(element)
    key = element[0]
    while index:
        parent = (index - 1) >> 1
        above = heap[parent]
        if key >= above[0]:
            break
        heap[index] = above
        index = parent
    heap[index] = element


def pop(heap: Heap) -> Element:
    """Remove and return the first element (``poll``)."""
    first = heap[0]
    last = heap.pop()
    if heap:
        _sift_down(heap, 0, last)
    return first


def remove(heap: Heap, condition: Callable[[Element], bool]) -> None:
    """Remove the elements of which a condition holds (``removeAll``)."""
    kept = [element for element in heap if not condition(element)]
    if len(kept) == len(heap):
        return
    heap[:] = kept
    for index in range((len(heap) >> 1) - 1, -1, -1):
        _sift_down(heap, index, heap[index])


def _sift_down(heap: Heap, index: int, element: Element) -> None:
    size = len(heap)
    key = element[0]
    while index < size >> 1:
        child = 2 * index + 1
        right = child + 1
        if right < size and heap[child][0] > heap[right][0]:
            child = right
        if key <= heap[child][0]:
            break
        heap[index] = heap[child]
        index = child
    heap[index] = element
