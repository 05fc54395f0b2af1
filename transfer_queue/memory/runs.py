"""Runs of bytes from here and there into one buffer: the one copy of a read whose rows do not lie side by side, or of a write that sorts its rows.

All memory is 1-d uint8; starts, lengths and targets are [R] int64 in bytes.
"""

from __future__ import annotations

import numpy as np

from transfer_queue.codec import offsets_of

LONG_BYTES = 1024  # a run of so many bytes costs less as a memcpy of its own (0.4 us) than element by element


def copy_runs(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray, targets: np.ndarray) -> None:
    """out[targets[i] : targets[i] + lengths[i]] := source[starts[i] : starts[i] + lengths[i]] for all i; targets do not overlap.

    Raises ValueError where a run leads out of its memory: numpy would cut it short without a word.
    """
    starts, lengths, targets = merged(starts, lengths, targets)
    check_runs(source, starts, lengths)
    check_runs(out, targets, lengths)
    if not len(starts):
        return
    width = int(lengths[0])
    if int(lengths.sum()) >= LONG_BYTES * len(starts):
        _one_by_one(source, starts, lengths, out, targets)
    elif (lengths == width).all() and not ((starts - starts[0]) % width).any() and not ((targets - targets[0]) % width).any():
        _as_rows(source, starts, width, out, targets)
    else:
        _as_elements(source, starts, lengths, out, targets)


def merged(starts: np.ndarray, lengths: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same bytes in as few runs as there are: those that are neighbours here and there become one, empty ones go."""
    full = lengths > 0
    if not full.all():
        starts, lengths, targets = starts[full], lengths[full], targets[full]
    if not len(starts):
        return starts, lengths, targets
    begins = np.ones(len(starts), dtype=bool)
    begins[1:] = (starts[1:] != starts[:-1] + lengths[:-1]) | (targets[1:] != targets[:-1] + lengths[:-1])
    first = np.flatnonzero(begins)
    return starts[first], np.add.reduceat(lengths, first), targets[first]


def check_runs(memory: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError unless every run lies in `memory`."""
    if len(starts) and (starts.min() < 0 or lengths.min() < 0 or (starts + lengths).max() > len(memory)):
        raise ValueError(f"a slice leads out of the {len(memory)} bytes there are: it is not what `write` returned")


def _one_by_one(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray, targets: np.ndarray) -> None:
    for start, length, target in zip(starts.tolist(), lengths.tolist(), targets.tolist(), strict=True):
        out[target : target + length] = source[start : start + length]


def _as_rows(source: np.ndarray, starts: np.ndarray, width: int, out: np.ndarray, targets: np.ndarray) -> None:
    """Runs of one width that begin at multiples of it, from the first one on either side."""
    rows, row = _table(source, starts, width)
    places, place = _table(out, targets, width)
    if (np.diff(place) == 1).all():
        np.take(rows, row, axis=0, out=places, mode="clip")  # "raise" would go through a buffer
    else:
        places[place] = rows[row]


def _table(memory: np.ndarray, starts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(the rows from the first run to the last, which of them the runs are)."""
    low = int(starts.min())
    return memory[low : int(starts.max()) + width].reshape(-1, width), (starts - low) // width


def _as_elements(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray, targets: np.ndarray) -> None:
    """Many short runs: one index an element, each of as many bytes as all runs can be cut into."""
    size = _common(source.ctypes.data + starts, out.ctypes.data + targets, lengths)
    counts = lengths // size
    offsets = offsets_of(counts)
    along = np.arange(offsets[-1])
    values, index = _elements(source, starts, lengths, size)
    found = np.take(values, along + np.repeat(index - offsets[:-1], counts), mode="clip")
    places, index = _elements(out, targets, lengths, size)
    if len(places) == len(found) and (np.diff(targets) > 0).all():
        places[:] = found
    else:
        places[along + np.repeat(index - offsets[:-1], counts)] = found


def _elements(memory: np.ndarray, starts: np.ndarray, lengths: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(the memory from the first run to the last as elements, at which of them the runs begin)."""
    low, high = int(starts.min()), int((starts + lengths).max())
    return memory[low:high].view(f"u{size}"), (starts - low) // size


def _common(*numbers: np.ndarray) -> int:
    """The widest element, in bytes, at whose multiples all of these are."""
    together = 0
    for values in numbers:
        together |= int(np.bitwise_or.reduce(values))
    return next(size for size in (8, 4, 2, 1) if together % size == 0)
