"""Transcripts as the text of files: subtitles (SRT, WebVTT), a table of segments, lines of text.

A cue is the text on screen at one time. The limits are those of broadcasters: two lines of 42 characters for 7 seconds.
"""

import html
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..messages.speech import TranscribeResult, TranscriptSegment
    from ..messages.texts import TimedWord

LINE = 42  # characters of a line; a cue has two lines at most if its words have times
SECONDS = 7.0  # of a cue at most, if its words have times
SENTENCE_END, CLAUSE_END = (".", "?", "!", "…", "。", "？", "！"), (",", ";", ":", "—", "、", "，")
LONG_PAUSE, PAUSE = 0.5, 0.2  # seconds between words that count as the end of a sentence, of a clause


class Cue(NamedTuple):
    """One subtitle with its times."""

    start: int  # in milliseconds
    end: int
    text: str  # on one line


def format_srt(result: "TranscribeResult") -> str:
    """SubRip. It has no escapes: an arrow in a text, which a parser would take for that between times, is shortened."""
    return "".join(
        f"{number}\n{_time(cue.start, ',')} --> {_time(cue.end, ',')}\n{_arrows(_wrap(cue))}\n\n"
        for number, cue in enumerate(make_cues(result), 1)
    )


def format_vtt(result: "TranscribeResult") -> str:
    """WebVTT. `&`, `<` and `>` are escaped, and with them arrows."""
    cues = (
        f"\n{_time(cue.start, '.')} --> {_time(cue.end, '.')}\n{html.escape(_wrap(cue), quote=False)}\n"
        for cue in make_cues(result)
    )
    return "WEBVTT\n" + "".join(cues)


def format_tsv(result: "TranscribeResult") -> str:
    """Start and end in milliseconds and the text of every segment, as Whisper's command line writes them."""
    rows = (
        f"{round(segment.start * 1000)}\t{round(segment.end * 1000)}\t{text}\n"
        for segment in result.segments
        if (text := segment_text(segment))
    )
    return "start\tend\ttext\n" + "".join(rows)


def format_txt(result: "TranscribeResult") -> str:
    """A line for every segment, as Whisper's command line writes them."""
    return "".join(f"{text}\n" for segment in result.segments if (text := segment_text(segment)))


FORMATS: dict[str, Callable[["TranscribeResult"], str]] = {
    "srt": format_srt,
    "vtt": format_vtt,
    "tsv": format_tsv,
    "txt": format_txt,
}


# --- cues ------------------------------------------------------------------------------------------------------------


def make_cues(result: "TranscribeResult") -> list[Cue]:
    """The cues of a recording, in the order of the text. They do not overlap, and each lasts a millisecond at least.

    A segment is one cue. If it is too long for one and its words have times, it is several.
    """
    cues: list[Cue] = []
    for segment in result.segments:
        for first, last, text in _split(segment):
            start, end = round(first * 1000), round(last * 1000)
            if cues and cues[-1].start < start < cues[-1].end:
                cues[-1] = cues[-1]._replace(end=start)
            elif cues:
                start = max(start, cues[-1].end)
            cues.append(Cue(start, max(end, start + 1), text))
    return cues


def segment_text(segment: "TranscriptSegment") -> str:
    """The best text of a segment, on one line."""
    return " ".join(segment.text.split())


def segment_words(segment: "TranscriptSegment") -> "Sequence[TimedWord]":
    """The words of the best text of a segment with their times; none without details."""
    alignment = segment.nbest[0].alignment if segment.nbest else None
    return alignment.words if alignment is not None and alignment.kind == "times" else ()


def _split(segment: "TranscriptSegment") -> Iterator[tuple[float, float, str]]:
    """Start, end and text of the cues of a segment; an empty text has none."""
    text = segment_text(segment)
    if not text:
        return
    placed = list(_placed_words(text, segment_words(segment)))
    if not placed or (segment.end - segment.start <= SECONDS and _fits(text)):
        yield segment.start, segment.end, text
        return
    words = [word for _, word in placed]
    borders = [0, *(place for place, _ in placed[1:]), len(text)]  # what has no time belongs to the word before it
    groups = _group_words(text, words, borders)
    for first, stop in zip([0, *groups[:-1]], groups, strict=True):
        yield words[first].start, words[stop - 1].end, text[borders[first] : borders[stop]].strip()


def _placed_words(text: str, words: "Sequence[TimedWord]") -> Iterator[tuple[int, "TimedWord"]]:
    """The words with their places in the text. Languages without spaces have words too."""
    place = 0
    for word in words:
        spoken = word.word.strip()
        start = text.find(spoken, place)
        if spoken and start >= 0:
            yield start, word
            place = start + len(spoken)


def _group_words(text: str, words: "Sequence[TimedWord]", borders: Sequence[int]) -> list[int]:
    """The ends of the cues of a text, as numbers of words: few cues of similar lengths that end at pauses.

    A cue costs 1, the square of its share of two full lines, and up to 0.5 for a break inside a clause. The sum is
    minimal. A word that is too long for a cue has one of its own.
    """
    best = [(0.0, 0)]  # of the cues of the first 0, 1, … words: the cost, and where the last cue begins
    for stop in range(1, len(words) + 1):
        end_cost = 0.0 if stop == len(words) else _break_cost(words[stop - 1], words[stop])
        choices = []
        for first in reversed(range(stop)):
            part = text[borders[first] : borders[stop]].strip()
            seconds = words[stop - 1].end - words[first].start
            if first < stop - 1 and (seconds > SECONDS or not _fits(part)):
                break
            choices.append((best[first][0] + 1 + (len(part) / (2 * LINE)) ** 2 + end_cost, first))
        best.append(min(choices))
    ends = [len(words)]
    while (first := best[ends[-1]][1]) > 0:
        ends.append(first)
    return ends[::-1]


def _break_cost(word: "TimedWord", following: "TimedWord") -> float:
    pause, spoken = following.start - word.end, word.word.strip().rstrip("\"'”’»)]")
    if pause >= LONG_PAUSE or spoken.endswith(SENTENCE_END):
        return 0.0
    return 0.25 if pause >= PAUSE or spoken.endswith(CLAUSE_END) else 0.5


# --- text ------------------------------------------------------------------------------------------------------------


def _fits(text: str) -> bool:
    """True if a text has at most two lines."""
    first = text.rfind(" ", 0, LINE + 1)
    return len(text) <= LINE or (first > 0 and len(text) - first - 1 <= LINE)


def _wrap(cue: Cue) -> str:
    return "\n".join(wrap_text(cue.text))


def wrap_text(text: str) -> list[str]:
    """Wrap a text to as few lines of at most 42 characters as possible, of similar lengths."""
    count = len(textwrap.wrap(text, LINE, break_on_hyphens=False))
    narrow = max(-(-len(text) // count), *map(len, text.split()))
    for width in range(min(narrow, LINE), LINE):
        if len(lines := textwrap.wrap(text, width, break_on_hyphens=False)) == count:
            return lines
    return textwrap.wrap(text, LINE, break_on_hyphens=False)


def _arrows(text: str) -> str:
    return re.sub("-{2,}>", "->", text)


def _time(milliseconds: int, point: str) -> str:
    """A time as 00:00:01.200; hours have two digits or more."""
    seconds, remainder = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}{point}{remainder:03d}"
