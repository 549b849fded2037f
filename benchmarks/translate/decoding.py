"""Greedy and beam search beside Hugging Face `generate` and CTranslate2, with the same weights and sentences.

Random weights would end outputs at random, so END is impossible: every program generates `workload.tokens` tokens.
With random weights outputs would also repeat one word. Weaker layers and an untied output table avoid that.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.adapt import precision
from regard.config.decode import Seq2SeqDecode
from regard.config.run import Run
from regard.config.strategies import Beam, Greedy
from regard.errors import UserError
from regard.formats.ctranslate2 import token_strings
from regard.tasks.translate.task import TranslatePredictor

from ..report import Section
from ..timing import rounds
from . import peers
from .pairs import RandomPairs, tokenizer
from .workload import TranslateWorkload, model_config

MIN_EQUAL = 0.9  # of the outputs: rounding decides between two words of equal probability
IMPOSSIBLE = -1e4  # the output bias of special tokens
LAYER_SCALE = 0.5  # of the weights of all layers except cross-attention
BEAM = 5
REFERENCE = "regard fp32"

Decoder = Callable[[int], list[list[int]]]  # from the beam size to the output tokens of every sentence


def time(workload: TranslateWorkload, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    with TemporaryDirectory() as folder:
        programs = build_programs(workload, sources(workload), device, Path(folder), notes)
        return [section(programs, beam, workload, device, count, notes) for beam in (1, BEAM)]


def sources(workload: TranslateWorkload) -> list[str]:
    """One batch of a file sorted by length: neighbors from the middle of many sentences."""
    ordered = sorted((source for source, _ in RandomPairs(8 * workload.rows, workload.vocab, seed=2)), key=len)
    return ordered[4 * workload.rows : 5 * workload.rows]


def section(
    programs: dict[str, Decoder],
    beam: int,
    workload: TranslateWorkload,
    device: torch.device,
    count: int,
    notes: list[str],
) -> Section:
    name = f"beam {beam}" if beam > 1 else "greedy"
    outputs = run_programs(programs, beam, notes)
    equal = compare(outputs, name, workload, notes)

    def count_outputs(go: Decoder) -> Callable[[int], float]:
        return lambda number: len(go(beam))

    rates = rounds({each: count_outputs(programs[each]) for each in equal}, count, device)
    facts = [f"{workload.rows} sentences at once, {workload.tokens} tokens each; outputs equal to regard fp32: "
             f"{', '.join(f'{each} {count}' for each, count in equal.items() if each != REFERENCE)}"]  # fmt: skip
    return Section(name, "sentences/s", rates, tuple(each for each in equal if each.startswith("regard")), facts)


def run_programs(programs: dict[str, Decoder], beam: int, notes: list[str]) -> dict[str, list[list[int]]]:
    """The outputs of each program. A peer that cannot run here is left out, with a note."""
    outputs = {}
    for name, go in programs.items():
        try:
            outputs[name] = go(beam)
        except Exception as error:
            if name.startswith("regard"):
                raise
            notes.append(f"{name} cannot run here, so it was not timed: {(str(error).splitlines() or [''])[0]}")
    return outputs


def compare(
    outputs_of: dict[str, list[list[int]]], name: str, workload: TranslateWorkload, notes: list[str]
) -> dict[str, int]:
    """Count the outputs of every program that equal ours in fp32.

    Each output must have full length. An fp32 peer with other outputs is left out; if all are, nothing is timed.
    """
    wanted, equal = outputs_of[REFERENCE], {}
    for each, outputs in outputs_of.items():
        if wrong := [len(output) for output in outputs if len(output) != workload.tokens]:
            raise UserError(
                f"{each} gave {wrong[0]} tokens instead of {workload.tokens}, so nothing was timed ({name})"
            )
        equal[each] = sum(one == other for one, other in zip(outputs, wanted, strict=True))
    peers = [each for each in outputs_of if "fp32" in each and each != REFERENCE]
    different = [each for each in peers if equal[each] < MIN_EQUAL * len(wanted)]
    for each in different:
        notes.append(f"{each} equals regard in {equal.pop(each)} of {len(wanted)} outputs, so it was not timed")
    if different and different == peers:
        raise UserError(f"{different[0]} and regard are not equal in fp32, so nothing was timed ({name})")
    return equal


def build_programs(
    workload: TranslateWorkload, texts: list[str], device: torch.device, folder: Path, notes: list[str]
) -> dict[str, Decoder]:
    predictor = build_predictor(workload, device)
    ids = predictor.source.encode(texts)
    gpu = device.type == "cuda"
    found = {}
    for kind in ("fp32", "bf16") if gpu else ("fp32", "bf16", "int8"):
        other = copy.deepcopy(predictor)
        precision.apply_precision(other.model, kind)
        found[f"regard {kind}"] = ours(other, texts, workload)
    if peers.installed("transformers", notes):
        for kind, static in (("fp32", False), ("bf16", False)) + ((("bf16", True),) if gpu else ()):
            name = f"HF generate {kind}{', static cache' if static else ''}"
            found[name] = hugging_face(predictor, ids, kind, static, workload)
    if peers.installed("ctranslate2", notes):
        for kind in ("fp32", "bf16", "int8") if gpu else ("fp32", "int8"):
            found[f"CTranslate2 {kind}"] = ctranslate2(predictor, ids, kind, folder / "model", workload)
    return found


def build_predictor(workload: TranslateWorkload, device: torch.device) -> TranslatePredictor:
    """Our predictor in fp32, with the weights that all programs use."""
    text = tokenizer(workload.vocab)
    torch.manual_seed(1)
    run = Run(task="translate", model=model_config(workload, tied=False, biased=True), device=str(device))
    net = workload.family.Model(run.model)
    with torch.no_grad():
        for name, tensor in net.named_parameters():
            if "layers" in name and "cross" not in name and tensor.dim() > 1:
                tensor *= LAYER_SCALE
        net.head.bias[[text.pad, text.start, text.end, text.unk]] = IMPOSSIBLE
    return TranslatePredictor(run, net, text, text, device)


def ours(predictor: TranslatePredictor, texts: list[str], workload: TranslateWorkload) -> Decoder:
    def go(beam: int) -> list[list[int]]:
        strategy = Beam(beam) if beam > 1 else Greedy()
        how = Seq2SeqDecode(strategy=strategy, max_tokens=workload.tokens, batch=workload.rows)
        plan, read = predictor.plan.of(how), predictor.modality.read(texts)
        found = predictor.run_programs((predictor.writer.search(source, plan) for source in read), workload.rows)
        return [best[0].tokens for best in found]

    return go


def hugging_face(
    predictor: TranslatePredictor, ids: list[list[int]], kind: str, static: bool, workload: TranslateWorkload
) -> Decoder:
    theirs = peers.marian(predictor).eval()
    theirs = theirs.to(torch.bfloat16) if kind == "bf16" else theirs
    source = predictor.pair(ids, [[] for _ in ids])["source"]
    assert source.valid is not None
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}

    @torch.no_grad()
    def go(beam: int) -> list[list[int]]:
        generated = theirs.generate(
            input_ids=source.values, attention_mask=source.valid.long(), num_beams=beam, do_sample=False,
            min_new_tokens=workload.tokens, max_new_tokens=workload.tokens, length_penalty=1.0,
            early_stopping=False, **options,
        )  # fmt: skip
        outputs: list[list[int]] = generated[:, 1:].tolist()
        return outputs

    return go


def ctranslate2(
    predictor: TranslatePredictor, ids: list[list[int]], kind: str, folder: Path, workload: TranslateWorkload
) -> Decoder:
    theirs, names = peers.translator(predictor, folder, kind), token_strings(predictor.source)
    numbers = {name: number for number, name in enumerate(names)}
    tokens = [[names[number] for number in sentence] for sentence in ids]

    def go(beam: int) -> list[list[int]]:
        translated = theirs.translate_batch(
            tokens, beam_size=beam, length_penalty=1.0, max_batch_size=workload.rows,
            min_decoding_length=workload.tokens, max_decoding_length=workload.tokens,
        )  # fmt: skip
        return [[numbers[name] for name in one.hypotheses[0]] for one in translated]

    return go
