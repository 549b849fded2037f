"""Transcription: silence, strategies, constraints, details, long recordings, alignment and evaluation."""

import runpy
import tracemalloc
import wave
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.runs import tiny_run

import regard
from regard.config.measured import WordTimes
from regard.config.run import change_settings
from regard.config.strategies import BestPath
from regard.errors import UserError
from regard.messages.media import Item, Sound
from regard.messages.speech import TranscribeRequest
from regard.messages.verbs import AlignRequest
from regard.parts.parallel.ctc import best_path, force_align
from regard.synthetic import morse
from regard.tasks.transcribe.task import TranscribePredictor
from regard.training import curves

RATE = morse.RATE
TINY = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 32, "model.channels": 4, "data.bins": 12, "data.hop": 10,
    "data.examples": 200, "train.steps": 1, "train.warmup": 1, "train.tokens": 1200, "train.eval_every": 1, "train.save_every": 1,
    "train.metric": "loss", "train.tensorboard": False, "device": "cpu", "decode.max_tokens": 8, "decode.beam": 3,
}  # fmt: skip
STRATEGIES = {
    "greedy": {"kind": "greedy"},
    "beam": {"kind": "beam", "ctc": 0.0},
    "joint": {"kind": "beam", "ctc": 0.3},
    "beam of CTC": {"kind": "beam", "ctc": 1.0},
    "sample": {"kind": "sample", "seed": 3, "nbest": 2},
    "ctc": {"kind": "ctc"},
}


@pytest.fixture(scope="module", autouse=True)
def few() -> Any:
    with mock.patch.object(morse, "HELD_OUT", 6), mock.patch.object(curves, "draw", lambda folder: None):
        yield


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> TranscribePredictor:
    """It writes nonsense that depends on what it reads: its weights are larger than those of a training."""
    found: TranscribePredictor = regard.train("transcribe", TINY, out=tmp_path_factory.mktemp("speech") / "run")
    with torch.no_grad():
        for weight in found.module.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return found


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> TranscribePredictor:
    """Without CTC."""
    out = tmp_path_factory.mktemp("attention") / "run"
    found: TranscribePredictor = regard.train("transcribe", {**TINY, "model.ctc.weight": 0}, out=out)
    return found


def key(text: str, seed: int = 0, **settings: Any) -> np.ndarray:
    """The samples of a text in Morse code."""
    return morse.encode_morse(text, np.random.default_rng(seed), morse.MorseSettings(24, **settings)).samples


SOUNDS = [key(text, number) for number, text in enumerate(["E", "CQ DX", "SOS", "A"])]


def texts(found: Any) -> list[str]:
    return [each["text"] for each in found]


def text_of(segment: dict[str, Any]) -> str:
    """The best text of a segment in a record."""
    text: str = segment["nbest"][0]["text"]
    return text


# --- what it reads ---------------------------------------------------------------------------------------------------


def test_channels_are_averaged_and_other_rates_resampled(predictor: TranscribePredictor) -> None:
    one, other = SOUNDS[1], np.roll(SOUNDS[1], 500)
    assert predictor.predict(np.stack([one, other], 1)) == predictor.predict((one + other) / 2)
    doubled = np.repeat(key("CQ DX", 1, snr=np.inf), 2).astype(np.float32)
    record = predictor.predict((doubled, 2 * RATE), details=True)
    assert (
        record["seconds"] == pytest.approx(len(doubled) / 2 / RATE, abs=2e-3)
        and record["alignment"]["times"][-1][1] < 9
    )


def test_silence_has_no_transcript(predictor: TranscribePredictor) -> None:
    """Also a single sample, which is no sound."""
    for silent in (np.zeros(RATE, np.float32), np.zeros(40 * RATE, np.float32), np.full(1, 0.3, np.float32)):
        with pytest.warns(UserWarning, match="1 of 1 recordings are silent and have no transcript"):
            record = predictor.predict(silent, details=True)
        assert (record["text"], record["score"], record["segments"], record["alignment"]) == ("", None, [], None)
        assert record["seconds"] == round(len(silent) / RATE, 3)
    with pytest.warns(UserWarning, match="1 of 2 recordings are silent"):
        found = predictor.predict([np.zeros(RATE, np.float32), SOUNDS[0]], nbest=2)
    assert found[0] == [""] and found[1] == predictor.predict(SOUNDS[0], nbest=2)


# --- strategies ------------------------------------------------------------------------------------------------------


