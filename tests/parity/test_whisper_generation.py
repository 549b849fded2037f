"""Whisper's generation beside transformers: timestamp rules, tokens, languages, long recordings, fallback, word times."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.whisper import control_ids, write_multilingual
from prototypes.checks import close
from transformers.generation.logits_process import WhisperNoSpeechDetection, WhisperTimeStampLogitsProcessor
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

import regard
from regard.config.decode_sound import Windows
from regard.config.strategies import WhisperBeam
from regard.decode import Beam, Generator, Greedy, Hypothesis, SearchRequest
from regard.decode.engine.passes import Trace, encoded_rows
from regard.decode.engine.wrappers import EncodedSources
from regard.decode.search.filters import StepContext
from regard.decode.search.timestamps import TimestampRules
from regard.errors import UserError
from regard.formats.huggingface.whisper import FORMAT
from regard.parts import Inputs
from regard.processors.sound.log_mel import AudioProcessor
from regard.processors.sound.windows import FrameWindows
from regard.processors.text.whisper import language_codes
from regard.tasks.whisper import transcriber as whisper_transcriber
from regard.tasks.whisper.task import WhisperPredictor
from regard.tasks.whisper.windows import check_quality
from regard.tasks.whisper.word_times import FILTER, align_tokens, alignment_weights, median_filter, warp

SECONDS, RATE = 6, 16000
IDS = control_ids(SECONDS)
PLAIN = {
    "temperatures": (0.0,), "compression_ratio_threshold": 0, "logprob_threshold": 0, "no_speech_threshold": 1.0,
    "kind": "greedy", "condition_on_previous": False,
}  # fmt: skip  # no threshold


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    write_multilingual(path, SECONDS, 20, seed=1)
    return path


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[WhisperPredictor, Any, Any]:
    """Our predictor, their model and their features."""
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    return regard.load(folder), theirs, hf.WhisperFeatureExtractor.from_pretrained(folder)


def noise(seconds: float, seed: int = 1) -> np.ndarray:
    """Noise that swells and fades."""
    rng, count = np.random.default_rng(seed), int(seconds * RATE)
    return (rng.normal(0, 0.1, count) * (1 + np.sin(np.arange(count) / 7000))).astype(np.float32)


def whole_features(extractor: Any, sounds: list[np.ndarray]) -> dict[str, Any]:
    about = {"sampling_rate": RATE, "return_tensors": "pt", "return_attention_mask": True}
    found: dict[str, Any] = extractor(sounds, truncation=False, padding="longest", **about)
    return found


@torch.no_grad()
def their_segments(theirs: Any, features: dict[str, Any], **settings: Any) -> list[list[dict[str, Any]]]:
    asked = {"task": "transcribe", "return_timestamps": True, "return_segments": True, "temperature": 0.0} | settings
    found: list[list[dict[str, Any]]] = theirs.generate(**features, **asked)["segments"]
    return found


# --- timestamp rules -------------------------------------------------------------------------------------------------

FIRST, END = IDS["<|0.00|>"], IDS["<|endoftext|>"]


def history(length: int, rng: np.random.Generator) -> list[int]:
    """Text and timestamps that do not decrease, in any order."""
    times = iter(np.sort(rng.integers(FIRST, FIRST + SECONDS * 50 + 1, length)).tolist())
    return [next(times) if rng.random() < 0.5 else int(rng.integers(END)) for _ in range(length)]


@pytest.mark.parametrize("latest", [None, 0, 20])
def test_timestamp_rules_equal_transformers(latest: int | None) -> None:
    """On random scores and texts of all lengths together."""
    rng, vocab = np.random.default_rng(1), max(IDS.values()) + 1
    rows = [[history(length, rng), history(length, rng)] for length in (0, 1, 2, 3, 4, 7, 12, 0, 1, 2, 5)]
    scores = 3 * torch.randn(len(rows), 2, vocab)
    scores[::2, :, FIRST:] -= 6  # text is as likely as a timestamp
    buffer = torch.randint(vocab, (len(rows), 2, 15))  # what follows the text so far is not read
    for row, texts in enumerate(rows):
        buffer[row, :, : len(texts[0])] = torch.tensor(texts)
    lengths = torch.tensor([len(texts[0]) for texts in rows])
    context = StepContext(
        12, torch.ones_like(lengths), buffer[:, :, :12], torch.arange(len(rows)), lengths, lengths, buffer
    )
    found = TimestampRules(FIRST, END, FIRST - 1, latest)(scores.clone(), context)
    settings = SimpleNamespace(
        no_timestamps_token_id=FIRST - 1, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=latest
    )
    for row, texts in enumerate(rows):
        theirs = WhisperTimeStampLogitsProcessor(settings, begin_index=2)
        ids = torch.tensor([[3, 3, *text] for text in texts])
        expected = theirs(ids, scores[row].log_softmax(-1))
        assert torch.equal(found[row].isinf(), expected.isinf())
        kept = ~expected.isinf()
        close(found[row][kept], scores[row][kept])
    texts_left = (~found[:, :, :FIRST].isinf()).any(-1)
    assert texts_left.any() and not texts_left.all()


def test_timestamp_rules_in_open_batches(pair: tuple[WhisperPredictor, Any, Any]) -> None:
    """Requests with prompts of different lengths that join and leave have the texts that they have alone."""
    ours, _, _ = pair
    encoded = ours.model.encode(ours.sound.collate([ours.sound.encode(noise(SECONDS, seed)) for seed in range(5)]))
    sources, filters = [Inputs("frames", row) for row in encoded_rows(encoded)], (ours.transcriber.timestamp_rules,)
    previous = [[], [5, 6, 7], [9], [], [20, 21, 22, 23]]
    prompts = [ours.target.prompt("de", "transcribe", True, each) for each in previous]
    strategies = [Greedy(), Beam(2), Greedy(), Greedy(), Beam(2)]
    requests = [
        SearchRequest(prompt, source, strategy, 10, filters, rules=ours.plan.rules(ours.run.decode))
        for prompt, source, strategy in zip(prompts, sources, strategies, strict=True)
    ]
    alone, together = [], []
    encoded_model = EncodedSources(ours.model)
    for request in requests:
        closed = Generator(encoded_model, ours.target.end, (), 1, None, ours.context)
        alone.append(closed.submit(request).result()[0].tokens)
    opened = Generator(encoded_model, ours.target.end, (), 4, 24, ours.context)
    handles = []
    for request in requests:
        handles.append(opened.submit(request))
        opened.tick()
    together = [handle.result()[0].tokens for handle in handles]
    assert together == alone and all(FIRST <= tokens[0] <= FIRST + 20 for tokens in together)
    assert len({*map(tuple, alone)}) > 3


# --- tokens of single windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_tokens_of_windows_equal_transformers(beams: int, pair: tuple[WhisperPredictor, Any, Any]) -> None:
    """Suppressed tokens and timestamp rules; windows are filled completely, so that both decode the same frames."""
    ours, theirs, extractor = pair
    sounds = [noise(SECONDS, seed) for seed in range(4)]
    features = {"input_features": whole_features(extractor, sounds)["input_features"]}
    expected = their_segments(theirs, features, language="de", num_beams=beams)
    strategy = {"kind": "beam", "beam": beams, "early_stopping": "heuristic"} if beams > 1 else {}
    found = ours.predict_requests(ours.requests(sounds, language="de", **PLAIN | strategy))
    tokens = [[each["tokens"].tolist() for each in own] for own in expected]
    assert [[[*each.ids] for each in result.segments] for result in found] == tokens
    used = {token for own in tokens for segment in own for token in segment}
    assert len({*map(str, tokens)}) > 2 and not used & {3, 9, 11, FIRST - 1}


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_tokens_without_timestamps_equal_transformers(beams: int, pair: tuple[WhisperPredictor, Any, Any]) -> None:
    """Of the task translate, for recordings shorter than a window too."""
    ours, theirs, extractor = pair
    sounds = [noise(length, seed) for seed, length in enumerate((SECONDS, 1.3, 2.71))]
    mels = extractor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    suppressed = [3, 9, *range(FIRST, max(IDS.values()) + 1)]  # random weights would write timestamps
    expected = theirs.generate(
        mels, language="ja", task="translate", num_beams=beams, suppress_tokens=suppressed, temperature=0.0
    )
    strategy = {"kind": "beam", "beam": beams, "early_stopping": "heuristic"} if beams > 1 else {}
    asked = PLAIN | strategy | {"timestamps": False, "task": "translate", "suppress_tokens": suppressed}
    found = ours.predict_requests(ours.requests(sounds, language="ja", **asked))
    rows = [[token for token in row if token != END] for row in expected.tolist()]
    assert [[*result.segments[0].ids] for result in found] == rows
    assert len({*map(str, rows)}) == 3


def test_detected_languages_equal_transformers(tmp_path: Path) -> None:
    """By the first window of every recording, also in a batch of several."""
    theirs = write_multilingual(tmp_path, 4, 24, seed=3)
    ours, extractor = regard.load(tmp_path), hf.WhisperFeatureExtractor.from_pretrained(tmp_path)
    sounds = [noise(4, seed) * 10.0**-scale for scale in range(4) for seed in range(3)]
    mels = whole_features(extractor, sounds)["input_features"]
    expected = theirs.detect_language(mels, num_segment_frames=mels.size(2)).tolist()
    found = ours.predict_requests(ours.requests([*sounds, noise(9)], **PLAIN, max_tokens=1))
    languages = [control_ids(4)[f"<|{result.language}|>"] for result in found]
    assert languages[:-1] == expected and len({*expected}) > 1


def test_names_of_languages_are_those_of_transformers() -> None:
    codes = language_codes()
    assert {name: codes.get(name) for name in TO_LANGUAGE_CODE} == TO_LANGUAGE_CODE


FORCED = [[1, IDS["<|ja|>"]], [2, IDS["<|translate|>"]], [3, FIRST - 1]]
FIXED: list[tuple[dict[str, Any], dict[str, Any]]] = [  # keys of generation_config.json and of config.json
    ({"language": "<|ja|>", "task": "translate", "return_timestamps": False}, {}),
    ({"language": "German", "return_timestamps": True}, {}),
    ({"task": "translate", "return_timestamps": False, "forced_decoder_ids": FORCED}, {}),
    ({"forced_decoder_ids": FORCED}, {}),
    ({"forced_decoder_ids": FORCED, "return_timestamps": True}, {"forced_decoder_ids": [[1, IDS["<|de|>"]]]}),
    ({"forced_decoder_ids": [[1, None], [2, IDS["<|translate|>"]]], "return_timestamps": False}, {}),
    ({"return_timestamps": False}, {"forced_decoder_ids": FORCED}),
]


@pytest.mark.parametrize(("generation", "config"), FIXED)
@torch.no_grad()
def test_language_task_and_timestamps_of_a_folder(
    generation: dict[str, Any], config: dict[str, Any], tmp_path: Path
) -> None:
    """As `generate` without arguments writes."""
    stamped = generation.get("return_timestamps", False)
    suppressed = [3, 9, *(() if stamped else range(FIRST, max(IDS.values()) + 1))]  # random weights would write them
    write_multilingual(tmp_path, SECONDS, 20, seed=1, suppress_tokens=suppressed, **generation)
    about = tmp_path / "config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | config))
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path).eval()
    sounds = [noise(SECONDS, seed) for seed in range(3)]
    extractor = hf.WhisperFeatureExtractor.from_pretrained(tmp_path)
    rows = theirs.generate(whole_features(extractor, sounds)["input_features"], temperature=0.0).tolist()
    ours = regard.load(tmp_path)
    found = ours.predict_requests(ours.requests(sounds, **PLAIN))
    written = [[token for segment in result.segments for token in segment.ids] for result in found]
    assert written == [[token for token in row if token != END] for row in rows] and len({*map(str, written)}) > 1
    unfixed = ours.predict_requests(ours.requests(sounds, language="", task="transcribe", timestamps=True, **PLAIN))
    assert [result.text for result in found] != [result.text for result in unfixed]


@pytest.mark.parametrize(
    ("generation", "words"),
    [
        ({"language": ["de", "ja"]}, r"language is \['de', 'ja'\]; expected one code or English name"),
        ({"language": "tlh"}, r"'tlh' is no language of this model; .* \(language of generation_config.json\)"),
        ({"task": "summarize"}, "task is 'summarize'"),
        ({"forced_decoder_ids": [[1, 7]]}, "forced_decoder_ids has the token 7 at position 1; expected a language, a"),
        ({"forced_decoder_ids": FORCED[::2]}, "at position 3; expected a language, a task and no timestamps, in this"),
        ({"forced_decoder_ids": [[1, FORCED[1][1]], [2, FORCED[0][1]]]}, "at position 2; expected a language, a task"),
    ],
)
def test_fixed_prompts_that_cannot_be_read(generation: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_multilingual(tmp_path, SECONDS, 20, **generation)
    with pytest.raises(UserError, match=words):
        regard.load(tmp_path)


@pytest.mark.parametrize("timestamps", [True, False, "long"])
def test_an_export_keeps_language_task_and_timestamps(
    timestamps: bool | str, pair: tuple[WhisperPredictor, Any, Any], folder: Path, tmp_path: Path
) -> None:
    fixed = {"decode.language": "ja", "decode.task": "translate", "decode.windows.timestamps": timestamps}
    run = regard.load(folder, fixed | {"decode.strategy": "beam", "decode.beam": 3})
    FORMAT.write(run, tmp_path / "out")
    again = regard.load(tmp_path / "out")
    assert again.run.decode == run.run.decode
    sounds, asked = [noise(7), noise(2, 2)], {key: value for key, value in PLAIN.items() if key != "kind"}
    texts = run.predict(sounds, **asked)
    assert again.predict(sounds, **asked) == texts != pair[0].predict(sounds, **asked)
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "out").generation_config
    assert (theirs.language, theirs.task, theirs.return_timestamps) == ("<|ja|>", "translate", timestamps is True)


def test_a_folder_without_timestamps_has_them_in_long_recordings(tmp_path: Path) -> None:
    write_multilingual(tmp_path, SECONDS, 20, seed=1, return_timestamps=False)
    ours, sounds = regard.load(tmp_path), [noise(SECONDS), noise(3 * SECONDS, 2)]
    assert ours.run.decode.windows.timestamps == "long"
    plain = {key: value for key, value in PLAIN.items() if key != "timestamps"}
    found, never, always = (
        [
            [segment.ids for segment in result.segments]
            for result in ours.predict_requests(ours.requests(sounds, **given))
        ]
        for given in (plain, plain | {"timestamps": False}, plain | {"timestamps": True})
    )
    assert found[0] == never[0] != always[0] and found[1] == always[1] != never[1]


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        ({}, WhisperBeam(3)),
        ({"length_penalty": 0.5}, WhisperBeam(3, length_penalty=0.5)),
        ({"early_stopping": "never"}, WhisperBeam(3, early_stopping="never")),
        ({"num_beams": 2}, WhisperBeam(3, early_stopping="heuristic")),
        ({"num_beams": 2, "early_stopping": True}, WhisperBeam(3)),
    ],
)
@torch.no_grad()
def test_beams_that_a_user_chooses(keys: dict[str, Any], chosen: Beam, tmp_path: Path) -> None:
    """The keys of beams that a folder has hold; without any, a search ends at as many finished texts as beams."""
    theirs = write_multilingual(tmp_path, SECONDS, 20, seed=1, **keys)
    predictor = regard.load(tmp_path, {"decode.beam": 3, "decode.strategy": "beam"})
    assert predictor.run.decode.strategy == chosen
    sounds = [noise(SECONDS, seed) for seed in range(4)]
    extractor = hf.WhisperFeatureExtractor.from_pretrained(tmp_path)
    features = {"input_features": whole_features(extractor, sounds)["input_features"]}
    early = {"first": True, "never": "never", "heuristic": False}[chosen.early_stopping]
    asked = {"num_beams": 3, "early_stopping": early, "length_penalty": chosen.length_penalty}
    expected = their_segments(theirs, features, language="de", **asked)
    plain = {key: value for key, value in PLAIN.items() if key != "kind"}
    found = predictor.predict_requests(predictor.requests(sounds, language="de", **plain))
    tokens = [[each["tokens"].tolist() for each in own] for own in expected]
    assert [[[*each.ids] for each in result.segments] for result in found] == tokens


# --- long recordings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conditioned", [False, True])
def test_three_minutes_equal_transformers(conditioned: bool, pair: tuple[WhisperPredictor, Any, Any]) -> None:
    """Tokens and times of all segments. Times end with the recording."""
    ours, theirs, extractor = pair
    sound = noise(180)
    features = whole_features(extractor, [sound])
    (expected,) = their_segments(theirs, features, language="de", condition_on_prev_tokens=conditioned)
    (found,) = ours.predict_requests(
        ours.requests([sound], language="de", **PLAIN | {"condition_on_previous": conditioned})
    )
    assert [[*each.ids] for each in found.segments] == [each["tokens"].tolist() for each in expected]
    for ours_, theirs_ in zip(found.segments, expected, strict=True):
        times = [min(float(theirs_[side]), 180.0) for side in ("start", "end")]
        assert [ours_.start, ours_.end] == pytest.approx(times, abs=1e-3)
    assert found.seconds == 180 and len(expected) > 60 and len({each.ids for each in found.segments}) > 20


def test_a_prompt_equals_transformers(pair: tuple[WhisperPredictor, Any, Any]) -> None:
    """The words of decode.prompt stand before the text of every window."""
    ours, theirs, extractor = pair
    sound, prompt = noise(11), torch.tensor([IDS["<|startofprev|>"], *ours.target.encode_words("the old cat", "de")])
    features = whole_features(extractor, [sound])
    for conditioned in (False, True):
        settings = {"language": "de", "condition_on_prev_tokens": conditioned, "prompt_ids": prompt}
        (expected,) = their_segments(theirs, features, **settings)
        asked = PLAIN | {"prompt": "the old  cat", "condition_on_previous": conditioned}
        (found,) = ours.predict_requests(ours.requests([sound], language="de", **asked))
        assert [[*each.ids] for each in found.segments] == [each["tokens"].tolist() for each in expected]


@pytest.mark.parametrize("seconds", [6.02, 9.1234, 20])
def test_frames_of_windows_equal_transformers(seconds: float) -> None:
    """Those of the whole recording, also of one that ends within a frame, from any frame on."""
    sound, samples = AudioProcessor(seconds=SECONDS), noise(seconds)
    extractor = hf.WhisperFeatureExtractor(chunk_length=SECONDS)
    expected = whole_features(extractor, [samples])["input_features"][0].T
    windows = FrameWindows(samples, sound)
    assert (windows.total, windows.size) == (len(expected), SECONDS * 100)
    for first in sorted({0, 1, 250, 599, 600, windows.total - 601, windows.total - 1}):
        if 0 <= first < windows.total:
            close(torch.from_numpy(windows(first)), expected[first : first + windows.size])


# --- fallback --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [None, 1.2])
@pytest.mark.parametrize("threshold", [None, -2.0])
@pytest.mark.parametrize("silence", [None, 0.4])
def test_fallback_decisions_equal_transformers(
    ratio: float | None, threshold: float | None, silence: float | None, pair: tuple[WhisperPredictor, Any, Any]
) -> None:
    """On the same hypotheses: likely and unlikely, repetitive and not, spoken and silent, ended and cut."""
    if silence is not None and threshold is None:
        pytest.skip("transformers reads a log-probability that it has not computed")
    theirs, vocab = pair[1], max(IDS.values()) + 1
    settings = SimpleNamespace(
        compression_ratio_threshold=ratio, logprob_threshold=threshold, no_speech_threshold=silence
    )
    own = Windows(
        compression_ratio_threshold=ratio or 0, logprob_threshold=threshold or 0,
        no_speech_threshold=1.0 if silence is None else silence,
    )  # fmt: skip
    rng, decisions = np.random.default_rng(2), set()
    for number in range(48):
        repeats, likely, ended, temperature = number % 2, number // 2 % 2, number // 4 % 2, (0.0, 0.6, 1.0)[number % 3]
        text = [7, 8] * 20 if repeats else rng.integers(END, size=40).tolist()
        tokens = torch.tensor([*text, END] if ended else text)
        logits = torch.randn(len(tokens), vocab)
        logits[torch.arange(len(tokens)), tokens] += 8 if likely else 0
        logprob = float(logits.log_softmax(1)[torch.arange(len(tokens)), tokens].sum())
        processor = WhisperNoSpeechDetection(FIRST - 2, 3)
        processor._no_speech_prob = [0.9, float(rng.random())]
        outputs = [{}, {"scores": list(logits / (temperature or 1))}]
        expected = theirs._need_fallback(tokens, outputs, 1, [processor], settings, vocab, temperature)
        speech = None if silence is None else processor._no_speech_prob[1]
        verdict = check_quality(Hypothesis(text, 0.0, logprob, bool(ended)), speech, own, END, vocab)
        assert (verdict.again, verdict.skip) == expected
        assert verdict.ratio == theirs._retrieve_compression_ratio(tokens, vocab)
        assert verdict.logprob == pytest.approx(
            float(theirs._retrieve_avg_logprobs(outputs[1]["scores"], tokens, temperature)), abs=1e-4
        )
        decisions.add(expected)
    assert len(decisions) == 1 + (ratio is not None or threshold is not None) + (silence is not None)


@pytest.fixture
def judged(pair: tuple[WhisperPredictor, Any, Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Log-probability and no-speech probability of every window, ours and theirs."""
    own: list[tuple[float, float]] = []
    other: list[tuple[float, float]] = []
    theirs = pair[1]
    decide = theirs._need_fallback

    def record_own(found: Hypothesis, no_speech: float, *rest: Any) -> Any:
        verdict = check_quality(found, no_speech, *rest)
        own.append((verdict.logprob, no_speech))
        return verdict

    def record_other(tokens: Any, outputs: Any, index: int, processors: Any, *rest: Any) -> Any:
        mean = theirs._retrieve_avg_logprobs(outputs[index]["scores"], tokens, rest[-1])
        (detector,) = [each for each in processors if isinstance(each, WhisperNoSpeechDetection)]
        other.append((float(mean), float(detector.no_speech_prob[index])))
        return decide(tokens, outputs, index, processors, *rest)

    with (
        mock.patch.object(whisper_transcriber, "check_quality", record_own),
        mock.patch.object(theirs, "_need_fallback", record_other),
    ):
        yield own, other


