"""Embedded recordings: Morse code as a hand keys it, over a radio with noise and fading, and its text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..data.source import Source
from ..errors import UserError
from ..processors.sound.read import Samples
from .generated import GeneratedSource

RATE = 8000  # samples per second
# International Morse code, Recommendation ITU-R M.1677-1; @ was added in 2004.
TABLE = """
A .- B -... C -.-. D -.. E . F ..-. G --. H .... I .. J .--- K -.- L .-.. M -- N -. O --- P .--.
Q --.- R .-. S ... T - U ..- V ...- W .-- X -..- Y -.-- Z --.. 0 ----- 1 .---- 2 ..--- 3 ...--
4 ....- 5 ..... 6 -.... 7 --... 8 ---.. 9 ----. . .-.-.- , --..-- ? ..--.. / -..-. = -...- + .-.-.
- -....- @ .--.-. : ---... ' .----. ( -.--. ) -.--.- " .-..-.
"""
CODES = dict(zip(TABLE.split()[::2], TABLE.split()[1::2], strict=True))
CHARACTERS = "".join(CODES)
LETTERS, DIGITS, PUNCTUATION = CHARACTERS[:26], CHARACTERS[26:36], CHARACTERS[36:]
WORDS = """
A ABOUT AFTER AGAIN AIR ALL ALSO AN AND ANY ARE AS ASK AT AWAY BACK BE BEFORE BEST BIG BOAT BOOK BOTH BUT BY
CALL CAME CAN CITY CLEAR COAST COLD COME COULD DAY DID DO DOWN EACH EARLY EAST EIGHT END EVEN EVERY FAR FEW
FIND FINE FIRE FIRST FIVE FOR FOUR FROM GET GIVE GO GOOD GREAT HAD HAND HAS HAVE HE HEAR HELP HER HERE HIGH
HIM HIS HOME HOUR HOUSE HOW I IF IN INTO IS IT ITS JUST KEEP KIND KNOW LAND LAST LATE LEFT LESS LIFE LIGHT
LIKE LINE LISTEN LITTLE LONG LOOK LOW MADE MAKE MAN MANY MAY ME MEET MORE MOST MUCH MUST MY NAME NEAR NEED
NEVER NEW NEXT NIGHT NINE NO NORTH NOT NOW OF OFF OLD ON ONE ONLY OPEN OR OTHER OUR OUT OVER PART PLACE PORT
QUIET RADIO RAIN READ RIGHT RIVER ROAD ROOM SAID SAME SAY SEA SEE SEND SEVEN SHE SHIP SHORT SHOULD SHOW SIDE
SIX SLOW SMALL SNOW SO SOME SOON SOUND SOUTH STILL STOP STORM SUN TAKE TELL TEN THAN THAT THE THEIR THEM THEN
THERE THEY THING THINK THIS THREE TIME TO TODAY TOO TOWER TOWN TWO UNDER UNTIL UP US USE VERY WAIT WANT WARM
WAS WATER WAY WE WEEK WELL WENT WERE WEST WHAT WHEN WHERE WHICH WHO WHY WILL WIND WINTER WITH WORD WORK WORLD
WOULD YEAR YES YOU YOUR
"""
ABBREVIATIONS = """
73 88 599 579 AGN ANT BK CQ CUL CW DE DX ES FB FER GA GE GM HI HR HW K KN LID NIL NR OM OP PSE PWR QRL QRM QRN
QRP QRT QRX QSB QSL QSO QSY QTH R RIG RST RX SIG SRI TEST TKS TNX TU TX UR VY WX XYL YL
"""
ENGLISH, RADIO = WORDS.split(), ABBREVIATIONS.split()
PREFIXES = ("W", "K", "N", "G", "F", "I", "DL", "EA", "JA", "LU", "OH", "ON", "PY", "SM", "SP", "UA", "VE", "VK", "ZL")
UNITS = {".": 1.0, "-": 3.0}  # lengths in dots; the gaps are those inside a character, after it and after a word
GAPS = (1.0, 3.0, 7.0)
MOST_UNITS = 260  # of an embedded text: less than 30 seconds at any speed
RAMP = 0.005  # seconds in which the tone rises and falls, so that keys do not click
HELD_OUT = 300  # recordings for validation, and for test


@dataclass(frozen=True)
class MorseSettings:
    """How a text is keyed, and how the radio changes it."""

    speed: float = 20.0  # words per minute: PARIS, 50 dots, is a word
    pitch: float = 600.0  # Hz
    snr: float = 15.0  # decibels of the unfaded tone over all noise; inf: none
    drift: float = 0.0  # Hz by which the pitch slowly rises and falls
    fading: float = 0.0  # share of the amplitude that is lost where fading (QSB) is deepest
    jitter: float = 0.0  # standard deviation of the lengths of dots, dashes and gaps, as a share of them
    dash: float = 3.0  # dots in a dash
    spacing: float = 1.0  # stretches the gaps after characters and words
    amplitude: float = 0.3
    silence: tuple[float, float] = (0.3, 0.3)  # seconds before and after the text

    def __post_init__(self) -> None:
        if not 1 <= self.speed <= 100 or not 50 <= self.pitch + abs(self.drift) < RATE / 2:
            raise UserError(
                f"Morse code of speed={self.speed:g} and pitch={self.pitch:g} cannot be made; expected 1 to 100 words "
                f"per minute and 50 to {RATE // 2} Hz"
            )

    @classmethod
    def random(cls, rng: np.random.Generator) -> "MorseSettings":
        """Those of one embedded recording: another hand, radio and day each."""
        low = np.array([20, 580, 12, 0, 0, 0.02, 2.9, 0.95, 0.1, 0.1, 0.1])
        high = np.array([24, 680, 25, 8, 0.3, 0.05, 3.2, 1.1, 0.4, 0.3, 0.3])
        values = rng.uniform(low, high).tolist()
        return replace(cls(*values[:9]), silence=(values[9], values[10]))


class MorseRecording(NamedTuple):
    """Samples (samples,) in -1…1, and where each character of the text is."""

    samples: np.ndarray
    rate: int
    onsets: np.ndarray  # (characters, 2): start and end in seconds; of a space, those of the gap
    text: str  # as it was keyed: capital letters, single spaces

    @property
    def sound(self) -> Samples:
        return Samples(self.samples, self.rate)


class Keying(NamedTuple):
    """When the key is down, in seconds."""

    starts: np.ndarray  # (dots and dashes,)
    ends: np.ndarray
    onsets: np.ndarray  # (characters, 2)
    samples: int  # of the recording


def encode_morse(text: str, rng: np.random.Generator, settings: MorseSettings | None = None) -> MorseRecording:
    """A recording of a text of any length. Only noise, fading, drift and jitter are random."""
    settings, text = settings or MorseSettings(), " ".join(text.upper().split())
    unknown = sorted({*text} - {" ", *CODES})
    if unknown or not text:
        what = f"has {' '.join(unknown)}, for which there is no Morse code" if unknown else "is empty"
        raise UserError(f"the text {text[:40]!r} {what}; expected letters from A to Z, digits and {PUNCTUATION}")
    keying = key_text(text, rng, settings)
    return MorseRecording(render(keying, rng, settings), RATE, keying.onsets, text)


def key_text(text: str, rng: np.random.Generator, settings: MorseSettings) -> Keying:
    """The moments at which a hand presses and releases the key."""
    marks, gaps, firsts, lasts = list[float](), list[int](), list[int](), list[int]()
    for character in text:
        if character == " ":
            gaps[-1] = 2
            continue
        code = CODES[character]
        firsts.append(len(marks))
        marks += [settings.dash if mark == "-" else 1.0 for mark in code]
        gaps += [0] * (len(code) - 1) + [1]
        lasts.append(len(marks) - 1)
    lengths = np.empty(2 * len(marks))
    lengths[::2] = marks
    lengths[1::2] = np.array(GAPS)[gaps] * np.where(gaps, settings.spacing, 1.0)
    changes = rng.standard_normal(len(lengths)).clip(-2.5, 2.5) * settings.jitter
    times = settings.silence[0] + np.cumsum(lengths * (1 + changes)) * (1.2 / settings.speed)
    ends = times[::2]
    starts = np.concatenate([settings.silence[:1], times[1:-1:2]])
    spoken = np.array([character != " " for character in text])
    onsets = np.empty((len(text), 2))
    onsets[spoken] = np.stack([starts[firsts], ends[lasts]], 1)
    spaces = np.flatnonzero(~spoken)
    onsets[spaces] = np.stack([onsets[spaces - 1, 1], onsets[spaces + 1, 0]], 1)
    return Keying(starts, ends, onsets, int((ends[-1] + settings.silence[1]) * RATE) + 1)


def render(keying: Keying, rng: np.random.Generator, settings: MorseSettings) -> np.ndarray:
    """The samples of a recording."""
    count, phases, slow = keying.samples, rng.uniform(0, 2 * np.pi, 3), rng.uniform(0.05, 0.4, 2)
    times = np.arange(count, dtype=np.float32) / np.float32(RATE)
    coarse = np.linspace(0, count / RATE, count // 400 + 2)  # slow changes are interpolated: half of the time
    swing = 2 * np.pi * slow[0] * coarse + phases[1]
    extra = np.interp(times, coarse, phases[0] - settings.drift / slow[0] * np.cos(swing))
    cycles = np.mod(times.astype(np.float64) * settings.pitch, 1.0) * (2 * np.pi) + extra
    depth = 1 - settings.fading * (0.5 - 0.5 * np.cos(2 * np.pi * slow[1] * coarse + phases[2]))
    tone = np.sin(cycles.astype(np.float32)) * _envelope(keying, settings)
    tone *= np.interp(times, coarse, settings.amplitude * depth).astype(np.float32)
    if np.isfinite(settings.snr):
        deviation = settings.amplitude / np.sqrt(2) * 10 ** (-settings.snr / 20)
        tone += rng.standard_normal(count, np.float32) * np.float32(deviation)
    samples: np.ndarray = tone.clip(-1, 1)
    return samples


def _envelope(keying: Keying, settings: MorseSettings) -> np.ndarray:
    """1 where the key is down; it rises and falls as a raised cosine, half way at the moment of the key."""
    ramp = max(int(min(RAMP, 0.4 / settings.speed) * RATE), 2)
    slope = np.sin(np.pi * (np.arange(ramp) + 0.5) / ramp)
    steps = np.zeros(keying.samples + 2 * ramp)  # a ramp before and after, so that no edge lies outside
    for moments, sign in ((keying.starts, 1.0), (keying.ends, -1.0)):
        first = np.rint(moments * RATE).astype(np.int64) + ramp - ramp // 2
        steps[first[:, None] + np.arange(ramp)] += sign / slope.sum() * slope  # ramps of one kind do not overlap
    envelope: np.ndarray = np.cumsum(steps)[ramp : ramp + keying.samples].astype(np.float32)
    return envelope


# --- texts -----------------------------------------------------------------------------------------------------------


def random_text(rng: np.random.Generator, drills: bool = False) -> str:
    """One to three words: English, abbreviations and call signs of amateur radio, and groups that no one can guess.

    With `drills` four of five texts are single characters or groups of two or three, as learners practice them.
    """
    if drills and (chance := rng.random()) < 0.8:
        return _group(CHARACTERS, rng, 1, 1) if chance < 0.6 else _group(CHARACTERS, rng, 2, 3)
    words, room = list[str](), float(MOST_UNITS)
    for _ in range(int(rng.integers(1, 4))):
        word = _random_word(rng)
        room -= _units(word)
        if words and room < 0:
            break
        words.append(word)
    return " ".join(words)


def random_drill(rng: np.random.Generator) -> str:
    """A single letter or digit, as learners practice them first."""
    return _choose(LETTERS + DIGITS, rng)


def _random_word(rng: np.random.Generator) -> str:
    chance = rng.random()
    if chance < 0.45:
        return _choose(ENGLISH, rng) + (_choose(".,?=+", rng) if rng.random() < 0.12 else "")
    if chance < 0.6:
        return _choose(RADIO, rng)
    if chance < 0.72:
        sign = _choose(PREFIXES, rng) + _choose(DIGITS, rng) + _group(LETTERS, rng, 1, 3)
        return sign + ("/P" if rng.random() < 0.1 else "")
    if chance < 0.82:
        return _group(LETTERS, rng, 2, 5)
    if chance < 0.9:
        return _group(DIGITS, rng, 1, 4)
    return _group(CHARACTERS, rng, 1, 5)


def _choose(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _group(characters: str, rng: np.random.Generator, least: int, most: int) -> str:
    return "".join(characters[i] for i in rng.integers(len(characters), size=int(rng.integers(least, most + 1))))


def _units(word: str) -> float:
    """The length of a word and the gap after it, in dots."""
    codes = [CODES[character] for character in word]
    return sum(sum(UNITS[mark] + 1 for mark in code) + 2 for code in codes) + 4


class MorseSource(GeneratedSource):
    """Recordings and their texts."""

    noun = "recording"

    def __init__(self, split: str, count: int, drills: bool = False) -> None:
        """`drills`: all texts are a single letter or digit; else most texts in train are short."""
        super().__init__(split, count, "Morse code")
        self.drills = drills
        self._lengths: dict[int, int] = {}  # of recordings, cached

    def item(self, index: int) -> tuple[Samples, str]:
        recording = self.recording(index)
        return recording.sound, recording.text

    def recording(self, index: int) -> MorseRecording:
        """With the moment of every character."""
        rng = self.rng(index)
        return encode_morse(self._text(rng), rng, MorseSettings.random(rng))

    def field(self, index: int, field: int) -> Samples | str:
        return self._text(self.rng(index)) if field == 1 else self.item(index)[field]

    def length(self, index: int) -> int:
        """The number of samples, without making them."""
        if index not in self._lengths:
            rng = self.rng(index)
            text = self._text(rng)
            settings = MorseSettings.random(rng)
            self._lengths[index] = key_text(text, rng, settings).samples
        return self._lengths[index]

    def seconds(self, index: int) -> float:
        return self.length(index) / RATE

    def _text(self, rng: np.random.Generator) -> str:
        return random_drill(rng) if self.drills else random_text(rng, drills=self.split == "train")

    def fingerprint(self) -> str:
        return f"morse {self.split} {len(self)}{' drills' * self.drills}"


def make_morse(examples: int) -> dict[str, Source]:
    """Train, valid and test: other texts, hands and radios."""
    counts = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    return {split: MorseSource(split, count) for split, count in counts.items()}


def make_drills(examples: int) -> dict[str, Source]:
    """As `make_morse`, with a single letter or digit each."""
    counts = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    return {split: MorseSource(split, count, drills=True) for split, count in counts.items()}
