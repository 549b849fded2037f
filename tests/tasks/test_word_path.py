"""Word times of transcripts: the best path beside all paths, and words where there is sound whatever CTC says."""

import itertools

import numpy as np
import pytest
from helpers.runs import tiny_run

import regard
from benchmarks import word_times
from regard.modalities import word_path
from regard.modalities.word_path import find_path, path_states, reachable, word_costs
from regard.processors.sound.levels import sound_levels

RATE = 8000


def all_paths(scores, blank, tokens, words, levels, pause):
    """The largest score of all paths that spell the tokens, from the definition."""
    states = path_states(words, gaps=True)
    allowed, costs = reachable(states, tokens), word_costs(levels, pause)
    needed = [place for place, state in enumerate(states) if not state.optional]
    best = -np.inf
    for path in itertools.combinations_with_replacement(range(len(states)), len(blank)):
        steps = [b - a for a, b in itertools.pairwise(path)]
        if not {*needed} <= {*path} or not all(
            step <= word_path.REACH and allowed[step, place] for step, place in zip(steps, path[1:], strict=True)
        ):
            continue
        total = 0.0
        for frame, place in enumerate(path):
            state = states[place]
            own = scores[state.token, frame] if state.token >= 0 else blank[frame]
            cost = word_path.COST * levels[frame] if state.word < 0 else costs[frame]
            total += max(own, word_path.FLOOR) - cost
        best = max(best, total)
    return best


@pytest.mark.parametrize("tokens, words", [([3, 3], [0, 1]), ([3, 4, 5], [0, -1, 1]), ([3, 3], [0, 0])])
def test_the_path_is_the_best_of_all(tokens, words):
    rng = np.random.default_rng(len(tokens))
    for _ in range(4):
        scores, blank = -rng.exponential(2, (len(tokens), 6)), -rng.exponential(1, 6)
        levels = rng.random(6).round()
        states = path_states(words, gaps=True)
        path = word_path.best_states(emissions(states, scores, blank, levels), reachable(states, tokens), states)
        own = float(emissions(states, scores, blank, levels)[path, np.arange(6)].sum())
        assert own == pytest.approx(all_paths(scores, blank, tokens, words, levels, 1))


def emissions(states, scores, blank, levels):
    raw = np.stack([scores[state.token] if state.token >= 0 else blank for state in states])
    costs = word_costs(levels, 1)
    return np.maximum(raw, word_path.FLOOR) - np.stack(
        [word_path.COST * levels if state.word < 0 else costs for state in states]
    )


def test_words_are_where_there_is_sound():
    """CTC recognizes both words in the silence after them."""
    levels = np.zeros(60)
    levels[5:15] = levels[25:40] = 1
    scores, blank = np.full((3, 60), -20.0), np.full(60, -0.01)
    for token, frame in enumerate((50, 52, 55)):
        scores[token, frame], blank[frame] = -0.01, -20.0
    path = find_path(scores, blank, [7, 8, 7], [0, -1, 1], levels, 5)
    assert (
        path.words == {0: (5, 14), 1: (25, 39)}
        and path.tokens[0][0] in range(5, 15)
        and path.tokens[2][0] in range(25, 40)
    )


def test_recordings_of_few_frames():
    assert find_path(np.zeros((0, 3)), np.zeros(3), [], [], np.ones(3), 0) == ([], {})
    assert find_path(np.zeros((2, 2)), np.zeros(2), [3, 4], [0, 1], np.ones(2), 0).words == {0: (0, 0), 1: (1, 1)}
    with pytest.raises(ValueError, match="2 tokens, 1 of them equal to the one before, need at least 3 frames"):
        find_path(np.zeros((2, 2)), np.zeros(2), [3, 3], [0, 1], np.ones(2), 0)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.03])
def test_levels_are_high_where_there_is_sound(noise):
    rng, samples = np.random.default_rng(0), np.zeros(RATE)
    samples[2000:5000] = 0.3 * np.sin(np.arange(3000))
    centers = np.arange(100) / 100 + 0.005
    levels = sound_levels(samples + rng.normal(0, noise, RATE), RATE, centers, 0.01)
    inside = (centers > 0.25) & (centers < 0.625)
    assert levels[inside].min() > 0.9 and np.quantile(levels[~inside], 0.9) < 0.4
    assert not sound_levels(np.zeros(RATE), RATE, centers, 0.01).any()


def test_word_times_of_a_run_without_training():
    """Its CTC knows nothing: the sound alone keeps words out of silence."""
    run = tiny_run("transcribe", **SETTINGS)
    errors = word_times.measure(regard.load(run), word_times.morse_recordings(30, 8))
    assert len(errors["known start"]) > 40 and not any(errors["silent"])
    assert np.median(np.abs(errors["known start"])) <= 0.06 and np.median(np.abs(errors["known end"])) <= 0.06


SETTINGS = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 32, "model.channels": 4, "data.bins": 12, "data.hop": 10,
    "data.examples": 200, "train.steps": 1, "train.warmup": 1, "train.tokens": 1200, "train.metric": "loss",
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
