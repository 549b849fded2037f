"""Whisper: batches, windows, languages, prompts, silence, loops, details, known texts, files; mistakes in one sentence."""

import json
import re
import tracemalloc
import wave
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
import torch
from helpers.causal import byte_level
from helpers.whisper import TEXT, control_ids, write_folder, write_multilingual

import regard
from regard.cli import main
from regard.config.data.sound import WhisperData
from regard.config.data.texts import TokenizerConfig
from regard.config.run import Run
from regard.decode import Hypothesis
from regard.decode.engine.passes import Encode
from regard.decode.search.filters import StepContext
from regard.errors import UserError
from regard.formats.huggingface.whisper import FORMAT
from regard.messages.media import Sound
from regard.messages.speech import TranscribeRequest
from regard.processors.sound.filterbank import FilterbankProcessor
from regard.processors.sound.log_mel import AudioProcessor
from regard.processors.sound.windows import FrameWindows
from regard.processors.text.tokenizers import TrainedTokenizer, train_tokenizer
from regard.processors.text.whisper import ControlTokens, with_control_tokens
from regard.tasks.transcribe.processors import window_frames
from regard.tasks.transcribe.task import new_predictor
from regard.tasks.whisper.recordings import SoundWindow
from regard.tasks.whisper.task import WhisperPredictor
from regard.tasks.whisper.transcriber import WhisperTranscriber
from regard.tasks.whisper.transcript import WindowResult
from regard.tasks.whisper.windows import SplitWindow, cut_repetition, split_window

RATE, SECONDS = 16000, 2
IDS = control_ids(SECONDS)
FIRST, END = IDS["<|0.00|>"], IDS["<|endoftext|>"]
FAST: dict[str, Any] = {
    "temperatures": (0.0,), "compression_ratio_threshold": 0, "logprob_threshold": 0, "no_speech_threshold": 1.0
}  # fmt: skip  # the first text is good enough
AGAIN: dict[str, Any] = {"logprob_threshold": -0.001, "no_speech_threshold": 1.0, "temperatures": (0.0, 1.2)}


def unreadable() -> list[int]:
    """Tokens that are no letters: random weights would write half characters."""
    letters = re.compile("Ġ?[a-z]+")
    names = byte_level(TEXT).get_vocab()
    control = [number for name, number in IDS.items() if END < number < FIRST]
    return [number for name, number in names.items() if not letters.fullmatch(name)] + control


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    write_multilingual(
        path,
        SECONDS,
        24,
        3,
        suppress_tokens=unreadable(),
        begin_suppress_tokens=[END],
        alignment_heads=[[0, 1], [1, 2]],
    )
    return path


@pytest.fixture(scope="module")
def predictor(folder: Path) -> WhisperPredictor:
    found: WhisperPredictor = regard.load(folder)
    return found


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> WhisperPredictor:
    """It knows one language."""
    path = tmp_path_factory.mktemp("english")
    write_multilingual(path, SECONDS, 24, 3, is_multilingual=False, suppress_tokens=unreadable())
    found: WhisperPredictor = regard.load(path)
    return found


def noise(seconds: float, seed: int = 1) -> np.ndarray:
    """Noise that swells and fades."""
    rng, count = np.random.default_rng(seed), int(seconds * RATE)
    return (rng.normal(0, 0.1, count) * (1 + np.sin(np.arange(count) / 7000))).astype(np.float32)


SOUNDS = [noise(seconds, seed) for seed, seconds in enumerate((5.3, 0.3, SECONDS, 3.1, 1.5))]


def letters(*texts: str) -> TrainedTokenizer:
    return train_tokenizer(TokenizerConfig(kind="char"), texts)


def transcribe(predictor: WhisperPredictor, sounds: list[Any], batch: int = 16, **settings: Any) -> list[Any]:
    return predictor.predict_requests(predictor.requests(sounds, **settings), batch)


def words_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = record["alignment"]["words"]
    return words


