"""The self-check of an exported encoder-decoder: the same tokens, logits and texts as the run, on a few sentences."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config.strategies import Beam, EarlyStopping, Greedy, TokenRules
from ..data.batch import Batch
from ..decode import Hypothesis
from ..errors import UserError
from ..files import JsonMapping, JsonObject

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from ..tasks.translate.task import TranslatePredictor

MAX_DIFFERENCE = 1e-4  # relative to the largest output; sums in another order differ by 1e-7 to 1e-5 in fp32
MIN_SCALE = 1e-2  # outputs that are all smaller count as this large: an untrained head gives almost nothing
MIN_EQUAL_TEXTS = 0.75  # as a share: rounding decides what an untrained model writes
SAMPLE_COUNT = 8  # sentences
BEAM = 5


def sample_texts(predictor: "TranslatePredictor") -> list[str]:
    """A few sentences of the run's data, or of random tokens if the data is gone."""
    for split in ("valid", "test", "train"):
        try:
            examples = predictor.data_split(predictor.run, split)
            texts = [examples[i][0] for i in range(min(len(examples), 3 * SAMPLE_COUNT))]
        except UserError:
            continue
        if nonempty := [text for text in texts if text.strip()][:SAMPLE_COUNT]:
            return nonempty
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, predictor.source.size, (SAMPLE_COUNT, 9), generator=generator)
    return predictor.source.decode(ids.tolist())


# Decode settings of the run that the comparison leaves out.
NEUTRAL: JsonObject = {"prefix": "", "include": (), "exclude": (), "split_sentences": False}
NEUTRAL |= {"min_tokens": 0, "repetition_penalty": 1.0, "rules": TokenRules()}


def greedy(max_tokens: int) -> JsonObject:
    """The settings of a greedy search without other rules."""
    return NEUTRAL | {"strategy": Greedy(), "max_tokens": max_tokens}


def beam(max_tokens: int, early_stopping: EarlyStopping, length_penalty: float) -> JsonObject:
    """The settings of a beam search without other rules."""
    strategy = Beam(BEAM, length_penalty=length_penalty, early_stopping=early_stopping)
    return NEUTRAL | {"strategy": strategy, "max_tokens": max_tokens}


class Seq2SeqSample:
    """Tokens, logits and greedy outputs of the run for a few sentences."""

    def __init__(self, predictor: "TranslatePredictor") -> None:
        self.predictor, self.texts = predictor, sample_texts(predictor)
        self.ids = predictor.source.encode(self.texts)
        self.max_tokens = 2 * max(map(len, self.ids)) + 16
        outputs = predictor.predict(self.texts, **greedy(self.max_tokens))
        self.batch: Batch = predictor.pair(self.ids, predictor.target.encode(outputs))
        self.logits = self.logits_of(predictor)

    @torch.no_grad()
    def logits_of(self, predictor: "TranslatePredictor") -> Tensor:
        from ..decode.engine.passes import logits

        return logits(predictor.model, self.batch)

    def compare_logits(self, reader: str, theirs: Tensor) -> float:
        return check_close(f"{reader} gives logits", theirs, self.logits)

    def compare_tokens(self, reader: str, theirs: list[list[int]], expected: list[list[int]]) -> None:
        for text, actual, tokens in zip(self.texts, theirs, expected, strict=True):
            if actual != tokens:
                raise export_error(f"{reader} gives other tokens for {text!r}: {actual} and not {tokens}")


class MatchCount:
    """Counts compared and equal texts; at least a share of each comparison must be equal."""

    def __init__(self, minimum: float = MIN_EQUAL_TEXTS) -> None:
        self.minimum, self.equal, self.all = minimum, 0, 0

    def add(self, reader: str, theirs: list[str], expected: list[str]) -> None:
        different = [
            (actual, reference) for actual, reference in zip(theirs, expected, strict=True) if actual != reference
        ]
        self.equal, self.all = self.equal + len(theirs) - len(different), self.all + len(theirs)
        if len(different) > (1 - self.minimum) * len(theirs):
            actual, reference = different[0]
            raise export_error(f"{reader} gives {len(different)} other texts, such as {actual!r} and not {reference!r}")

    def __str__(self) -> str:
        return f"{self.equal} of {self.all} texts equal"


