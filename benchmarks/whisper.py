"""`python -m benchmarks whisper`: transcription and log-mel features beside transformers' Whisper.

Both have the same random weights, from one Hugging Face folder, and write as many tokens without END. Before anything
is timed, their tokens in fp32 and their features are checked to be equal. On a GPU both are timed in bf16.
"""

import copy
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.adapt import precision
from regard.decode import Generator, Greedy, SearchRequest
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import whisper as family
from regard.formats.huggingface import whisper
from regard.parts import Cache, Encoded, Inputs
from regard.processors.sound.log_mel import AudioProcessor

from .report import Report, Section
from .speech import runs
from .timing import RunRound, rounds
from .translate import environment
from .translate.peers import installed

SIZES = ("whisper-tiny", "tiny")
PARTS = ("transcribing", "decoding", "features")
RATE, HOP = 16000, 160
TOLERANCE = 1e-4  # between the features
SPREAD = 1.7  # of random weights, so that attention is not uniform and tokens differ

Transcribe = Callable[[], list[list[int]]]  # the tokens of every recording, without the prompt


@dataclass(frozen=True)
class WhisperWorkload:
    """How much is measured."""

    vocab: int
    prompt: tuple[int, ...]  # START, the language, the task and "no timestamps"
    end: int
    rows: tuple[int, ...]  # recordings at once
    seconds: int
    tokens: int  # of a transcript
    model: dict[str, Any]