@pytest.mark.parametrize("conditioned", [False, True])
def test_windows_that_are_skipped_equal_transformers(
    conditioned: bool, pair: tuple[WhisperPredictor, Any, Any], judged: tuple[list[Any], list[Any]]
) -> None:
    """Log-probabilities and no-speech probabilities of all windows are equal, so that the same ones are left out."""
    ours, theirs, extractor = pair
    sound, own, other = noise(40, 2), *judged
    ours.predict(sound, language="de", **PLAIN | {"no_speech_threshold": 0.999, "logprob_threshold": -99})
    threshold, silence = (
        float(np.quantile(each, at)) for each, at in zip(zip(*own, strict=True), (0.7, 0.3), strict=True)
    )
    own.clear()
    settings = {"logprob_threshold": threshold, "no_speech_threshold": silence}
    features = whole_features(extractor, [sound])
    (expected,) = their_segments(theirs, features, language="de", condition_on_prev_tokens=conditioned, **settings)
    settings["condition_on_previous"] = conditioned
    (found,) = ours.predict_requests(ours.requests([sound], language="de", **PLAIN | settings))
    assert np.allclose(own, other, atol=1e-4) and len(own) > 6
    skipped = [mean < threshold and speech > silence for mean, speech in own]
    assert any(skipped) and not all(skipped)
    assert [[*each.ids] for each in found.segments] == [each["tokens"].tolist() for each in expected]