def check_close(description: str, theirs: Tensor, ours: Tensor) -> float:
    """The largest difference, relative to the largest value of ours; an error if it is more than rounding."""
    return check_difference(description, (theirs - ours).abs().max().item(), ours.abs().max().item())


def check_difference(description: str, difference: float, largest: float) -> float:
    """The same for a difference that is already known; NaN is an error too."""
    relative = difference / max(largest, MIN_SCALE)
    if not relative <= MAX_DIFFERENCE:
        values = f"{difference:.2g} where the largest is {largest:.2g}"
        raise export_error(f"{description} that are apart by {values}, more than {MAX_DIFFERENCE:g} of it")
    return relative


def export_error(reason: str) -> Exception:
    """Not a UserError: the user cannot correct it."""
    return RuntimeError(f"the check of the export failed: {reason}; nothing was kept")


def compare_texts(predictor: "TranslatePredictor", draft: Path, precision: str) -> str:
    """Compare the run with the folder as regard reads it, and as transformers does if installed; report the result."""
    from ..tasks.translate.task import TranslatePredictor
    from .huggingface.folder import load_folder

    sample, ours, count = Seq2SeqSample(predictor), load_folder(draft, {"device": "cpu"}), MatchCount()
    assert isinstance(ours, TranslatePredictor)
    sample.compare_tokens("the folder", ours.source.encode(sample.texts), sample.ids)
    difference = sample.compare_logits("the folder", sample.logits_of(ours))
    penalties = [each.run.decode.strategy.length_penalty for each in (ours, predictor)]
    for theirs, expected in ([greedy(0)] * 2, [beam(0, "exact", penalty) for penalty in penalties]):
        count.add("the folder", ours.predict(sample.texts, **theirs), predictor.predict(sample.texts, **expected))
    readers = ["regard"]
    if find_spec("transformers") is not None:
        import transformers

        with quiet(transformers):
            difference = max(difference, _compare_transformers(sample, draft, transformers, count))
        readers.append(f"transformers {transformers.__version__}")
    result = f"{count}, logits apart by {difference:.1g} (relative)"
    return f"{len(sample.texts)} sentences with {' and '.join(readers)}: {result}"


@contextmanager
def quiet(hf: ModuleType) -> Iterator[None]:
    """Silence the progress bars and warnings of transformers."""
    logging = hf.utils.logging
    progress, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if progress:
            logging.enable_progress_bar()


@torch.no_grad()
def _compare_transformers(sample: Seq2SeqSample, draft: Path, hf: ModuleType, count: MatchCount) -> float:
    from .huggingface.tokenizer_export import has_target_folder

    predictor, model = sample.predictor, hf.AutoModelForSeq2SeqLM.from_pretrained(draft).eval()
    source = target = hf.AutoTokenizer.from_pretrained(draft)
    if has_target_folder(predictor):
        target = hf.AutoTokenizer.from_pretrained(draft, subfolder="target")
    ids = [[*row, predictor.source.end] for row in sample.ids]
    sample.compare_tokens("transformers", source(sample.texts).input_ids, ids)
    batch, inputs = sample.batch, source(sample.texts, return_tensors="pt", padding=True)
    logits = model(**inputs, decoder_input_ids=batch["target"].values).logits.flatten(0, 1)[batch["labels"].positions]
    difference = sample.compare_logits("transformers", logits)
    penalty: float = predictor.run.decode.strategy.length_penalty
    model.generation_config = plain_generation(model.generation_config, predictor.target.end, predictor.suppressed, hf)
    for theirs, ours in (
        ({"num_beams": 1}, greedy(sample.max_tokens)),
        (
            {"num_beams": BEAM, "early_stopping": False, "length_penalty": penalty},
            beam(sample.max_tokens, "heuristic", penalty),
        ),
    ):
        outputs = model.generate(**inputs, max_new_tokens=sample.max_tokens, **theirs)
        texts = target.batch_decode(outputs, skip_special_tokens=True)
        count.add("transformers", texts, whole_texts(predictor, sample.texts, ours))
    return difference


