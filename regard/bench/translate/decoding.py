"""Greedy and beam search beside Hugging Face `generate` and CTranslate2: the same weights and source sentences.

Random weights would end anywhere, so END is made impossible and every program says exactly `plan.tokens` tokens.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...adapt import precision
from ...config import Decode, Run
from ...data.tokenizers import Text
from ...errors import Mistake
from ...interop.ctranslate2 import vocabulary
from ...tasks.translate import Translator
from ..report import Section
from ..timing import rounds
from . import peers
from .plan import Plan, model
from .sentences import Sentences, tokenizer

EQUAL = 0.9  # of the outputs, at least: a tie between two words is decided by the last bits
NEVER = -1e4  # added to the scores of the control symbols
BEAM = 5

Decoder = Callable[[int], list[list[int]]]  # of a beam: the tokens it says to every sentence, in order


def time(plan: Plan, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    texts = [source for source, _ in Sentences(plan.rows, plan.vocab, seed=2)]
    with TemporaryDirectory() as folder:
        programs = assembled(plan, texts, device, Path(folder), notes)
        return [section(programs, beam, plan, device, count) for beam in (1, BEAM)]


def section(programs: dict[str, Decoder], beam: int, plan: Plan, device: torch.device, count: int) -> Section:
    name = f"beam {beam}" if beam > 1 else "greedy"
    told = compare({way: go(beam) for way, go in programs.items()}, name, plan)

    def way(go: Decoder) -> Callable[[int], float]:
        return lambda number: len(go(beam))

    rates = rounds({each: way(go) for each, go in programs.items()}, count, device)
    facts = [f"{plan.rows} sentences at once, {plan.tokens} tokens each", *told]
    return Section(name, "sentences/s", rates, tuple(each for each in programs if each.startswith("regard")), facts)


def compare(said: dict[str, list[list[int]]], name: str, plan: Plan) -> list[str]:
    """Every output has its length, and fp32 says the same in all programs; else nothing is timed."""
    first, told = said["regard fp32"], []
    for way, outputs in said.items():
        if wrong := [len(output) for output in outputs if len(output) != plan.tokens]:
            raise Mistake(f"{way} said {wrong[0]} tokens and not {plan.tokens}, so nothing was timed ({name})")
        equal = sum(one == other for one, other in zip(outputs, first, strict=True))
        if "fp32" in way and equal < EQUAL * len(first):
            raise Mistake(
                f"{way} gave {equal} of {len(first)} outputs as regard fp32 does, so nothing was timed ({name})"
            )
        told.append(f"{way}: {equal} of {len(first)} outputs as regard fp32")
    return told[1:]


def assembled(plan: Plan, texts: list[str], device: torch.device, folder: Path, notes: list[str]) -> dict[str, Decoder]:
    text, system = tokenizer(plan.vocab), translator(plan, device)
    ids = text.encode(texts)
    gpu = device.type == "cuda"
    found = {}
    for kind in ("fp32", "bf16") if gpu else ("fp32", "bf16", "int8"):
        other = copy.deepcopy(system)
        precision.apply(other.model, kind)
        found[f"regard {kind}"] = ours(other, texts, plan)
    if peers.installed("transformers", notes):
        for kind in ("fp32", "bf16"):
            for static in (False, True) if gpu else (False,):
                name = f"HF generate {kind}{', static cache' if static else ''}"
                found[name] = hugging_face(system, ids, kind, static, plan)
    if peers.installed("ctranslate2", notes):
        for kind in ("fp32", "int8"):
            found[f"CTranslate2 {kind}"] = ctranslate2(system, ids, kind, folder / "model", plan)
    return found


def translator(plan: Plan, device: torch.device) -> Translator:
    text = tokenizer(plan.vocab)
    torch.manual_seed(1)
    run = Run(task="translate", model=model(plan, biased=True), decode=Decode(batch=plan.rows), device=str(device))
    net = plan.family.Model(run.model)
    with torch.no_grad():
        net.head.bias[[text.pad, text.start, text.end, text.unk]] = NEVER
    return Translator(run, net, text, text, device)


def ours(system: Translator, texts: list[str], plan: Plan) -> Decoder:
    def go(beam: int) -> list[list[int]]:
        how = Decode(kind="beam" if beam > 1 else "greedy", beam=beam, max_tokens=plan.tokens, batch=plan.rows)
        return [best[0].tokens for best in system.search(texts, how)]

    return go


def hugging_face(system: Translator, ids: list[list[int]], kind: str, static: bool, plan: Plan) -> Decoder:
    theirs = peers.marian(system).eval()
    theirs = theirs.to(torch.bfloat16) if kind == "bf16" else theirs
    batch = system.pair(ids, [[] for _ in ids])
    words: dict[str, Any] = {"cache_implementation": "static"} if static else {}

    @torch.no_grad()
    def go(beam: int) -> list[list[int]]:
        made = theirs.generate(
            input_ids=batch.source, attention_mask=batch.source_real.long(), num_beams=beam, do_sample=False,
            min_new_tokens=plan.tokens, max_new_tokens=plan.tokens, length_penalty=1.0, early_stopping=False, **words
        )  # fmt: skip
        said: list[list[int]] = made[:, 1:].tolist()
        return said

    return go


def ctranslate2(system: Translator, ids: list[list[int]], kind: str, folder: Path, plan: Plan) -> Decoder:
    theirs = peers.translator(system, folder, kind)
    text: Text = system.source  # type: ignore[assignment]
    names = vocabulary(text)
    numbers = {name: number for number, name in enumerate(names)}
    tokens = [[names[number] for number in sentence] for sentence in ids]

    def go(beam: int) -> list[list[int]]:
        made = theirs.translate_batch(
            tokens, beam_size=beam, length_penalty=1.0, max_batch_size=plan.rows,
            min_decoding_length=plan.tokens, max_decoding_length=plan.tokens,
        )  # fmt: skip
        return [[numbers[name] for name in one.hypotheses[0]] for one in made]

    return go