def make_workload(size: str) -> WhisperWorkload:
    if size == "tiny":
        return WhisperWorkload(300, (1, 3, 4, 2), 0, (1, 3), 1, 6, family.SIZES["tiny"])
    prompt = 50258, 50259, 50359, 50363  # of the multilingual models
    return WhisperWorkload(51865, prompt, 50257, (1, 16), 30, 100, family.SIZES[size])


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes, sections = resolve_device(device), list[str](), list[Section]()
    workload = make_workload(size)
    if decoders := [part for part in parts if part != "features"]:
        print(f"timing {' and '.join(decoders)} …", file=sys.stderr)
        for section in decoder_sections(decoders, workload, where, count, notes):
            print(section.table(), file=sys.stderr, flush=True)
            sections.append(section)
    if "features" in parts:
        print("timing features …", file=sys.stderr)
        for section in feature_sections(workload, count, notes):
            print(section.table(), file=sys.stderr, flush=True)
            sections.append(section)
    return Report("whisper", environment(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


# --- models ----------------------------------------------------------------------------------------------------------


def write_folder(path: Path, workload: WhisperWorkload) -> None:
    """A Hugging Face folder with random weights and a tokenizer of the control tokens only."""
    hf: Any = import_module("transformers")
    backend: Any = import_module("tokenizers")
    c = family.Config.model_validate(
        workload.model | {"vocab": workload.vocab, "source_positions": workload.seconds * RATE // HOP // 2}
    )
    control = {"pad_token_id": workload.end, "bos_token_id": workload.end, "eos_token_id": workload.end}
    control |= {"decoder_start_token_id": workload.prompt[0]}
    rules = {"suppress_tokens": None, "begin_suppress_tokens": None}
    torch.manual_seed(1)
    model: Any = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**whisper.CONFIG.write(c), **control, **rules))
    for name, each in model.named_parameters():
        if each.dim() > 1 and each.requires_grad:  # the sinusoid of the encoder has no gradient
            wide = "decoder.embed_positions" in name  # else a text repeats one token
            each.data = torch.randn_like(each) * (2.0 if wide else SPREAD * c.width**-0.5)
    model.save_pretrained(path)
    names = {"<|endoftext|>": workload.end} | {f"<|{token}|>": token for token in workload.prompt}
    backend.Tokenizer(backend.models.BPE(names, [])).save(str(path / "tokenizer.json"))
    roles = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    (path / "tokenizer_config.json").write_text(json.dumps(roles | {"tokenizer_class": "WhisperTokenizer"}))
    timestamps = {"no_timestamps_token_id": workload.vocab - 1}
    (path / "generation_config.json").write_text(json.dumps(control | timestamps))
    hf.WhisperFeatureExtractor(c.bins, chunk_length=workload.seconds).save_pretrained(path)


def load_models(workload: WhisperWorkload, device: torch.device, notes: list[str]) -> tuple[Any, Any]:
    """Ours and theirs, if it is installed, in fp32."""
    if not installed("transformers", notes):
        c = family.Config.model_validate(workload.model | {"vocab": workload.vocab})
        return family.Model(c).to(device).eval(), None
    hf: Any = import_module("transformers")
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(path := Path(folder), workload)
        ours = whisper.FORMAT.read(path).model
        theirs = hf.WhisperForConditionalGeneration.from_pretrained(path, attn_implementation="sdpa")
    return ours.to(device).eval(), theirs.to(device).eval()


class EncodedModel(nn.Module):
    """A model whose sources are encoded already."""

    def __init__(self, model: family.Model, encoded: Encoded) -> None:
        super().__init__()
        self.model, self.encoded = model, encoded

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> Cache:
        return self.model.start_encoded(self.encoded, rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.model.step(tokens, cache, valid)


# --- transcribing, and decoding alone --------------------------------------------------------------------------------


def decoder_sections(
    parts: list[str], workload: WhisperWorkload, device: torch.device, count: int, notes: list[str]
) -> Iterator[Section]:
    """Greedy search: from features to tokens, or from the output of the encoder.

    All parts of one batch size follow each other, for transformers compiles its step for each size.
    """
    torch.backends.cudnn.allow_tf32 = False  # else convolutions in fp32 would be rounded, and tokens could differ
    gpu = device.type == "cuda"
    ours, theirs = load_models(workload, device, notes)
    exact, timed = (ours, theirs), (ours, theirs)
    if gpu:
        timed = copy.deepcopy(ours), None if theirs is None else copy.deepcopy(theirs).bfloat16()
        precision.apply_precision(timed[0], "bf16")
    precision.apply_precision(ours, "fp32")
    generator = torch.Generator().manual_seed(2)
    for rows in workload.rows:
        frames = torch.randn(rows, workload.seconds * RATE // HOP, ours.bins, generator=generator).to(device)
        for part in parts:
            programs = transcribers(part, *exact, frames, workload)
            facts = [f"{workload.tokens} tokens of {rows} × {workload.seconds} s, {'bf16' if gpu else 'fp32'}"]
            facts += compare({name: go() for name, go in programs.items()}, workload)
            if gpu:
                programs = transcribers(part, *timed, frames, workload)
            work = {name: count_recordings(go, workload) for name, go in programs.items()}
            work = {name: go for name, go in work.items() if runs(name, go, notes)}
            rates = rounds(work, count, device)
            section = Section(f"{part}, {rows} at once", "recordings/s", rates, ("regard",), facts)
            if len(section.peers) > 1:
                facts.append(
                    f"the fastest peer is {max(section.peers, key=lambda name: statistics.median(rates[name]))}"
                )
            yield section


def transcribers(part: str, ours: Any, theirs: Any, frames: Tensor, workload: WhisperWorkload) -> dict[str, Transcribe]:
    """The programs by name."""
    alone = part == "decoding"
    programs = {"regard": our_transcriber(ours, frames, workload, alone)}
    if theirs is not None:
        programs["HF generate"] = their_transcriber(theirs, frames, workload, alone, {})
        if frames.is_cuda and theirs.dtype == torch.bfloat16:  # transformers compiles the step over this cache
            compiled = import_module("transformers").CompileConfig(dynamic=False)
            static = {"cache_implementation": "static", "compile_config": compiled}
            programs["HF generate, static cache, compiled"] = their_transcriber(theirs, frames, workload, alone, static)
    return programs


def our_transcriber(model: Any, frames: Tensor, workload: WhisperWorkload, alone: bool) -> Transcribe:
    sources: list[Inputs | None] = [Inputs("frames", row[None]) for row in frames]
    context = model.decoder.context
    if alone:
        with torch.no_grad():
            model = EncodedModel(model, model.encode(Inputs("frames", frames)))
        sources = [None] * len(frames)

    def go() -> list[list[int]]:
        generator = Generator(model, workload.end, rows=len(sources), context=context)
        limits = {"max_tokens": workload.tokens, "min_tokens": workload.tokens}
        handles = [generator.submit(SearchRequest(workload.prompt, each, Greedy(), **limits)) for each in sources]
        generator.drain()
        return [handle.result()[0].tokens for handle in handles]

    return go


def their_transcriber(
    model: Any, frames: Tensor, workload: WhisperWorkload, alone: bool, options: dict[str, Any]
) -> Transcribe:
    """Of every model of transformers: Whisper's own `generate` calls it, with more work before and after."""
    hf: Any = import_module("transformers")
    features = frames.transpose(1, 2).contiguous().to(model.dtype)
    prompt = torch.tensor([workload.prompt] * len(frames), device=frames.device)
    given: dict[str, Any] = {"input_features": features}
    if alone:
        with torch.no_grad():
            given = {"encoder_outputs": model.get_encoder()(features)}
    plain = hf.GenerationConfig(
        decoder_start_token_id=workload.prompt[0], eos_token_id=workload.end, pad_token_id=workload.end,
        max_new_tokens=workload.tokens, min_new_tokens=workload.tokens, do_sample=False, num_beams=1, **options,
    )  # fmt: skip

    @torch.no_grad()
    def go() -> list[list[int]]:
        found = hf.GenerationMixin.generate(model, **given, decoder_input_ids=prompt, generation_config=plain)
        texts: list[list[int]] = found[:, len(workload.prompt) :].tolist()
        return texts

    return go


def compare(texts: dict[str, list[list[int]]], workload: WhisperWorkload) -> list[str]:
    """Refuse programs that differ in fp32; return the facts for the report."""
    for name, found in texts.items():
        check_lengths(name, found, workload)
        if found != texts["regard"]:
            equal = sum(one == other for one, other in zip(found, texts["regard"], strict=True))
            raise UserError(f"{name} gave {equal} of {len(found)} texts as regard does in fp32, so nothing was timed")
    different = len({token for text in texts["regard"] for token in text})
    return [f"in fp32, {' and '.join(texts)} give the same tokens, {different} different ones"] if texts else []


def check_lengths(name: str, texts: list[list[int]], workload: WhisperWorkload) -> None:
    if any(len(text) != workload.tokens for text in texts):
        raise UserError(f"{name} gave {len(texts[0])} tokens instead of {workload.tokens}, so nothing was timed")


def count_recordings(go: Transcribe, workload: WhisperWorkload) -> RunRound:
    def run_round(number: int) -> float:
        texts = go()
        check_lengths("a program", texts, workload)
        return float(len(texts))

    return run_round


# --- features --------------------------------------------------------------------------------------------------------


def feature_sections(workload: WhisperWorkload, count: int, notes: list[str]) -> Iterator[Section]:
    """Log-mel features of a batch, on the CPU."""
    ours = AudioProcessor(seconds=workload.seconds)
    repeats = 5  # a round of one clip would be short
    for rows in workload.rows:
        rng = np.random.default_rng(1)
        sounds = [rng.normal(0, 0.1, RATE * workload.seconds).astype(np.float32) for _ in range(rows)]
        programs: dict[str, Callable[[], Tensor]] = {"regard": lambda sounds=sounds: our_features(ours, sounds)}
        facts = [f"{rows} × {workload.seconds} s"]
        if installed("transformers", notes):
            hf: Any = import_module("transformers")
            theirs = hf.WhisperFeatureExtractor(chunk_length=workload.seconds)
            programs["HF WhisperFeatureExtractor"] = lambda theirs=theirs, sounds=sounds: their_features(theirs, sounds)
            found, expected = (go() for go in programs.values())
            difference = float((found - expected.transpose(1, 2)).abs().max())
            if found.shape != expected.transpose(1, 2).shape or difference > TOLERANCE:
                raise UserError(f"the features differ by {difference:.1e}, so nothing was timed")
            facts.append(f"features differ by at most {difference:.1e}")

        def run_round(go: Callable[[], Tensor], rows: int = rows) -> RunRound:
            def repeat(number: int) -> float:
                for _ in range(repeats):
                    go()
                return float(rows * workload.seconds * repeats)

            return repeat

        rates = rounds({name: run_round(go) for name, go in programs.items()}, count, torch.device("cpu"))
        yield Section(f"features, {rows} at once", "seconds of sound/s", rates, ("regard",), facts)


def our_features(processor: AudioProcessor, sounds: list[np.ndarray]) -> Tensor:
    return processor.collate([processor.encode(sound) for sound in sounds]).values


def their_features(extractor: Any, sounds: list[np.ndarray]) -> Tensor:
    features: Tensor = extractor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    return features