def test_the_best_path_is_that_of_ctc(predictor: TranscribePredictor) -> None:
    record = predictor.predict(SOUNDS[1], kind="ctc", details=True, length_penalty=0.0, max_tokens=0)
    encoded = predictor.model.encode(predictor.sound.collate([predictor.sound.encode(SOUNDS[1])]))
    logprobs = predictor.model.ctc_logits(encoded).log_softmax(-1)
    (path,) = best_path(logprobs, None, predictor.target.pad)
    best = torch.unique_consecutive(logprobs[0].argmax(-1)).tolist()
    assert [span.token for span in path] == [token for token in best if token != predictor.target.pad]
    assert record["text"] == predictor.target.decode([[span.token for span in path]])[0]
    assert record["score"] == record["logprob"] == pytest.approx(sum(span.logprob for span in path), rel=1e-5)


def test_whisper_is_trained_from_scratch(tmp_path: Path) -> None:
    """It has no CTC, and its encoder positions are two frames."""
    settings = {key: value for key, value in TINY.items() if key != "model.channels"} | {"model.family": "whisper"}
    found: TranscribePredictor = regard.train("transcribe", settings, out=tmp_path / "run")
    record = found.predict(SOUNDS[1], details=True)
    assert regard.load(tmp_path / "run").predict(SOUNDS[1], details=True) == record
    assert [end - start for start, end in record["alignment"]["times"]] == pytest.approx(
        [0.02] * len(record["tokens"]), abs=2e-3
    )
    with pytest.raises(UserError, match='decode.strategy.kind is "ctc"; expected one of greedy, beam'):
        found.predict(SOUNDS[1], kind="ctc")
    with pytest.raises(
        UserError, match="the run reads 8000 samples per second, and a Whisper folder 16000; train with"
    ):
        regard.convert(tmp_path / "run", out=tmp_path / "hf", to="huggingface")


def test_scores_follow_the_length_penalty(predictor: TranscribePredictor) -> None:
    for decode in STRATEGIES.values():
        (result,) = predictor.predict_requests(predictor.requests(SOUNDS[1:2], length_penalty=0.7, **decode))
        assert result.logprob is not None and result.length > 0
        assert result.score == pytest.approx(result.logprob / result.length**0.7, rel=1e-5)
        assert result.score == pytest.approx(result.nbest[0].score, rel=1e-5)


def test_several_hypotheses(predictor: TranscribePredictor) -> None:
    found = predictor.predict(SOUNDS[:2], nbest=3)
    assert [len({*each}) for each in found] == [3, 3]
    record = predictor.predict(SOUNDS[0], nbest=3, details=True)
    scores = [each["score"] for each in record["nbest"]]
    assert texts(record["nbest"]) == found[0] and scores == sorted(scores, reverse=True)


def test_constraints_are_one_per_recording(predictor: TranscribePredictor) -> None:
    found = predictor.predict(SOUNDS[:2], prefix=["AB", "C"], exclude=[["E"], ["T"]])
    assert [each[:1] for each in found] == ["A", "C"] and "E" not in found[0] and "T" not in found[1]
    kept = predictor.predict(SOUNDS[0], include=["QX"])
    assert "QX" in kept
    with pytest.raises(UserError, match="decode.include: the target's vocabulary cannot spell all of 'é'"):
        predictor.predict(SOUNDS[0], include=["é"])


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        (
            {"kind": "ctc", "nbest": 2},
            "decode.strategy.n does not belong to decode.strategy=ctc, which has length_penalty",
        ),
        ({"kind": "ctc", "prefix": "A"}, "need a search, and decode.strategy=ctc is none; use beam"),
        ({"kind": "ctc", "exclude": ["A"]}, "decode.prefix and decode.exclude need a search"),
        ({"kind": "ctc", "include": ["A"]}, "decode.include needs beam search but decode.strategy is ctc"),
        ({"include": ["A"], "segment": 0.5}, "works for one segment, and the recording has more than 0.5 seconds"),
        ({"split": True}, "decode.split is not a key; `--show all` lists the keys of this task and family"),
        ({"encoder_no_repeat_ngram_size": 2}, "decode.encoder_no_repeat_ngram_size is not a key; `--show all` lists"),
        ({"segment": 0.05}, "segments of at most 0.05 seconds are too short; expected 0.1 or more"),
        ({"ctc": 1.5}, "decode.ctc is 1.5; expected at most 1"),
    ],
)
def test_settings_that_cannot_be(decode: dict[str, Any], words: str, predictor: TranscribePredictor) -> None:
    with pytest.raises(UserError, match=words):
        predictor.predict(SOUNDS[1], **decode)


