"""Transcripts as subtitles, tables and lines: constructed results, read back by parsers that share no code with them."""

import html
import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from regard.formats.subtitles import FORMATS, format_srt, format_tsv, format_txt, format_vtt, wrap_text
from regard.messages.speech import TranscribeResult, TranscriptSegment
from regard.messages.texts import GeneratedText, TimeAlignment, TimedWord

SENTENCE = "the wind is from the west and the sea is quiet, we wait for the night."


class Shown(NamedTuple):
    """A cue as a player reads it; times in milliseconds."""

    start: int
    end: int
    lines: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.lines)


def parse_srt(content: str) -> list[Shown]:
    assert content == "" or content.endswith("\n\n")
    found = []
    for number, block in enumerate(content.split("\n\n")[:-1], 1):
        counter, times, *lines = block.split("\n")
        match = re.fullmatch(r"(\d{2,}):([0-5]\d):([0-5]\d),(\d{3}) --> (\d{2,}):([0-5]\d):([0-5]\d),(\d{3})", times)
        assert counter == str(number) and match and lines and all(lines) and "-->" not in "".join(lines)
        found.append(Shown(*clock(match.groups()), lines))
    return found


def parse_vtt(content: str) -> list[Shown]:
    header, *blocks = content.removesuffix("\n").split("\n\n")
    assert header == "WEBVTT"
    found = []
    for block in blocks:
        times, *lines = block.split("\n")
        match = re.fullmatch(r"(\d{2,}):([0-5]\d):([0-5]\d)\.(\d{3}) --> (\d{2,}):([0-5]\d):([0-5]\d)\.(\d{3})", times)
        assert match and lines and all(lines)
        for line in lines:
            assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", line), line
        found.append(Shown(*clock(match.groups()), [html.unescape(line) for line in lines]))
    return found


def clock(parts: tuple[str, ...]) -> tuple[int, int]:
    values = [*map(int, parts)]
    first, last = (((h * 60 + m) * 60 + s) * 1000 + ms for h, m, s, ms in (values[:4], values[4:]))
    return first, last


def segment(start: float, end: float, text: str, words: tuple[TimedWord, ...] = ()) -> TranscriptSegment:
    best = GeneratedText(text, alignment=TimeAlignment((), words))
    return TranscriptSegment(start, end, (best, GeneratedText("not the best")))


def result(*segments: TranscriptSegment) -> TranscribeResult:
    text = " ".join(each.nbest[0].text for each in segments if each.nbest)
    return TranscribeResult(text, seconds=100.0, segments=segments)


def even_words(text: str, start: float, each: float, spoken: float = 1.0) -> tuple[TimedWord, ...]:
    """Words that begin every `each` seconds and fill the share `spoken` of it."""
    return tuple(
        TimedWord(word, round(start + n * each, 3), round(start + (n + spoken) * each, 3))
        for n, word in enumerate(text.split())
    )


# --- formats ---------------------------------------------------------------------------------------------------------


def test_what_is_written() -> None:
    found = result(segment(0, 1.2, " CQ  DE\tW1AW "), segment(3.0004, 3661.5, "a & b <i>"))
    assert format_srt(found) == (
        "1\n00:00:00,000 --> 00:00:01,200\nCQ DE W1AW\n\n2\n00:00:03,000 --> 01:01:01,500\na & b <i>\n\n"
    )
    assert format_vtt(found) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.200\nCQ DE W1AW\n\n00:00:03.000 --> 01:01:01.500\na &amp; b &lt;i&gt;\n"
    )
    assert format_tsv(found) == "start\tend\ttext\n0\t1200\tCQ DE W1AW\n3000\t3661500\ta & b <i>\n"
    assert format_txt(found) == "CQ DE W1AW\na & b <i>\n"


def test_hours_may_have_three_digits() -> None:
    late = result(segment(100 * 3600 + 1, 1000 * 3600 + 59.9999, "late"))
    (cue,) = parse_srt(format_srt(late))
    assert (cue.start, cue.end) == (360_001_000, 3_600_060_000) and "100:00:01,000 --> 1000:01:00,000" in format_srt(
        late
    )
    assert parse_vtt(format_vtt(late)) == [cue]