def generated(*tokens: int) -> Any:
    """Replaces the model: it writes these tokens whatever it hears."""
    found = Hypothesis([*tokens], -1.0, -1.0 * len(tokens), True)
    return mock.patch.object(WhisperTranscriber, "generate", mock.AsyncMock(return_value=found))


# --- batches ---------------------------------------------------------------------------------------------------------


def test_samples_depend_on_the_seed(predictor: WhisperPredictor) -> None:
    found = [predictor.predict(SOUNDS[0], language="de", seed=seed, **AGAIN) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    temperatures = {each["temperature"] for each in predictor.predict(SOUNDS[0], details=True, **AGAIN)["segments"]}
    assert temperatures == {1.2}


def test_parts_of_a_recording_are_decoded_together(predictor: WhisperPredictor) -> None:
    """They begin at pauses, and none reads the text of another."""
    pause = np.zeros(int(0.5 * RATE), np.float32)
    long = np.concatenate([part for seed in range(5) for part in (noise(1.2, seed), pause)])
    sizes: list[int] = []
    encode = Encode.run

    def run(self: Encode, jobs: Any, context: Any) -> Any:
        sizes.append(len(jobs))
        return encode(self, jobs, context)

    with mock.patch.object(Encode, "run", run):
        (found,) = transcribe(predictor, [long], 4, language="de", sequential=False, **FAST)
    assert sizes == [4, 1]
    starts = [each.start for each in found.segments]
    assert starts == sorted(starts) and starts[-1] > 6 and found.segments[-1].end <= found.seconds == len(long) / RATE
    assert all(each.start <= each.end for each in found.segments)


def test_a_text_that_the_window_cuts_is_kept_in_parts(predictor: WhisperPredictor) -> None:
    """Sequential windows read it again."""
    tokens = (FIRST, 70, FIRST + 20, FIRST + 20, 71)
    with generated(*tokens):
        (parts,) = transcribe(predictor, [noise(1.0)], language="de", sequential=False, **FAST)
        (walked,) = transcribe(predictor, [noise(1.0)], language="de", **FAST)
    first, second = (predictor.target.decode([[token]])[0] for token in (70, 71))
    assert [(each.start, each.end, each.nbest[0].text) for each in parts.segments] == [
        (0, 0.4, first),
        (0.4, 1.0, second),
    ]
    assert [(each.start, each.end) for each in walked.segments] == [(0, 0.4), (0.4, 0.8), (0.8, 1.0)]


def test_without_timestamps_a_window_is_a_segment(predictor: WhisperPredictor) -> None:
    (found,) = transcribe(predictor, [noise(5)], language="de", timestamps=False, **FAST)
    times = [(each.start, each.end) for each in found.segments]
    assert len(times) > 2 and times[0][0] == 0 and times[-1][1] == 5
    assert all(0 < end - start <= SECONDS for start, end in times)


# --- prompts ---------------------------------------------------------------------------------------------------------


def prompts_of(predictor: WhisperPredictor, sound: Any, **settings: Any) -> list[tuple[int, ...]]:
    """The prompts of all windows."""
    found: list[tuple[int, ...]] = []
    generate = WhisperTranscriber.generate

    async def record(self: Any, encoded: Any, prompt: Any, *rest: Any) -> Hypothesis:
        found.append(prompt)
        return await generate(self, encoded, prompt, *rest)

    with mock.patch.object(WhisperTranscriber, "generate", record):
        transcribe(predictor, [sound], **FAST | settings)
    return found


def test_prompts(predictor: WhisperPredictor, english: WhisperPredictor) -> None:
    start, german, japanese = (IDS[f"<|{name}|>"] for name in ("startoftranscript", "de", "ja"))
    transcript, translation, previous = (IDS[f"<|{name}|>"] for name in ("transcribe", "translate", "startofprev"))
    assert prompts_of(predictor, noise(1), language="German ", prompt=" ") == [(start, german, transcript)]
    assert prompts_of(predictor, noise(1), language="ja", task="translate") == [(start, japanese, translation)]
    plain = prompts_of(predictor, noise(1), language="de", timestamps=False)
    assert plain == [(start, german, transcript, IDS["<|notimestamps|>"])]
    assert prompts_of(english, noise(1)) == [(start,)]
    (words,) = prompts_of(predictor, noise(1), language="de", prompt="the  cat")
    assert words == (previous, *predictor.target.encode([" the cat"])[0], start, german, transcript)
    (letters,) = prompts_of(predictor, noise(1), language="Japanese", prompt="cat")
    assert letters[1:-3] == (*predictor.target.encode(["cat"])[0],)
    (translated,) = prompts_of(predictor, noise(1), language="ja", task="translate", prompt="cat")
    assert translated[1:-3] == (*predictor.target.encode([" cat"])[0],)  # English has spaces
    (long,) = prompts_of(predictor, noise(1), language="de", prompt="the cat " * 40)
    assert len(long) == 24 // 2 - 1 + 4 and long[-4] == words[-4]


def test_windows_read_the_text_before_them(predictor: WhisperPredictor) -> None:
    found = prompts_of(predictor, noise(5), language="de")
    previous = IDS["<|startofprev|>"]
    assert len(found) > 2 and found[0][0] != previous and all(each[0] == previous for each in found[1:])
    assert all(
        each[0] != previous for each in prompts_of(predictor, noise(5), language="de", condition_on_previous=False)
    )
    hot = prompts_of(predictor, noise(5), language="de", temperatures=(0.7,))
    assert all(each[0] != previous for each in hot)  # text that was sampled so is not trusted


# --- long recordings -------------------------------------------------------------------------------------------------


def write_long(path: Path, seconds: int) -> str:
    """A file that is written block by block."""
    rng = np.random.default_rng(2)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(RATE)
        for _ in range(seconds // 10):
            file.writeframes(rng.normal(0, 3000, 10 * RATE).astype("<i2").tobytes())
    return str(path)


async def unheard(self: Any, window: SoundWindow, *rest: Any) -> WindowResult:
    """In place of decoding: nobody speaks."""
    return WindowResult(None, SplitWindow([], [], window.seconds))


@pytest.mark.parametrize("sequential", [True, False])
def test_memory_does_not_grow_with_the_recording(sequential: bool, predictor: WhisperPredictor, tmp_path: Path) -> None:
    peaks = []
    with mock.patch.object(WhisperTranscriber, "decode_window", unheard):
        for seconds in (20, 20, 120):  # the first call fills caches
            path = write_long(tmp_path / f"{seconds}.wav", seconds)
            tracemalloc.start()
            (found,) = transcribe(predictor, [path], 2, sequential=sequential, language="de")
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert found.seconds == seconds
    assert peaks[2] < 1.2 * peaks[1] < 20 * RATE * 4 * 4


def test_few_frames_of_a_long_recording_are_held(tmp_path: Path) -> None:
    """A window, and a block of the file."""
    windows = FrameWindows(write_long(tmp_path / "a.wav", 60), AudioProcessor(seconds=SECONDS))
    held = []
    for first in range(0, windows.total, 150):
        assert len(windows(first)) == min(windows.size, windows.total - first)
        held.append(len(windows._frames))
    assert windows.total == 6000 and windows.samples == 60 * RATE and max(held) < 200 + 450 + 150


@pytest.mark.parametrize(("window", "hop"), [(400, 160), (200, 160), (200, 200), (275, 110), (400, 40)])
def test_frames_of_windows_are_those_of_the_recording(window: int, hop: int) -> None:
    """Also where frames are farther apart than half a window, and windows are odd."""
    whole = AudioProcessor(8000, 20, window, hop, bin_width=5)
    parts = AudioProcessor(8000, 20, window, hop, bin_width=5, seconds=1)
    for samples in (8000, 9000 + hop // 2, 65536 + hop - 1, 70001, 131072):
        sound = np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)
        expected, windows = whole.encode(sound), FrameWindows(sound, parts)
        assert (windows.total, windows.samples) == (len(expected), samples)
        found = [windows(first) for first in range(0, windows.total, windows.size)]
        assert np.allclose(np.concatenate(found), expected, atol=1e-4)


@pytest.mark.parametrize("sequential", [True, False])
def test_progress_tells_the_position(sequential: bool, predictor: WhisperPredictor, tmp_path: Path) -> None:
    paths = [write_long(tmp_path / "a.wav", 20), write_long(tmp_path / "b.wav", 10)]
    reports: list[tuple[str, float, float]] = []
    with mock.patch.object(WhisperTranscriber, "decode_window", unheard):
        predictor.on_progress = lambda *each: reports.append(each)
        try:
            transcribe(predictor, paths, sequential=sequential, language="de")
        finally:
            predictor.on_progress = None
    for path, seconds in zip(paths, (20, 10), strict=True):
        positions = [position for name, position, _ in reports if name == path]
        assert positions == sorted(set(positions)) and positions[-1] == seconds and len(positions) >= seconds / SECONDS
        assert {total for name, _, total in reports if name == path} == {seconds} or not sequential


def test_a_recording_that_ends_within_a_frame(predictor: WhisperPredictor) -> None:
    for samples in (RATE + 77, SECONDS * RATE + 1, SECONDS * RATE + 159, SECONDS * RATE + 161, 3 * RATE + 79):
        record = predictor.predict(noise(4)[:samples], details=True, language="de", **FAST)
        seconds = round(samples / RATE, 3)
        assert record["seconds"] == seconds and record["text"]
        assert all(0 <= each["start"] <= each["end"] <= seconds for each in record["segments"] + words_of(record))


def test_very_short_recordings(predictor: WhisperPredictor) -> None:
    for samples in (2, 100, 161):
        record = predictor.predict(noise(1)[:samples], details=True, language="de", **FAST)
        assert record["seconds"] == round(samples / RATE, 3)
        assert all(0 <= each["start"] <= each["end"] <= record["seconds"] for each in record["segments"])


# --- silence and loops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"sequential": False}, {"timestamps": False}])
def test_silence_has_no_transcript(settings: dict[str, Any], predictor: WhisperPredictor) -> None:
    for samples in (1, RATE, 3 * RATE, 9 * RATE + 5):
        with pytest.warns(UserWarning, match="1 of 1 recordings are silent and have no transcript"):
            record = predictor.predict(np.zeros(samples, np.float32), details=True, **settings)
        assert (record["text"], record["score"], record["segments"], record["alignment"]) == ("", None, [], None)
        assert record["seconds"] == round(samples / RATE, 3)


def test_windows_where_nobody_speaks_have_no_text(predictor: WhisperPredictor) -> None:
    """Above the no-speech threshold, unless their text is likely."""
    likely = FAST | {"no_speech_threshold": 0.0, "logprob_threshold": -99.0}
    unlikely = FAST | {"no_speech_threshold": 0.0, "logprob_threshold": -0.001}
    assert predictor.predict(noise(3), **likely) and predictor.predict(noise(3), **FAST)
    with pytest.warns(UserWarning, match="silent"):
        assert predictor.predict(noise(3), **unlikely) == ""
    record = predictor.predict(noise(3), details=True, **likely)
    assert all(0 < each["no_speech"] < 1 for each in record["segments"])


def test_repetitions_are_removed(predictor: WhisperPredictor) -> None:
    """At no temperature the text is good enough, as on music."""
    with generated(FIRST, 70, *[71, 72] * 9):
        looped = predictor.predict(noise(9), language="de", compression_ratio_threshold=1.5, no_speech_threshold=1.0)
        kept = predictor.predict(noise(9), language="de", **FAST)
    phrase = predictor.target.decode([[70, 71, 72]])[0].strip()
    assert looped.split() == [phrase] * 5 and len(kept) > 4 * len(looped)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 2, 2], [1, 2, 2, 2]),
        ([1, 2, 2, 2, 2], [1, 2]),
        ([9, 1, 2, 1, 2, 1, 2, 1, 2], [9, 1, 2]),
        ([2, 1, 2, 1, 2, 1, 2, 1, 2], [2, 1, 2]),
        ([5] * 50, [5]),
        ([1, 1, 1, 1, 2], [1, 1, 1, 1, 2]),
    ],
)
def test_loops(tokens: list[int], expected: list[int]) -> None:
    assert cut_repetition(tokens) == expected


