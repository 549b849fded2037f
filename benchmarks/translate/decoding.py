"""Greedy and beam search beside Hugging Face `generate` and CTranslate2: the same weights and source sentences.

Random weights would end anywhere, so END is made impossible: every program says exactly `plan.tokens` tokens. They
would also say one word for ever; weaker layers and an output table of its own make them say many, to each its own.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.adapt import precision
from regard.config.run import Run
from regard.config.schema import Seq2SeqDecode
from regard.errors import UserError
from regard.formats.ctranslate2 import vocabulary
from regard.tasks.translate import TranslatePredictor

from ..report import Section
from ..timing import rounds
from . import peers
from .plan import Plan, model
from .sentences import Sentences, tokenizer

EQUAL = 0.9  # of the outputs, at least: a tie between two words is decided by the last bits
NEVER = -1e4  # added to the scores of the control symbols
WEAKER = 0.5  # the maps of the layers, but for cross-attention
BEAM = 5
FIRST = "regard fp32"

Decoder = Callable[[int], list[list[int]]]  # of a beam: the tokens it says to every sentence, in order


def time(plan: Plan, device: torch.device, count: int, notes: list[str]) -> list[Section]:
    with TemporaryDirectory() as folder:
        programs = assembled(plan, sources(plan), device, Path(folder), notes)
        return [section(programs, beam, plan, device, count, notes) for beam in (1, BEAM)]


def sources(plan: Plan) -> list[str]:
    """One batch as sorting a file by length gives it: neighbours from the middle of many sentences."""
    ordered = sorted((source for source, _ in Sentences(8 * plan.rows, plan.vocab, seed=2)), key=len)
    return ordered[4 * plan.rows : 5 * plan.rows]


def section(
    programs: dict[str, Decoder], beam: int, plan: Plan, device: torch.device, count: int, notes: list[str]
) -> Section:
    name = f"beam {beam}" if beam > 1 else "greedy"
    said = heard(programs, beam, notes)
    told = compare(said, name, plan, notes)

    def way(go: Decoder) -> Callable[[int], float]:
        return lambda number: len(go(beam))

    rates = rounds({each: way(programs[each]) for each in told}, count, device)
    facts = [f"{plan.rows} sentences at once, {plan.tokens} tokens each; outputs as regard fp32 has them: "
             f"{', '.join(f'{each} {equal}' for each, equal in told.items() if each != FIRST)}"]  # fmt: skip
    return Section(name, "sentences/s", rates, tuple(each for each in told if each.startswith("regard")), facts)


def heard(programs: dict[str, Decoder], beam: int, notes: list[str]) -> dict[str, list[list[int]]]:
    """What each program says. A peer may be unable to run here; then it is left out, and told."""
    said = {}
    for name, go in programs.items():
        try:
            said[name] = go(beam)
        except Exception as error:
            if name.startswith("regard"):
                raise
            notes.append(f"{name} cannot run here, so it was not timed: {(str(error).splitlines() or [''])[0]}")
    return said


def compare(said: dict[str, list[list[int]]], name: str, plan: Plan, notes: list[str]) -> dict[str, int]:
    """Of every program to be timed, how many outputs are as ours in fp32. Each must have said all its tokens, and a
    peer in fp32 the same as we; one that does not is left out, and where none does, nothing is timed."""
    wanted, equal = said[FIRST], {}
    for each, outputs in said.items():
        if wrong := [len(output) for output in outputs if len(output) != plan.tokens]:
            raise UserError(f"{each} said {wrong[0]} tokens and not {plan.tokens}, so nothing was timed ({name})")
        equal[each] = sum(one == other for one, other in zip(outputs, wanted, strict=True))
    peers = [each for each in said if "fp32" in each and each != FIRST]
    apart = [each for each in peers if equal[each] < EQUAL * len(wanted)]
    for each in apart:
        notes.append(f"{each} says as regard does to {equal.pop(each)} of {len(wanted)} sentences, so it was not timed")
    if apart and apart == peers:
        raise UserError(f"{apart[0]} and regard are not equal in fp32, so nothing was timed ({name})")
    return equal


def assembled(plan: Plan, texts: list[str], device: torch.device, folder: Path, notes: list[str]) -> dict[str, Decoder]:
    system = translator(plan, device)
    ids = system.source.encode(texts)
    gpu = device.type == "cuda"
    found = {}
    for kind in ("fp32", "bf16") if gpu else ("fp32", "bf16", "int8"):
        other = copy.deepcopy(system)
        precision.apply(other.model, kind)
        found[f"regard {kind}"] = ours(other, texts, plan)
    if peers.installed("transformers", notes):
        for kind, static in (("fp32", False), ("bf16", False)) + ((("bf16", True),) if gpu else ()):
            name = f"HF generate {kind}{', static cache' if static else ''}"
            found[name] = hugging_face(system, ids, kind, static, plan)
    if peers.installed("ctranslate2", notes):
        for kind in ("fp32", "bf16", "int8") if gpu else ("fp32", "int8"):
            found[f"CTranslate2 {kind}"] = ctranslate2(system, ids, kind, folder / "model", plan)
    return found


def translator(plan: Plan, device: torch.device) -> TranslatePredictor:
    """Our side, in fp32, with the weights that all have."""
    text = tokenizer(plan.vocab)
    torch.manual_seed(1)
    run = Run(task="translate", model=model(plan, tied=False, biased=True), device=str(device))
    net = plan.family.Model(run.model)
    with torch.no_grad():
        for name, tensor in net.named_parameters():
            if "layers" in name and "cross" not in name and tensor.dim() > 1:
                tensor *= WEAKER
        net.head.bias[[text.pad, text.start, text.end, text.unk]] = NEVER
    return TranslatePredictor(run, net, text, text, device)


def ours(system: TranslatePredictor, texts: list[str], plan: Plan) -> Decoder:
    def go(beam: int) -> list[list[int]]:
        how = Seq2SeqDecode(kind="beam" if beam > 1 else "greedy", beam=beam, max_tokens=plan.tokens, batch=plan.rows)
        return [best[0].tokens for best in system.search(texts, how)]

    return go


def hugging_face(system: TranslatePredictor, ids: list[list[int]], kind: str, static: bool, plan: Plan) -> Decoder:
    theirs = peers.marian(system).eval()
    theirs = theirs.to(torch.bfloat16) if kind == "bf16" else theirs
    batch = system.pair(ids, [[] for _ in ids])
    words: dict[str, Any] = {"cache_implementation": "static"} if static else {}

    @torch.no_grad()
    def go(beam: int) -> list[list[int]]:
        made = theirs.generate(
            input_ids=batch.source, attention_mask=batch.source_valid.long(), num_beams=beam, do_sample=False,
            min_new_tokens=plan.tokens, max_new_tokens=plan.tokens, length_penalty=1.0, early_stopping=False, **words
        )  # fmt: skip
        said: list[list[int]] = made[:, 1:].tolist()
        return said

    return go


def ctranslate2(system: TranslatePredictor, ids: list[list[int]], kind: str, folder: Path, plan: Plan) -> Decoder:
    theirs, names = peers.translator(system, folder, kind), vocabulary(system.source)
    numbers = {name: number for number, name in enumerate(names)}
    tokens = [[names[number] for number in sentence] for sentence in ids]

    def go(beam: int) -> list[list[int]]:
        made = theirs.translate_batch(
            tokens, beam_size=beam, length_penalty=1.0, max_batch_size=plan.rows,
            min_decoding_length=plan.tokens, max_decoding_length=plan.tokens,
        )  # fmt: skip
        return [[numbers[name] for name in one.hypotheses[0]] for one in made]

    return go