def test_empty_texts_are_left_out() -> None:
    some = result(segment(0, 1, ""), segment(1, 2, " \n"), TranscriptSegment(2, 3, ()), segment(3, 4, "a"))
    none = result(*some.segments[:3])
    for each in (none, TranscribeResult("")):
        assert [write(each) for write in FORMATS.values()] == ["", "WEBVTT\n", "start\tend\ttext\n", ""]
    assert parse_srt(format_srt(some)) == [Shown(3000, 4000, ["a"])] == parse_vtt(format_vtt(some))
    assert format_tsv(some).count("\n") == 2 and format_txt(some) == "a\n"


@pytest.mark.parametrize("text", ["a --> b", "a ---> b", "----->", "1\r\n\r\n2\x0b3\u2028\u20284 -->"])
def test_arrows_and_ends_of_lines_in_a_text(text: str) -> None:
    found = result(segment(0, 1, text), segment(1, 2, "next"))
    plain = " ".join(text.split())
    assert [cue.text for cue in parse_srt(format_srt(found))] == [re.sub("-+>", "->", plain), "next"]
    assert [cue.text for cue in parse_vtt(format_vtt(found))] == [plain, "next"]


def test_entities_are_not_cut_by_wrapping() -> None:
    """Lines are counted as they are seen."""
    (cue,) = parse_vtt(format_vtt(result(segment(0, 1, "&<>" * 28))))
    assert "".join(cue.lines) == "&<>" * 28 and [*map(len, cue.lines)] == [42, 42]


def test_lines_are_of_similar_lengths() -> None:
    assert wrap_text("a" * 42) == ["a" * 42] and wrap_text("a" * 43) == ["a" * 42, "a"]
    assert wrap_text(f"{'a' * 42} {'b' * 42}") == ["a" * 42, "b" * 42]
    assert wrap_text(SENTENCE) == ["the wind is from the west and the", "sea is quiet, we wait for the night."]
    assert wrap_text("the sea is quiet and dark at night to-night x") == [
        "the sea is quiet and",
        "dark at night to-night x",
    ]
    assert wrap_text(f"{'w' * 40} a b c d e") == ["w" * 40, "a b c d e"]  # no word is cut to make lines equal


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([(0, 2), (1.5, 3)], [(0, 1500), (1500, 3000)]),  # an overlap ends the first
        ([(0, 2), (0, 3)], [(0, 2000), (2000, 3000)]),
        ([(10, 12), (5, 8)], [(10000, 12000), (12000, 12001)]),  # backwards
        ([(1, 1), (1, 1)], [(1000, 1001), (1001, 1002)]),
        ([(3, 2), (2.5, 4)], [(3000, 3001), (3001, 4000)]),
    ],
)
def test_cues_do_not_overlap(times: list[tuple[float, float]], wanted: list[tuple[int, int]]) -> None:
    found = result(*(segment(*each, "a") for each in times))
    assert [(cue.start, cue.end) for cue in parse_srt(format_srt(found))] == wanted


def test_long_segments_are_split_where_speakers_pause() -> None:
    words = even_words(SENTENCE, 10, 0.5)
    first, second = parse_vtt(format_vtt(result(segment(9.0, 18.5, SENTENCE, words))))
    assert first == Shown(10000, 15500, ["the wind is from the west", "and the sea is quiet,"])
    assert second == Shown(15500, 18000, ["we wait for the night."])
    paused = tuple(replace(word, start=word.start + 2 * (n > 8), end=word.end + 2 * (n > 8)) for n, word in enumerate(words))  # fmt: skip
    cues = parse_vtt(format_vtt(result(segment(9.0, 20.0, SENTENCE, paused))))
    assert [cue.text for cue in cues] == ["the wind is from the west and the sea", "is quiet, we wait for the night."]
    assert (cues[0].end, cues[1].start) == (14500, 16500)


def test_a_text_of_more_than_two_lines_is_split() -> None:
    text = f"{SENTENCE} And {SENTENCE}"
    cues = parse_srt(format_srt(result(segment(0, 6, text, even_words(text, 0, 0.19)))))
    assert [cue.text for cue in cues] == [SENTENCE, f"And {SENTENCE}"]