@pytest.mark.parametrize("settings", [{}, {"sequential": False}])
@pytest.mark.parametrize(
    "tokens", [(FIRST, FIRST), (FIRST, 70, FIRST, FIRST), (FIRST,), (), (70,), (FIRST + 100, FIRST + 100, 70)]
)
def test_windows_always_advance(tokens: tuple[int, ...], settings: dict[str, Any], predictor: WhisperPredictor) -> None:
    """Whatever the model writes, the end of the recording is reached."""
    for details in (False, True):
        with generated(*tokens):
            record = predictor.predict_requests(
                predictor.requests([noise(7)], details, language="de", **FAST | settings)
            )[0]
        assert record.seconds == 7 and len(record.segments) <= 10
        assert all(0 <= each.start <= each.end <= 7 for each in record.segments)


def test_segments_of_a_window(predictor: WhisperPredictor) -> None:
    """Pairs of timestamps separate segments; a single one at the end closes the last of them."""
    target = predictor.target
    at = target.timestamp
    whole = split_window([at(0), 70, at(0.5), at(0.6), 71, at(1.0)], target, 2.0)
    assert [each[1:] for each in whole.segments] == [(0, 0.5), (pytest.approx(0.6), 1.0)]
    assert (whole.cut, whole.used) == ([], 2.0)
    cut = split_window([at(0), 70, at(0.5), at(0.6), 71], target, 2.0)
    assert [each[1:] for each in cut.segments] == [(0, 0.5)] and cut.cut == [at(0.6), 71] and cut.used == 0.5
    assert split_window([70, 71], target, 1.5) == ([([70, 71], 0.0, 1.5)], [], 1.5)