def test_a_run_without_ctc(attention: TranscribePredictor) -> None:
    """Times are where the decoder attends; a weight of CTC changes nothing."""
    assert attention.model.ctc is None and not [name for name in attention.model.state_dict() if "ctc" in name]
    assert attention.predict(SOUNDS, ctc=0.9) == attention.predict(SOUNDS, ctc=0.0)
    record = attention.predict(SOUNDS[1], details=True)
    assert len(record["alignment"]["times"]) == len(record["tokens"]) > 0
    assert all(0 <= start < end <= record["seconds"] for start, end in record["alignment"]["times"])
    for what, call in (
        ("decode.strategy=ctc", lambda: attention.predict(SOUNDS[0], kind="ctc")),
        ("word times", lambda: attention.align(SOUNDS[0], "A")),
    ):
        with pytest.raises(UserError, match=f"{what} needs CTC, and this run was trained without; train with model"):
            call()


# --- details ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_details_agree_with_the_scores(name: str, predictor: TranscribePredictor) -> None:
    record = predictor.predict(SOUNDS[1], details=True, **STRATEGIES[name])
    pieces, seconds = record["tokens"], len(SOUNDS[1]) / RATE
    scored = predictor.score(SOUNDS[1], record["text"], details=True)
    ended = record["finish"] == "end"  # a text that was cut has no log-probability of END
    assert pieces and len(record["logprobs"]) == len(pieces) + ended
    assert len(record["alignment"]["times"]) == len(pieces)
    if scored["tokens"] == [*pieces, "■"]:  # spaces at the ends are not part of the text
        assert record["logprobs"] == pytest.approx(scored["logprobs"][: len(pieces) + ended], abs=1e-4)
        assert predictor.score(SOUNDS[1], record["text"]) == pytest.approx(sum(scored["logprobs"]), abs=1e-3)
    if name in ("greedy", "beam", "sample"):
        assert record["logprob"] == pytest.approx(sum(record["logprobs"]), abs=1e-3)
    starts = [start for start, _ in record["alignment"]["times"]]
    assert starts == sorted(starts) and all(0 <= start < end <= seconds for start, end in record["alignment"]["times"])
    assert [each["word"] for each in record["alignment"]["words"]] == record["text"].split()
    assert all(0 <= each["start"] < each["end"] <= seconds for each in record["alignment"]["words"])
    (segment,) = record["segments"]
    assert (segment["start"], segment["end"], text_of(segment)) == (0.0, round(seconds, 3), record["text"])


def test_more_tokens_than_positions_have_times(predictor: TranscribePredictor) -> None:
    """CTC cannot align them, so they are where the decoder attends."""
    short = SOUNDS[0][:400]
    record = predictor.predict(short, details=True, max_tokens=9, min_tokens=8, ctc=0.0)
    with pytest.warns(UserWarning, match="no text satisfies decode.* for 1 of 1 recordings"):
        assert predictor.predict(short, max_tokens=9, min_tokens=8, ctc=0.5) == ""
    assert len(record["alignment"]["times"]) == len(record["tokens"]) >= 8
    assert all(0 <= start < end <= 0.05 for start, end in record["alignment"]["times"])