def plain_generation(config: "GenerationConfig", end: int, suppressed: list[int], hf: ModuleType) -> "GenerationConfig":
    """The generation settings of a folder as far as they are compared: its control tokens."""
    ids = ("pad_token_id", "bos_token_id", "decoder_start_token_id")
    control = {name: getattr(config, name) for name in ids} | {"eos_token_id": end}
    plain: GenerationConfig = hf.GenerationConfig(**control, suppress_tokens=suppressed or None)
    return plain


def whole_texts(predictor: "TranslatePredictor", texts: list[str], decode: JsonMapping) -> list[str]:
    """The full output of a search, as transformers decodes it, including a last character that the limit cut."""
    return predictor.target.decode([hypothesis.tokens for hypothesis in best_hypotheses(predictor, texts, decode)])


def best_hypotheses(predictor: "TranslatePredictor", texts: list[str], decode: JsonMapping) -> list[Hypothesis]:
    """The best hypothesis of every source."""
    requests, sources = predictor.requests(texts, **decode), predictor.modality.read(texts)
    pairs = zip(sources, map(predictor.plan, requests), strict=True)
    return [hypotheses[0] for hypotheses in predictor.run_programs(predictor.writer.search(*pair) for pair in pairs)]


def check_ctranslate2(predictor: "TranslatePredictor", draft: Path, precision: str) -> str:
    """Compare log-probabilities and texts with CTranslate2's. Below fp32 they differ: differences are only reported."""
    from .ctranslate2 import import_ctranslate2, token_strings

    sample, library = Seq2SeqSample(predictor), import_ctranslate2()
    count = MatchCount(MIN_EQUAL_TEXTS if precision == "fp32" else 0.0)
    translator = library.Translator(str(draft), device="cpu")
    predictor = predictor.with_model(predictor.module)
    predictor.filters = ()  # CTranslate2 renormalizes after a filter and regard does not
    source, target = token_strings(predictor.source), token_strings(predictor.target)
    target_ids = {name: number for number, name in enumerate(target)}
    tokens = [[source[number] for number in ids] for ids in sample.ids]
    difference, largest = 0.0, sample.logits.abs().max().item()
    penalty: float = predictor.run.decode.strategy.length_penalty
    for size, ours in ((1, greedy(sample.max_tokens)), (BEAM, beam(sample.max_tokens, "first", penalty))):
        theirs = {"beam_size": size, "length_penalty": penalty, "min_decoding_length": 0}
        outputs = translator.translate_batch(tokens, max_decoding_length=sample.max_tokens, **theirs)
        ids = [[target_ids[name] for name in output.hypotheses[0]] for output in outputs]
        scores = translator.score_batch(tokens, [output.hypotheses[0] for output in outputs])
        for score, expected in zip(scores, predictor.logprobs(sample.ids, ids), strict=True):
            pairs = zip(score.log_probs, expected, strict=True)
            difference = max(difference, *(abs(actual - reference) for actual, reference in pairs))
        if precision == "fp32":
            check_difference("CTranslate2 gives log-probabilities", difference, largest)
        best = best_hypotheses(predictor, sample.texts, ours)
        ended = [i for i, hypothesis in enumerate(best) if hypothesis.ended]  # unended texts are cut off elsewhere
        theirs_texts, our_texts = (
            predictor.target.decode(ids),
            predictor.target.decode([hypothesis.tokens for hypothesis in best]),
        )
        count.add("CTranslate2", [theirs_texts[i] for i in ended], [our_texts[i] for i in ended])
    result = f"{count} to those of fp32, log-probabilities apart by {difference:.1g}"
    return f"{len(tokens)} sentences with ctranslate2 {library.__version__}: {result}"
