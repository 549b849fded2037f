"""An export checks itself before it says done: the same tokens, logits and texts as the run, on a few sentences."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.run import change_settings
from ..config.schema import NEUTRAL_SAMPLING
from ..data.collate import PairBatch
from ..errors import UserError

MAX_LOGIT_DIFFERENCE = 1e-4  # between logits
MIN_EQUAL_TEXTS = (
    0.75  # of the texts must be equal: what has learnt nothing says what the last bits of its scores decide
)
SAMPLE_COUNT = 8  # sentences
BEAM = 5


def sample_texts(system: Any) -> list[str]:
    """A few sentences of the kind the run knows: from its data, or pieces at random where those are gone."""
    for name in ("valid", "test", "train"):
        try:
            examples = system.data_split(system.run, name)
            some = [examples[i][0] for i in range(min(len(examples), 3 * SAMPLE_COUNT))]
        except UserError:
            continue
        if kept := [text for text in some if text.strip()][:SAMPLE_COUNT]:
            return kept
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(4, system.source.size, (SAMPLE_COUNT, 9), generator=draw)
    texts: list[str] = system.source.decode(ids.tolist())
    return texts


# Whatever else the run's decode.* asks for is its own affair.
PLAIN: dict[str, Any] = {"nbest": 1, "prefix": "", "include": (), "exclude": (), "split": False, **NEUTRAL_SAMPLING}


def greedy(longest: int) -> dict[str, Any]:
    return PLAIN | {"kind": "greedy", "max_tokens": longest}


def beam(longest: int, stop: str) -> dict[str, Any]:
    return PLAIN | {"kind": "beam", "beam": BEAM, "max_tokens": longest, "early_stopping": stop}


class Seq2SeqSample:
    """What the run itself makes of a few sentences."""

    def __init__(self, system: Any) -> None:
        self.system, self.texts = system, sample_texts(system)
        self.ids = system.source.encode(self.texts)
        self.longest = 2 * max(map(len, self.ids)) + 16
        said = system.predict(self.texts, **greedy(self.longest))
        self.batch: PairBatch = system.pair(self.ids, system.target.encode(said))
        self.logits = self.logits_of(system)

    @torch.no_grad()
    def logits_of(self, system: Any) -> Tensor:
        from ..tasks.translate import logits

        found: Tensor = logits(system.model, self.batch)[self.batch.target_valid]
        return found

    def compare_logits(self, who: str, found: Tensor) -> float:
        return check_close(who, (found - self.logits).abs().max().item())

    def compare_tokens(self, who: str, found: list[list[int]], wanted: list[list[int]]) -> None:
        for text, one, other in zip(self.texts, found, wanted, strict=True):
            if one != other:
                raise export_error(f"{who} gives other tokens for {text!r}: {one} and not {other}")


class MatchCount:
    """How many texts were compared and how many were equal, which must be at least a share of them."""

    def __init__(self, least: float = MIN_EQUAL_TEXTS) -> None:
        self.least, self.equal, self.all = least, 0, 0

    def add(self, who: str, found: list[str], wanted: list[str]) -> None:
        other = [(one, right) for one, right in zip(found, wanted, strict=True) if one != right]
        self.equal, self.all = self.equal + len(found) - len(other), self.all + len(found)
        if len(other) > (1 - self.least) * len(found):
            raise export_error(f"{who} gives {len(other)} other texts, such as {other[0][0]!r} and not {other[0][1]!r}")

    def __str__(self) -> str:
        return f"{self.equal} of {self.all} texts equal"


def check_close(who: str, apart: float) -> float:
    if not apart <= MAX_LOGIT_DIFFERENCE:
        raise export_error(f"{who} gives logits that are apart by {apart:.2g}, more than {MAX_LOGIT_DIFFERENCE:g}")
    return apart


def export_error(reason: str) -> Exception:
    """Not what a user could put right."""
    return RuntimeError(f"the export was checked and {reason}; nothing was kept")


def check_texts(system: Any, draft: Path, precision: str) -> str:
    """The folder by our own reader, and by transformers where it is installed; what was found, in words."""
    from .huggingface.folder import load_folder

    sample, ours, tally = Seq2SeqSample(system), load_folder(draft, {"device": "cpu"}), MatchCount()
    sample.compare_tokens("the folder", ours.source.encode(sample.texts), sample.ids)
    apart = sample.compare_logits("the folder", sample.logits_of(ours))
    for how in (greedy(0), beam(0, "exact")):
        tally.add("the folder", ours.predict(sample.texts, **how), sample.system.predict(sample.texts, **how))
    who = ["regard"]
    if find_spec("transformers") is not None:
        import transformers

        with quiet(transformers):
            apart = max(apart, _compare_transformers(sample, draft, transformers, tally))
        who.append(f"transformers {transformers.__version__}")
    told = f"{tally}, logits apart by {apart:.1g}"
    return f"{len(sample.texts)} sentences with {' and '.join(who)}: {told}"


@contextmanager
def quiet(hf: Any) -> Iterator[None]:
    """transformers without its progress bars and warnings."""
    own = hf.utils.logging
    shown, level = own.is_progress_bar_enabled(), own.get_verbosity()
    own.disable_progress_bar()
    own.set_verbosity_error()
    try:
        yield
    finally:
        own.set_verbosity(level)
        if shown:
            own.enable_progress_bar()


@torch.no_grad()
def _compare_transformers(sample: Seq2SeqSample, draft: Path, hf: Any, tally: MatchCount) -> float:
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(draft).eval()
    source = target = hf.AutoTokenizer.from_pretrained(draft)
    if sample.system.source is not sample.system.target:
        target = hf.AutoTokenizer.from_pretrained(draft, subfolder="target")
    ids = [[*each, sample.system.source.end] for each in sample.ids]
    sample.compare_tokens("transformers", source(sample.texts).input_ids, ids)
    batch, inputs = sample.batch, source(sample.texts, return_tensors="pt", padding=True)
    found = model(**inputs, decoder_input_ids=batch.target_in).logits[batch.target_valid]
    apart = sample.compare_logits("transformers", found)
    penalty = {"length_penalty": sample.system.run.decode.length_penalty}
    for words, ours in (
        ({"num_beams": 1}, greedy(sample.longest)),
        ({"num_beams": BEAM, "early_stopping": False, **penalty}, beam(sample.longest, "heuristic")),
    ):
        made = model.generate(**inputs, do_sample=False, max_new_tokens=sample.longest, max_length=None, **words)
        texts = target.batch_decode(made, skip_special_tokens=True)
        tally.add("transformers", texts, sample.system.predict(sample.texts, **ours))
    return apart


def check_ctranslate2(system: Any, draft: Path, precision: str) -> str:
    """The log-probabilities and texts that CTranslate2 gives. Below fp32 they are other ones, and only told."""
    from .ctranslate2 import import_ctranslate2, vocabulary

    sample, theirs, tally = (
        Seq2SeqSample(system),
        import_ctranslate2(),
        MatchCount(MIN_EQUAL_TEXTS if precision == "fp32" else 0.0),
    )
    translator = theirs.Translator(str(draft), device="cpu")
    system = copy(system)
    system.filters = ()  # what is left after a filter is made a distribution again there and not here
    names, others = vocabulary(system.source), vocabulary(system.target)
    numbers = {name: number for number, name in enumerate(others)}
    tokens = [[names[number] for number in ids] for ids in sample.ids]
    apart = 0.0
    for size, how in ((1, greedy(sample.longest)), (BEAM, beam(sample.longest, "first"))):
        asked = {"beam_size": size, "length_penalty": system.run.decode.length_penalty, "min_decoding_length": 0}
        made = translator.translate_batch(tokens, max_decoding_length=sample.longest, **asked)
        ids = [[numbers[name] for name in one.hypotheses[0]] for one in made]
        scores = translator.score_batch(tokens, [one.hypotheses[0] for one in made])
        for known, right in zip(scores, system.logprobs(sample.ids, ids), strict=True):
            apart = max(apart, *(abs(one - other) for one, other in zip(known.log_probs, right, strict=True)))
        if precision == "fp32":
            check_close("CTranslate2", apart)
        mine = [best[0] for best in system.search(sample.texts, change_settings(system.run, {"decode": how}).decode)]
        ended = [i for i, each in enumerate(mine) if each.ended]  # the others are cut off in another place
        found, wanted = system.target.decode(ids), system.target.decode([each.tokens for each in mine])
        tally.add("CTranslate2", [found[i] for i in ended], [wanted[i] for i in ended])
    told = f"{tally} to those of fp32, log-probabilities apart by {apart:.1g}"
    return f"{len(tokens)} sentences with ctranslate2 {theirs.__version__}: {told}"