# --- details ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"sequential": False}, {"timestamps": False}, {"kind": "beam", "beam": 2}])
def test_words_have_rising_times(settings: dict[str, Any], predictor: WhisperPredictor) -> None:
    for sound in (noise(1.3), noise(9, 4)):
        record = predictor.predict(sound, details=True, language="de", **FAST | settings)
        words, pieces = words_of(record), record["tokens"]
        assert [each["word"] for each in words] == record["text"].split() and words
        starts, ends = ([each[side] for each in words] for side in ("start", "end"))
        assert starts == sorted(starts) and ends == sorted(ends) and starts[0] >= 0 and ends[-1] <= record["seconds"]
        assert all(start <= end for start, end in zip(starts, ends, strict=True))
        assert (
            len(pieces) == len(record["logprobs"]) == len(record["alignment"]["times"]) and max(record["logprobs"]) <= 0
        )


def test_languages_without_spaces(predictor: WhisperPredictor) -> None:
    """Their letters have times, and segments are joined without spaces; translations are English."""
    text = predictor.target.encode_words("cat dog", "en")
    with generated(FIRST, *text, FIRST + 40, FIRST + 40):
        japanese = predictor.predict(noise(2.4), details=True, language="ja", **FAST)
        english = predictor.predict(noise(2.4), details=True, language="ja", task="translate", **FAST)
    count = len(english["segments"])
    assert english["text"] == " ".join(["cat dog"] * count) and japanese["text"] == "cat dog" * count
    assert [each["word"] for each in words_of(japanese)] == [*"catdog"] * count
    assert [each["word"] for each in words_of(english)] == ["cat", "dog"] * count
    assert (japanese["language"], english["language"]) == ("ja", "ja")


