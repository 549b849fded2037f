"""The likeliest path of the words of a text through a recording: by the scores of their tokens, and by where sound is.

CTC alone says when it recognizes a token, and not when the token sounds: it may do so early, late, even in silence. So
a frame of silence inside a word costs, and so does a frame of sound outside the words. A pause inside a word costs
little if it is short, as before a plosive.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..processors.base import Array

COST = 10.0  # of a frame of silence inside a word, and of one of sound between words, in nats
SHORT_COST, SHORT = 2.0, 0.25  # of a frame of a pause inside a word that has at most so many seconds
FLOOR = -4.0  # of the log-probability of a token, so that the sound outweighs CTC
REACH = 4  # states that a step of the path moves on at most: over three that may be left out


class State(NamedTuple):
    """A state of the path: a token, or a blank (token -1) inside a word or between words (word -1)."""

    token: int
    word: int
    optional: bool


class WordPath(NamedTuple):
    """The first and last frame of every token, and of every word that has tokens."""

    tokens: list[tuple[int, int]]
    words: dict[int, tuple[int, int]]


def find_path(
    scores: Array, blank: Array, tokens: Sequence[int], words: Sequence[int], levels: Array, pause: int
) -> WordPath:
    """The best path. `words` has the word of every token, or -1 for white space; `pause`: the frames of a short one.

    scores (tokens, frames) and blank (frames,) are log-probabilities, `levels` (frames,) those of `sound_levels`. There
    is at least one frame between two words, unless the frames are too few. Too few for the tokens raise ValueError.
    """
    repeats = sum(one == next_one for one, next_one in zip(tokens, tokens[1:], strict=False))
    needed, frames = max(len(tokens) + repeats, 1), len(blank)
    if frames < needed:
        raise ValueError(
            f"{len(tokens)} tokens, {repeats} of them equal to the one before, need at least {needed} frames; "
            f"the input has {frames}"
        )
    states = path_states(words, gaps=frames >= needed + max(words, default=0))
    rows = np.array([state.token for state in states])
    logprobs = np.vstack([scores, blank])[rows]  # (states, frames); the last row is that of token -1
    between = np.array([state.word < 0 for state in states])[:, None]
    costs = np.where(between, COST * levels, word_costs(levels, pause))
    path = best_states(np.maximum(logprobs, FLOOR) - costs, reachable(states, tokens), states)
    in_word = np.array([state.word for state in states])[path]
    return WordPath(
        [_range(rows[path] == token) for token in range(len(tokens))],
        {word: _range(in_word == word) for word in sorted({*words} - {-1})},
    )


def _range(chosen: Array) -> tuple[int, int]:
    """The first and last place that is chosen."""
    places = np.flatnonzero(chosen)
    return int(places[0]), int(places[-1])


def path_states(words: Sequence[int], gaps: bool) -> list[State]:
    """The states in their order. With `gaps`, the blank between two words without a token between them is needed."""
    states, before = [State(-1, -1, True)], -1
    for token, word in enumerate(words):
        if word != before:
            states += [State(-1, before, True)] if before >= 0 else []
            states += [State(-1, -1, not gaps or min(before, word) < 0)] if before >= 0 or word < 0 else []
        if word >= 0:
            states += [State(-1, word, True), State(token, word, False)]
        else:
            states += [State(token, -1, False), State(-1, -1, True)]
        before = word
    return [*states, State(-1, before, True), State(-1, -1, True)] if before >= 0 else states


def word_costs(levels: Array, pause: int) -> Array:
    """(frames,): what a frame inside a word costs."""
    costs, silent = COST * (1 - levels), np.concatenate([[False], levels < 0.5, [False]])
    edges = np.flatnonzero(np.diff(silent.astype(np.int8)))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first > 0 and last < len(levels) and last - first <= pause:
            costs[first:last] = np.minimum(costs[first:last], SHORT_COST)
    return np.asarray(costs)


def reachable(states: Sequence[State], tokens: Sequence[int]) -> Array:
    """(1 + REACH, states) bool: whether a state may follow the one so many places before it."""
    table = np.zeros((1 + REACH, len(states)), bool)
    table[0] = True
    for place, state in enumerate(states):
        for step in range(1, min(REACH, place) + 1):
            other = states[place - step]
            equal = min(state.token, other.token) >= 0 and tokens[state.token] == tokens[other.token]
            table[step, place] = not equal  # a blank stands between equal tokens
            if not other.optional:
                break
    return table


def best_states(scores: Array, allowed: Array, states: Sequence[State]) -> Array:
    """The state of every frame in the best path (Viterbi); `scores` (states, frames)."""
    count, frames = scores.shape
    needed = [place for place, state in enumerate(states) if not state.optional] or [0]
    places = np.arange(count)
    total = np.where(places <= needed[0], scores[:, 0], -np.inf)
    moves = np.zeros((frames, count), np.int8)
    shifted = np.full((1 + REACH, count), -np.inf)
    for frame in range(1, frames):
        for step in range(1 + REACH):
            shifted[step, step:] = total[: max(count - step, 0)]
        candidates = np.where(allowed, shifted, -np.inf)
        moves[frame] = candidates.argmax(0)
        total = candidates[moves[frame], places] + scores[:, frame]
    state = int(np.where(places >= needed[-1], total, -np.inf).argmax())
    path = np.zeros(frames, int)
    for frame in reversed(range(frames)):
        path[frame] = state
        state -= int(moves[frame, state])
    return path