# --- word times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (7, 1), (9, 4), (5, 40), (20, 75)])
def test_time_warping_equals_transformers(rows: int, columns: int) -> None:
    """Where several paths cost the same, ours costs no more: transformers does not always take the least."""
    cost = np.random.default_rng(rows).normal(size=(rows, columns))
    for own, theirs in zip(warp(cost), _dynamic_time_warping(cost), strict=True):
        assert own.tolist() == theirs.tolist()
    for tied in (np.round(cost), np.zeros_like(cost)):
        path, other = warp(tied), _dynamic_time_warping(tied)
        assert tied[path].sum() <= tied[other].sum()
        steps = np.abs(np.diff(np.stack(path)))
        assert (path[0][0], path[1][0], path[0][-1], path[1][-1]) == (0, 0, rows - 1, columns - 1)
        assert ((steps <= 1).all(0) & steps.any(0)).all()


@pytest.mark.parametrize("positions", [1, 3, 4, 5, 50])
def test_median_filter_equals_transformers(positions: int) -> None:
    values = torch.randn(3, 5, positions)
    assert torch.equal(median_filter(values), _median_filter(values, FILTER))


@torch.no_grad()
def test_token_times_equal_transformers(pair: tuple[WhisperPredictor, Any, Any]) -> None:
    """Of a window without timestamps, by heads that the folder names."""
    ours, theirs, extractor = pair
    heads = [[0, 1], [1, 3]]
    mels = whole_features(extractor, [noise(SECONDS, 5)])["input_features"]
    tokens = torch.tensor([[*ours.target.prompt("de", "transcribe", False), *range(40, 52)]])
    theirs.set_attn_implementation("eager")
    maps = theirs(input_features=mels, decoder_input_ids=tokens, output_attentions=True).cross_attentions
    theirs.set_attn_implementation("sdpa")
    prompt, text = tokens[0, :4].tolist(), tokens[0, 4:].tolist()
    trace = Trace(ours.sound.collate([mels[0].T.numpy()]), tuple(prompt), tuple(text))
    (traced,) = trace.run([trace], ours.engine.context)
    own = [weights for _, weights in traced.cross]
    for mine, other in zip(own, maps, strict=True):
        close(mine, other[0, :, len(prompt) - 1 :])
    outputs = hf.modeling_outputs.Seq2SeqLMOutput(cross_attentions=[maps])
    outputs.sequences = tokens
    rows = theirs._extract_token_timestamps(outputs, heads, num_input_ids=len(prompt) - 1)[0, len(prompt) - 1 :]
    found = align_tokens(alignment_weights(own, heads))
    times = [round(first * 0.02, 2) for first, _ in found]
    assert times[1:] == pytest.approx(rows[1 : len(text)].tolist(), abs=1e-4)  # there the first one begins at 0
    assert len({first for first, _ in found}) > 3