def test_what_is_not_split() -> None:
    """A segment that fits, one whose words have no times, and a word that is too long."""
    short, long = "the wind is from the west", f"{SENTENCE} {SENTENCE}"
    fits = result(segment(0.5, 7.5, short, even_words(short, 1, 1)))
    assert parse_srt(format_srt(fits)) == [Shown(500, 7500, [short])]
    (cue,) = parse_srt(format_srt(result(segment(0, 30, long))))
    assert (cue.start, cue.end, cue.text, len(cue.lines)) == (0, 30000, long, 4)
    word = TimedWord("e" * 100, 0.0, 9.0)
    cues = parse_srt(format_srt(result(segment(0, 9.5, f"{word.word} a", (word, TimedWord("a", 9.0, 9.5))))))
    assert [(cue.end, "".join(cue.lines)) for cue in cues] == [(9000, word.word), (9500, "a")]


def test_words_need_neither_spaces_nor_times_for_each() -> None:
    """Characters of Chinese; words with a space before them; words without times stay with the one before."""
    chinese = "".join(chr(0x4E00 + n) for n in range(60))
    words = tuple(TimedWord(each, n * 0.2, n * 0.2 + 0.2) for n, each in enumerate(chinese))
    cues = parse_srt(format_srt(result(segment(0, 12, chinese, words))))
    assert "".join(cue.text for cue in cues) == chinese and [len(cue.lines) for cue in cues] == [1, 1]
    spaced = tuple(replace(word, word=f" {word.word}") for word in even_words(SENTENCE, 0, 0.6))
    for some in (spaced, spaced[1:8] + spaced[9:-1], (*spaced[:5], TimedWord("", 3, 3), TimedWord("no", 3, 3))):
        cues = parse_srt(format_srt(result(segment(0, 9, SENTENCE, some))))
        assert " ".join(cue.text for cue in cues) == SENTENCE
    assert len(cues) == 1  # five words with times in three seconds
    unknown = result(segment(0, 9, SENTENCE, (TimedWord("no", 1, 2),)))
    assert [cue.end for cue in parse_srt(format_srt(unknown))] == [9000]


@pytest.mark.parametrize("seed", range(40))
def test_any_result_gives_valid_subtitles(seed: int) -> None:
    """Random segments with gaps, overlaps and jumps back; some have words with times, of which some go backwards."""
    rng, segments, now = np.random.default_rng(seed), [], 0.0
    limited = []
    for _ in range(12):
        length = rng.exponential(8)
        chosen = rng.choice(
            ["a", "of", "night", "<b>", "&amp;", "-->", "quiet,", "end.", "x" * 30], rng.integers(0, 40)
        )
        text, timed = " ".join(chosen), rng.random() < 0.7
        words = even_words(text, now, length / max(len(chosen), 1), rng.random())
        if rng.random() < 0.2:
            words = tuple(replace(word, start=word.start + float(rng.normal())) for word in words)
            words = tuple(replace(word, start=max(word.start, 0.0)) for word in words)
        segments.append(segment(round(now, 3), round(now + length, 3), text, words if timed else ()))
        limited.append(timed)
        now = max(now + length + rng.normal() * (seed % 3), 0.0)
    found = result(*segments)
    srt, vtt = parse_srt(format_srt(found)), parse_vtt(format_vtt(found))
    assert [cue[:2] for cue in srt] == [cue[:2] for cue in vtt]
    assert all(cue.start < cue.end for cue in srt) and all(a.end <= b.start for a, b in zip(srt, srt[1:], strict=False))
    assert " ".join(cue.text for cue in vtt).split() == found.text.split()
    assert all(len(line) <= 42 for cue in vtt for line in cue.lines)
    if all(limited):
        assert all(len(cue.lines) <= 2 for cue in vtt)


def test_cues_with_word_times_keep_the_limits() -> None:
    text = " ".join(f"{SENTENCE} {SENTENCE[:-1]}," for _ in range(20))
    for each in (0.1, 0.3, 1.0, 3.0):
        words = even_words(text, 0, each, 0.8)
        cues = parse_vtt(format_vtt(result(segment(0, words[-1].end, text, words))))
        assert all(cue.end - cue.start <= 7000 and len(cue.lines) <= 2 for cue in cues)
        assert " ".join(cue.text for cue in cues) == text
        starts = {round(word.start * 1000) for word in words}
        assert all(cue.start in starts for cue in cues)