# --- known texts -----------------------------------------------------------------------------------------------------


def test_scores(predictor: WhisperPredictor, english: WhisperPredictor) -> None:
    texts = ["the cat", "", "a dog finds"]
    sounds = SOUNDS[1:3] + SOUNDS[4:]
    for each in (predictor, english):
        whole = each.score(sounds, texts)
        assert whole == pytest.approx([each.score(*pair) for pair in zip(sounds, texts, strict=True)], rel=1e-4)
        assert max(whole) < 0 and len({*whole}) == 3
    record = predictor.score(sounds[0], texts[0], details=True)
    assert "".join(record["tokens"]).replace("▁", " ") == " the cat■" and len(record["logprobs"]) == len(
        record["tokens"]
    )
    assert sum(record["logprobs"]) == pytest.approx(record["score"])


def test_scores_depend_on_the_language(folder: Path) -> None:
    """It may be a name; texts without spaces begin without one."""
    found = [regard.load(folder, {"decode.language": name}) for name in ("German", "de", "Japanese")]
    scores = [each.score(SOUNDS[2], "the cat") for each in found]
    assert scores[0] == scores[1] != scores[2]
    assert found[2].score(SOUNDS[2], "cat", details=True)["tokens"][0] != "▁"
    assert (
        len(found[2].align(SOUNDS[2], "cat").alignment.words) == 3
        and len(found[1].align(SOUNDS[2], "cat").alignment.words) == 1
    )


