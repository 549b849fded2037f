"""`python -m benchmarks speech`: training and decoding of a Speech-Transformer beside Hugging Face's Speech2Text.

Both have the same width, layers, heads, inner width and vocabulary, read the same frames and write as many tokens.
Their convolutions differ, so there are no equal weights. On a GPU both use bf16 and are compiled for training.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.adapt import precision
from regard.config.losses import SmoothedLoss
from regard.data.batch import Batch
from regard.decode import Beam, Generator, Greedy, SearchRequest
from regard.decode.engine.wrappers import JointCTC
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import speech
from regard.parts import Inputs
from regard.processors.sound.filterbank import FilterbankProcessor
from regard.tasks.objectives import Seq2SeqCtcObjective

from .report import Report, Section
from .timing import RunRound, rounds
from .translate import environment
from .translate.peers import installed

SIZES = ("small", "tiny")
PARTS = ("training", "decoding", "frames")
PAD, START, END = 1, 2, 3  # of both models
SECONDS_PER_FRAME = 0.01
BEAM = 5
CTC = 0.3


@dataclass(frozen=True)
class SpeechWorkload:
    """How much is measured."""

    vocab: int
    batch: int  # recordings of a training step
    rows: int  # recordings that are decoded together
    frames: int  # of the longest recording; the shortest has three quarters
    tokens: int  # of a transcript
    repeats: int  # of a training step in a round
    model: dict[str, Any]


def make_workload(size: str, device: torch.device) -> SpeechWorkload:
    if size == "tiny":
        return SpeechWorkload(60, 2, 2, 80, 4, 1, {**speech.SIZES["tiny"], "width": 32, "inner": 64})
    if device.type == "cuda":
        return SpeechWorkload(10000, 32, 16, 1500, 48, 5, speech.SIZES["small"])
    return SpeechWorkload(10000, 4, 4, 800, 24, 1, speech.SIZES["small"])


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes, sections = resolve_device(device), list[str](), list[Section]()
    workload = make_workload(size, where)
    measures = {"training": training_sections, "decoding": decoding_sections, "frames": frame_sections}
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        for section in measures[part](workload, where, count, notes):
            print(section.table(), file=sys.stderr, flush=True)
            sections.append(section)
    return Report("speech", environment(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


# --- models ----------------------------------------------------------------------------------------------------------


def our_model(workload: SpeechWorkload, ctc: float = 0.0) -> Any:
    c = speech.Config.model_validate(workload.model | {"vocab": workload.vocab, "ctc": {"weight": ctc}})
    torch.manual_seed(1)
    return speech.Model(c)


def their_model(workload: SpeechWorkload) -> Any:
    hf: Any = import_module("transformers")
    hf.utils.logging.set_verbosity_error()
    shape = workload.model
    config = hf.Speech2TextConfig(
        vocab_size=workload.vocab, d_model=shape["width"], encoder_layers=shape["layers"],
        decoder_layers=shape["decoder_layers"], encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"], encoder_ffn_dim=shape["inner"], decoder_ffn_dim=shape["inner"],
        max_source_positions=6000, max_target_positions=1024, pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
        decoder_start_token_id=START, dropout=0.1, conv_channels=1024 if shape["width"] >= 256 else 64,
    )  # fmt: skip
    torch.manual_seed(1)
    return hf.Speech2TextForConditionalGeneration(config)


def sample_batch(workload: SpeechWorkload, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Frames (rows, frames, 80), which of them are valid, and tokens with END (rows, tokens)."""
    rng = np.random.default_rng(1)
    lengths = torch.from_numpy(rng.integers(workload.frames * 3 // 4, workload.frames + 1, rows))
    lengths[0] = workload.frames
    valid = torch.arange(workload.frames) < lengths[:, None]
    frames = torch.from_numpy(rng.normal(size=(rows, workload.frames, 80)).astype(np.float32)) * valid[:, :, None]
    tokens = torch.from_numpy(rng.integers(4, workload.vocab, (rows, workload.tokens)))
    tokens[:, -1] = END
    return frames, valid, tokens


# --- training --------------------------------------------------------------------------------------------------------


def training_sections(
    workload: SpeechWorkload, device: torch.device, count: int, notes: list[str]
) -> Iterator[Section]:
    frames, valid, tokens = (each.to(device) for each in sample_batch(workload, workload.batch))
    seconds = float(valid.sum()) * SECONDS_PER_FRAME
    programs = {
        "regard": our_step(our_model(workload), frames, valid, tokens, device),
        "regard with CTC": our_step(our_model(workload, CTC), frames, valid, tokens, device),
    }
    if installed("transformers", notes):
        programs["HF Speech2Text"] = their_step(their_model(workload), frames, valid, tokens, device)

    def run_round(step: Callable[[], Tensor]) -> RunRound:
        def go(number: int) -> float:
            for _ in range(workload.repeats):
                loss = step()
            if not bool(loss.isfinite()):
                raise UserError(f"the loss is {float(loss)}; nothing was timed")
            return seconds * workload.repeats

        return go

    rates = rounds({name: run_round(step) for name, step in programs.items()}, count, device)
    facts = [f"{workload.batch} recordings of {seconds / workload.batch:.1f} s, {workload.tokens} tokens each"]
    ours = tuple(name for name in programs if name.startswith("regard"))
    yield Section("training", "seconds of sound/s", rates, ours, facts)


def our_step(model: Any, frames: Tensor, valid: Tensor, tokens: Tensor, device: torch.device) -> Callable[[], Tensor]:
    start = torch.full_like(tokens[:, :1], START)
    places = torch.arange(tokens.numel(), device=device)
    fields = {
        "source": Inputs("frames", frames, valid),
        "target": Inputs("tokens", torch.cat([start, tokens[:, :-1]], 1)),
        "labels": Inputs("tokens", tokens.flatten(), positions=places),
        "transcript": Inputs("tokens", tokens[:, :-1], torch.ones_like(tokens[:, :-1], dtype=torch.bool)),
    }
    batch, objective = (
        Batch(fields, tokens.numel()),
        Seq2SeqCtcObjective(model, SmoothedLoss(smoothing=0.0), PAD).to(device),
    )
    return training_step(objective, lambda: objective(batch).sum / tokens.numel(), device)


def their_step(model: Any, frames: Tensor, valid: Tensor, tokens: Tensor, device: torch.device) -> Callable[[], Tensor]:
    model.to(device)
    mask = valid.long()
    return training_step(model, lambda: model(input_features=frames, attention_mask=mask, labels=tokens).loss, device)


def training_step(module: nn.Module, loss_of: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Forward, backward and a step of AdamW; on a GPU in bf16 and compiled."""
    optimizer = torch.optim.AdamW(module.train().parameters(), 1e-5, fused=True)
    gpu = device.type == "cuda"

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            return loss_of()

    go = torch.compile(loss, dynamic=False) if gpu else loss

    def step() -> Tensor:
        found = go()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found.detach()

    return step


# --- decoding --------------------------------------------------------------------------------------------------------


def decoding_sections(
    workload: SpeechWorkload, device: torch.device, count: int, notes: list[str]
) -> Iterator[Section]:
    frames, valid, _ = sample_batch(workload, workload.rows)
    kind = "bf16" if device.type == "cuda" else "fp32"
    ours, joint = (our_model(workload, weight).to(device).eval() for weight in (0.0, CTC))
    for model in (ours, joint):
        precision.apply_precision(model, kind)
    theirs = their_model(workload).to(device).eval() if installed("transformers", notes) else None
    if theirs is not None and kind == "bf16":
        theirs.bfloat16()
    for beam in (1, BEAM):
        programs = {"regard": our_decoder(ours, frames, valid, beam, workload)}
        if beam > 1:
            programs["regard with CTC"] = our_decoder(
                JointCTC(joint, CTC, PAD, START, END), frames, valid, beam, workload
            )
        if theirs is not None:
            for static in (False, True) if device.type == "cuda" else (False,):
                name = f"HF generate{', static cache' if static else ''}"
                programs[name] = their_decoder(theirs, frames, valid, beam, workload, static)
        programs = {name: go for name, go in programs.items() if runs(name, go, notes)}
        rates = rounds(programs, count, device)
        facts = [f"{workload.rows} recordings of up to {workload.frames} frames, {workload.tokens} tokens each, {kind}"]
        names = tuple(name for name in programs if name.startswith("regard"))
        yield Section(f"beam {beam}" if beam > 1 else "greedy", "recordings/s", rates, names, facts)


def runs(name: str, go: RunRound, notes: list[str]) -> bool:
    try:
        go(0)
    except Exception as error:
        if name.startswith("regard"):
            raise
        notes.append(f"{name} cannot run here, so it was not timed: {(str(error).splitlines() or [''])[0]}")
        return False
    return True


def our_decoder(model: Any, frames: Tensor, valid: Tensor, beam: int, workload: SpeechWorkload) -> RunRound:
    strategy = Greedy() if beam == 1 else Beam(beam, early_stopping="heuristic")
    rows = [Inputs("frames", row[own][None]) for row, own in zip(frames, valid, strict=True)]

    def go(number: int) -> float:
        generator = Generator(model, END, rows=len(rows))
        limits = {"max_tokens": workload.tokens, "min_tokens": workload.tokens}
        handles = [generator.submit(SearchRequest((START,), row, strategy, **limits)) for row in rows]
        generator.drain()
        check_lengths("regard", [len(handle.result()[0].tokens) for handle in handles], workload)
        return float(len(rows))

    return go


def their_decoder(
    model: Any, frames: Tensor, valid: Tensor, beam: int, workload: SpeechWorkload, static: bool
) -> RunRound:
    kwargs: dict[str, Any] = {"num_beams": beam, "do_sample": False, "max_new_tokens": workload.tokens}
    kwargs |= {"min_new_tokens": workload.tokens} | ({"cache_implementation": "static"} if static else {})

    @torch.inference_mode()
    def go(number: int) -> float:
        features = frames.to(model.device, model.dtype)
        found = model.generate(features, attention_mask=valid.long().to(model.device), **kwargs)
        check_lengths("HF", [found.shape[1] - 1], workload)
        return float(len(frames))

    return go


def check_lengths(name: str, lengths: list[int], workload: SpeechWorkload) -> None:
    if any(length != workload.tokens for length in lengths):
        raise UserError(f"{name} gave {lengths[0]} tokens instead of {workload.tokens}, so nothing was timed")


# --- frames ----------------------------------------------------------------------------------------------------------


def frame_sections(workload: SpeechWorkload, device: torch.device, count: int, notes: list[str]) -> Iterator[Section]:
    """Log filterbanks on one core."""
    samples = np.random.default_rng(1).normal(0, 0.1, 16000 * max(workload.frames // 100, 1)).astype(np.float32)
    ours = FilterbankProcessor()
    seconds = len(samples) / 16000

    def our_frames(number: int) -> float:
        ours.encode(samples)
        return seconds

    programs: dict[str, RunRound] = {"regard": our_frames}
    if installed("transformers", notes):
        hf: Any = import_module("transformers")
        theirs = hf.Speech2TextFeatureExtractor(do_ceptral_normalize=False)

        def their_frames(number: int) -> float:
            theirs(samples, sampling_rate=16000, return_tensors="np")
            return seconds

        programs["HF Speech2Text"] = their_frames
    rates = rounds(programs, count, torch.device("cpu"))
    yield Section("frames", "seconds of sound/s", rates, ("regard",), [f"one recording of {seconds:.0f} s"])