def test_look_shows_where_the_decoder_attends(predictor: TranscribePredictor, tmp_path: Path) -> None:
    view = predictor.look(SOUNDS[1], "CQ")
    frames = predictor.sound.encode(SOUNDS[1])
    assert len(view.source) == -(-len(frames) // 4) and [*view.target] == ["C", "Q", "■"]
    assert float(view.source[-1]) < len(SOUNDS[1]) / RATE
    assert torch.allclose(view.cross().sum(-1), torch.ones(3), atol=1e-5)
    assert (
        view.kinds == ["encoder", "decoder", "cross"]
        and view.axes["source"].segments[0].spectrogram.shape == frames.shape
    )
    assert sum(view.logprobs) == pytest.approx(predictor.score(SOUNDS[1], "CQ"), abs=1e-3)
    own = predictor.look(SOUNDS[1])
    assert [*own.target][:-1] == predictor.predict(SOUNDS[1], kind="beam", details=True)["tokens"]
    own.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


# --- alignment -------------------------------------------------------------------------------------------------------


def test_a_known_text_has_the_score_of_ctc_and_times_of_its_words(predictor: TranscribePredictor) -> None:
    found = predictor.align(SOUNDS[1], " CQ  DX ")
    encoded = predictor.model.encode(predictor.sound.collate([predictor.sound.encode(SOUNDS[1])]))
    logprobs = predictor.model.ctc_logits(encoded)[0].log_softmax(-1)
    (ids,) = predictor.target.encode(["CQ DX"])
    _, logprob = force_align(logprobs, ids, predictor.target.pad)
    assert found.text == "CQ DX" and found.logprob == pytest.approx(logprob, rel=1e-5)
    times, words = found.alignment.times, found.alignment.words
    assert [start for start, _ in times] == sorted(start for start, _ in times) and times[-1][1] <= len(
        SOUNDS[1]
    ) / RATE
    for word, first, last in zip(words, (times[0], times[3]), (times[1], times[4]), strict=True):
        assert word.start <= first[0] and last[1] <= word.end
    assert [word.word for word in words] == ["CQ", "DX"] and words[0].end <= words[1].start


def test_texts_that_cannot_be_aligned(predictor: TranscribePredictor) -> None:
    for sound, text, words in (
        (SOUNDS[0], "é", "'é' has characters that this run does not know; write it as in the training data"),
        (SOUNDS[0], " ", "the text is empty, so there is nothing to align; give the words of the recording"),
        (SOUNDS[0][:100], "ABC", "the recording is too short for its text .*; give the words that are in it"),
    ):
        with pytest.raises(UserError, match=words):
            predictor.align(sound, text)


# --- long recordings -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short() -> TranscribePredictor:
    """A run that heard no recording of more than 3 seconds; the recipe says segments of 8."""
    found: TranscribePredictor = regard.load(tiny_run("transcribe", **TINY, data__max_seconds=3))
    return found


def test_segments_are_not_longer_than_the_recordings_of_the_training(short: TranscribePredictor) -> None:
    """A setting beyond what was heard is honored, with a notice."""
    train = morse.make_morse(TINY["data.examples"])["train"]
    heard = max(seconds for index in range(len(train)) if (seconds := train.seconds(index)) <= 3)
    assert heard <= short.longest_segment == short.run.decode.max_segment_seconds == short.measured.longest_seconds
    long = np.concatenate([SOUNDS[1]] * 2)
    words = f"one has {len(long) / RATE:.1f} seconds, and the longest of the training {short.longest_segment:g}"
    with pytest.warns(UserWarning, match=words):
        segments = short.predict(long, details=True)["segments"]
    assert (
        len(segments) > 1
        and max(each["end"] - each["start"] for each in segments) <= short.longest_segment < heard + 0.01
    )
    for asked, parts in ((0, len(segments)), (60, 1)):
        result = short.predict_requests(short.requests([long], segment=asked))[0]
        assert len(result.segments) == parts and ("which may be wrong above" in result.notices[0]) == bool(asked)
    assert not short.predict_requests(short.requests([SOUNDS[0]]))[0].notices


def test_unreliable_word_times_have_a_notice(short: TranscribePredictor) -> None:
    """The check at the end of the training finds that an untrained CTC puts tokens anywhere."""
    check = short.measured.word_times
    assert check and abs(check.tokens_in_sound - check.sound) < 0.3 and not check.reliable
    aligned = short.run_all(short.answer_align_audio, [AlignRequest(Item(audio=Sound(SOUNDS[0])), "E")])[0]
    written, plain = (short.predict_requests(short.requests([SOUNDS[0]], details))[0] for details in (True, False))
    found = f"the word times are unreliable: in validation, CTC found {check.tokens_in_sound:.0%} of the tokens"
    assert aligned.notices[0].startswith(found) and written.notices == aligned.notices and not plain.notices
    assert WordTimes(tokens_in_sound=0.8, sound=0.5).reliable and WordTimes(tokens_in_sound=0.9, sound=0.99).reliable
    assert not WordTimes(tokens_in_sound=0.7, sound=0.5).reliable


def test_long_recordings_are_cut_and_joined(predictor: TranscribePredictor) -> None:
    pause = np.random.default_rng(5).normal(0, 1e-4, int(0.6 * RATE)).astype(np.float32)
    long = np.concatenate([part for sound in SOUNDS * 2 for part in (sound, pause)])
    record = predictor.predict(long, details=True, segment=2.5, ctc=0.0)
    segments = record["segments"]
    assert len(segments) > 3 and all(each["end"] - each["start"] <= 2.5 for each in segments)
    assert record["text"] == " ".join(text for each in segments if (text := text_of(each).strip()))
    assert [each["word"] for each in record["alignment"]["words"]] == record["text"].split()
    for each in segments:
        (best,) = each["nbest"]
        scored = predictor.score(cut(long, each), best["text"], details=True)["logprobs"]
        assert sum(best["logprobs"]) == pytest.approx(sum(scored[: len(best["logprobs"])]), abs=0.01)
    for each in segments:
        inside = [word for word in record["alignment"]["words"] if each["start"] <= word["start"] < each["end"]]
        assert " ".join(word["word"] for word in inside) == text_of(each).strip()
        alone = predictor.predict(cut(long, each), details=True, ctc=0.0)
        shifted = [(word["word"], word["start"] - each["start"]) for word in inside]
        assert [word for word, _ in shifted] == [word["word"] for word in alone["alignment"]["words"]]
        assert np.allclose(
            [start for _, start in shifted], [word["start"] for word in alone["alignment"]["words"]], atol=2e-3
        )
    prefixed = predictor.predict(long, segment=2.5, prefix="QQ", details=True)
    assert [text_of(each).startswith("QQ") for each in prefixed["segments"]] == [True] + [False] * (len(segments) - 1)
    assert len(prefixed["nbest"]) == 1


def cut(samples: np.ndarray, segment: dict[str, float]) -> np.ndarray:
    return samples[round(segment["start"] * RATE) : round(segment["end"] * RATE)]


def test_memory_does_not_grow_with_the_recording(predictor: TranscribePredictor, tmp_path: Path) -> None:
    """Of 1 and of 8 minutes, written block by block."""
    rng, peaks = np.random.default_rng(2), []
    for minutes in (1, 8):
        with wave.open(str(tmp_path / f"{minutes}.wav"), "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(RATE)
            for _ in range(minutes):
                file.writeframes((rng.normal(0, 3000, 60 * RATE)).astype("<i2").tobytes())
        tracemalloc.start()
        (result,) = predictor.predict_requests(
            [TranscribeRequest(Sound(str(tmp_path / f"{minutes}.wav")), strategy=BestPath(), segment=3.0)], batch=2
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert result.seconds == pytest.approx(60 * minutes) and len(result.segments) >= 20 * minutes
        assert [each.start for each in result.segments] == sorted(each.start for each in result.segments)
    assert peaks[1] < 1.5 * peaks[0] < 2 * 60 * RATE * 4


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation(predictor: TranscribePredictor) -> None:
    metrics, found, references = predictor.evaluate_with_outputs()
    assert metrics["examples"] == 6 == len(found) and references == [*morse.make_morse(1)["test"].texts(1)]
    assert {"wer", "cer", "exact", "loss", "perplexity", "normalize"} <= {*metrics}
    assert metrics["normalize"] == "none" and metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    total = sum(predictor.score([*SOUNDS], ["E", "CQ DX", "SOS", "A"]))
    rows = [*zip(SOUNDS, ["E", "CQ DX", "SOS", "A"], strict=True)]
    own = predictor.evaluate([((sound, RATE), text) for sound, text in rows])
    assert own["loss"] == pytest.approx(-total / (10 + 4), rel=1e-4) and own["examples"] == 4
    right = [((sound, RATE), f" {predictor.predict(sound).lower()}! ") for sound in SOUNDS if predictor.predict(sound)]
    assert predictor.evaluate(right)["exact"] == 0
    normalizing = TranscribePredictor(
        change_settings(predictor.run, {"eval": {"normalize": "basic"}}),
        predictor.model,
        predictor.sound,
        predictor.target,
        predictor.device,
    )
    metrics = normalizing.evaluate(right)
    assert (metrics["exact"], metrics["wer"], metrics["normalize"]) == (1, 0, "basic")


def test_the_picture_of_the_page_is_drawn(tmp_path: Path, capsys: Any) -> None:
    namespace = runpy.run_path(str(Path(__file__).parents[2] / "docs/images/make_morse.py"))
    namespace["main"](str(tiny_run("transcribe", **TINY)), tmp_path / "morse.png")
    assert (tmp_path / "morse.png").stat().st_size > 10_000
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["alignment", "attention"]
    assert all("within the true time of their character" in line for line in lines)