def test_alignment(predictor: WhisperPredictor) -> None:
    found = predictor.align(SOUNDS[4], " the  old cat ")
    assert found.text == "the old cat" and [each.word for each in found.alignment.words] == ["the", "old", "cat"]
    starts = [each.start for each in found.alignment.words]
    assert starts == sorted(starts) and found.alignment.words[-1].end <= 1.5
    assert found.logprob == pytest.approx(predictor.score(SOUNDS[4], "the old cat"), rel=1e-4)


def test_look(predictor: WhisperPredictor, tmp_path: Path) -> None:
    view = predictor.look(SOUNDS[4], "the cat")
    assert len(view.source) == 100 and float(view.source[-1]) == pytest.approx(1.98) and view.target[-1] == "■"
    assert torch.allclose(view.cross().sum(-1), torch.ones(len(view.target)), atol=1e-5)
    own = predictor.look(SOUNDS[4])
    detected = predictor.predict(SOUNDS[4], timestamps=False, **FAST)
    assert "".join(own.target[:-1]).replace("▁", " ").strip() == detected or "<|" in "".join(own.target)
    own.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"language": "xx"}, r"'xx' is no language of this model; it knows 3, such as de, en, ja \(decode.language\)"),
        ({"language": "French"}, "'French' is no language of this model"),
        (
            {"nbest": 2, "kind": "beam"},
            "decode.strategy.n is 2, and a Whisper model finds one text; use decode.strategy.n=1",
        ),
        ({"prefix": "a"}, "decode.prefix is not a key; did you mean"),
        ({"include": ["a"], "kind": "beam"}, "decode.include is not a key"),
        ({"exclude": ["a"]}, "decode.exclude is not a key"),
        ({"kind": "ctc"}, 'decode.strategy.kind is "ctc"; expected one of greedy, beam'),
        ({"task": "summarize"}, 'decode.task is "summarize"; expected one of transcribe, translate'),
        ({"temperatures": []}, "decode.windows.temperatures is \\[\\]; expected"),
        ({"logprob_threshold": 1}, "decode.windows.logprob_threshold is 1; expected at most 0"),
        ({"no_speech_threshold": 2}, "decode.windows.no_speech_threshold is 2; expected at most 1"),
        ({"suppress_tokens": [9999]}, "decode.rules.suppress_tokens names token 9,999 and the vocabulary has"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str, predictor: WhisperPredictor) -> None:
    with pytest.raises(UserError, match=words):
        predictor.predict(SOUNDS[1], **settings)


def test_a_model_of_english_alone(english: WhisperPredictor) -> None:
    assert english.predict(SOUNDS[0], **FAST) and transcribe(english, SOUNDS[:1], **FAST)[0].language == ""
    with pytest.raises(UserError, match="the language is 'de', and this model knows English alone; leave decode.lang"):
        english.predict(SOUNDS[1], language="de")
    with pytest.raises(UserError, match="decode.task is translate, and this model knows English alone; use one of"):
        english.predict(SOUNDS[1], task="translate")


def test_no_sound_is_refused(predictor: WhisperPredictor, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("a text")
    broken = noise(5)
    broken[-3] = np.nan
    for raw, words in (
        (np.zeros(0, np.float32), "a sound has no samples; expected at least one"),
        (str(tmp_path / "none.wav"), "none.wav does not exist; give the path of a sound file"),
        (str(tmp_path / "a.wav"), "a.wav cannot be read as sound: it is text"),
        (broken, "has a sample that is no finite number after 5.00 s"),
    ):
        for sequential in (True, False):
            with pytest.raises(UserError, match=words):
                predictor.predict(raw, sequential=sequential, **FAST)


def test_known_texts_that_do_not_fit(predictor: WhisperPredictor) -> None:
    long = "the cat " * 30
    for call in (predictor.score, predictor.align, predictor.look):
        with pytest.raises(UserError, match="a text has 94 tokens with its prompt and the model reads 24; shorten it"):
            call(SOUNDS[1], long)
    with pytest.raises(UserError, match="the recording has 5.3 seconds and the model reads 2; give its parts"):
        predictor.align(SOUNDS[0], "the cat")
    with pytest.raises(UserError, match="the text is empty, so there is nothing to align; give the words of the"):
        predictor.align(SOUNDS[1], " ")


def test_a_folder_without_generation_settings(folder: Path, tmp_path: Path) -> None:
    """Control tokens are found by their names."""
    write_multilingual(tmp_path, SECONDS, 24, 3)
    (tmp_path / "generation_config.json").unlink()
    found, whole = regard.load(tmp_path), regard.load(folder)
    control = whole.target.control
    assert found.target.control == ControlTokens(**vars(control) | {"latest_start": None})
    (result,) = transcribe(found, [noise(3)], language="de", **FAST)
    assert result.segments and found.predict(noise(1), task="translate", **FAST)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    for each in tokenizer["added_tokens"]:
        each["content"] = each["content"].replace("<|notimestamps|>", "<|other|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="there is no no_timestamps_token_id, and no token <|notimestamps|>; fetch"):
        regard.load(tmp_path)


def test_a_model_without_timestamps(tmp_path: Path) -> None:
    write_folder(tmp_path)
    found = regard.load(tmp_path)
    assert found.predict(noise(0.7), **FAST) == found.predict(noise(0.7), timestamps=False, **FAST) != ""
    with pytest.raises(
        UserError,
        match="decode.windows.timestamps is true, and this model has no timestamps; use decode.windows.timest",
    ):
        found.predict(noise(0.7), timestamps=True)
    with pytest.raises(UserError, match="this model does not translate; it knows transcribe"):
        found.predict(noise(0.7), task="translate")


def test_settings_of_whisper_alone(tmp_path: Path) -> None:
    """A run of the family speech has one language and one task."""
    small = {"family": "speech", "width": 16, "heads": 2, "layers": 1, "inner": 32, "channels": 4, "bins": 12}
    target = letters("abc")
    run = Run(task="transcribe", model={**small, "vocab": target.size}, data={"bins": 12})
    found = new_predictor(run, FilterbankProcessor(bins=12, bin_width=5), target, torch.device("cpu"))
    for settings in ({"language": "de"}, {"task": "translate"}, {"prompt": "a name"}):
        (name,) = settings
        with pytest.raises(UserError, match=f"decode.{name} is not a key"):
            found.predict(noise(0.5), **settings)
        with pytest.raises(UserError, match=f"decode.{name} is not a key"):
            found.predict_requests([TranscribeRequest(Sound(noise(0.5)), **settings)])
    with pytest.raises(
        UserError, match="run cannot become a Whisper folder: its tokenizer has no control tokens; train"
    ):
        FORMAT.processors.write(found, tmp_path / "run")


# --- training --------------------------------------------------------------------------------------------------------


def test_transcripts_with_marks() -> None:
    target = with_control_tokens(letters("the cat", "a dog"), ["ja"], 2.0)
    text = "<|startofprev|>a dog<|startoftranscript|><|0.00|> the cat<|1.20|>"
    previous, ids = target.encode_transcript(text, "ja", "transcribe")
    assert previous[0] == target.control.previous and target.decode([previous]) == ["a dog"]
    assert ids[2] == target.timestamp(0) and ids[-2:] == [target.timestamp(1.2), target.end]
    assert target.decode([ids]) == ["the cat"] == [target.plain(text)]
    plain = target.encode_transcript(text, "ja", "translate", timestamps=False, prompts=False)
    assert plain[0] == [] and plain[1][:3] == [*target.prompt("ja", "translate", False)[1:]]
    with pytest.raises(UserError, match=r"a transcript has the timestamp <\|2.02\|>, and the last one is <\|2.00\|>"):
        target.encode_transcript("<|0.00|>a<|2.02|>", "ja", "transcribe")


def test_timestamps_come_in_pairs_for_own_tokenizers() -> None:
    """Their END stands before the text, unlike that of the published models."""
    target = with_control_tokens(letters("the cat"), ["en"], 2.0)
    small = {"family": "whisper", "width": 16, "heads": 2, "layers": 1, "inner": 32, "vocab": target.size, "bins": 20}
    run = Run(task="transcribe", model={**small, "source_positions": 100}, data={"bins": 20})
    sound = window_frames(run.data, 200)
    found = new_predictor(run, sound, target, torch.device("cpu"))
    assert isinstance(found, WhisperPredictor) and target.end < target.text_end <= target.start
    tokens = torch.tensor([[[target.timestamp(0), *target.encode(["t"])[0], target.timestamp(1.0)]]])
    length = torch.tensor([3])
    context = StepContext(3, length, tokens, torch.zeros(1, dtype=torch.long), length, length, tokens)
    scores = torch.zeros(1, 1, target.size)
    scores[..., target.first_timestamp :] = -20  # text and END are likelier
    left = set(torch.isfinite(found.transcriber.timestamp_rules(scores, context)).nonzero()[:, 2].tolist())
    assert target.end in left and not left & {*target.encode(["the cat"])[0]}


def test_frames_of_no_whole_seconds() -> None:
    with pytest.raises(UserError, match="gives 130 frames of 10 ms; expected whole seconds, such as .*positions=400"):
        window_frames(WhisperData(), 130)
    with pytest.raises(UserError, match="data.cmvn is not a key"):  # it scales frames as Whisper does
        regard.resolve("whisper", {"data.cmvn": "utterance", "start": ""})


# --- command line ----------------------------------------------------------------------------------------------------


def test_command_line_writes_subtitles(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("a.wav", noise(7), RATE)
    command = ["predict", str(folder), "a.wav", "device=cpu"]
    assert main([*command, "--language", "de", "--task", "translate", "--out", "a.srt"]) == 0, capsys.readouterr().err
    cues = Path("a.srt").read_text().strip().split("\n\n")
    time, last = r"(\d\d):(\d\d):(\d\d),(\d\d\d)", 0
    for number, cue in enumerate(cues, 1):
        first, times, *text = cue.split("\n")
        match = re.fullmatch(f"{time} --> {time}", times)
        assert first == str(number) and match and 1 <= len(text) <= 2 and all(text)
        start, end = (
            int(h) * 3600000 + int(m) * 60000 + int(s) * 1000 + int(f)
            for h, m, s, f in (match.groups()[:4], match.groups()[4:])
        )
        assert last <= start < end <= 7010
        last = end
    assert len(cues) > 1
    capsys.readouterr()
    for options, words in (
        (
            ["--language", "xx"],
            "regard: a.wav: 'xx' is no language of this model; it knows 3, such as de, en, ja (decode.language)",
        ),
        (["decode.nbest=2", "decode.kind=beam"], "decode.strategy.n is 2, and a Whisper model finds one text"),
    ):
        assert main([*command, *options]) == 2
        error = capsys.readouterr().err.strip()
        assert words in error and error.count("\n") == 0
