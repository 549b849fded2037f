"""The self-check of an exported encoder-decoder: the same tokens, logits and texts as the run, on a few sentences."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..config.strategies import Beam, EarlyStopping, Greedy, TokenRules
from ..data.batch import Batch
from ..decode import Hypothesis
from ..errors import UserError
from ..files import JsonMapping, JsonObject

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from ..tasks.translate.task import TranslatePredictor
    from .huggingface.format import Folder

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


def compare_tokens(reader: str, texts: list[str], theirs: list[list[int]], expected: list[list[int]]) -> None:
    """An error for the first text whose tokens differ from the expected ones."""
    for text, actual, tokens in zip(texts, theirs, expected, strict=True):
        if actual != tokens:
            raise export_error(f"{reader} gives other tokens for {text!r}: {actual} and not {tokens}")


class Seq2SeqSample:
    """Tokens, logits and texts, by greedy and by beam search, of the run for a few sentences."""

    def __init__(self, predictor: "TranslatePredictor") -> None:
        self.predictor, self.texts = predictor, sample_texts(predictor)
        self.ids = predictor.source.encode(self.texts)
        self.max_tokens = 2 * max(map(len, self.ids)) + 16
        outputs = predictor.predict(self.texts, **greedy(self.max_tokens))
        self.batch: Batch = predictor.pair(self.ids, predictor.target.encode(outputs))
        self.logits = self.logits_of(predictor)
        self.inputs, self.expected, self.count = f"{len(self.texts)} sentences", [self.logits], MatchCount()

    @torch.no_grad()
    def logits_of(self, predictor: "TranslatePredictor") -> Tensor:
        from ..decode.engine.passes import logits

        return logits(predictor.model, self.batch)

    def ours(self, folder: "Folder") -> list[Tensor]:
        from ..tasks.translate.task import TranslatePredictor
        from .huggingface.folder import load_folder

        predictor, ours = self.predictor, load_folder(folder.root, {"device": "cpu"})
        assert isinstance(ours, TranslatePredictor)
        compare_tokens("the folder", self.texts, ours.source.encode(self.texts), self.ids)
        penalties = [each.run.decode.strategy.length_penalty for each in (ours, predictor)]
        for theirs, expected in ([greedy(0)] * 2, [beam(0, "exact", penalty) for penalty in penalties]):
            self.count.add("the folder", ours.predict(self.texts, **theirs), predictor.predict(self.texts, **expected))
        return [self.logits_of(ours)]

    def theirs(self, model: nn.Module, draft: Path, hf: ModuleType) -> list[Tensor]:
        from .huggingface.seq2seq import has_target_folder

        predictor, texts, hf_model = self.predictor, self.texts, cast(Any, model)
        source = target = hf.AutoTokenizer.from_pretrained(draft)
        if has_target_folder(predictor):
            target = hf.AutoTokenizer.from_pretrained(draft, subfolder="target")
        ids = [[*row, predictor.source.end] for row in self.ids]
        compare_tokens("transformers", texts, source(texts).input_ids, ids)
        batch, inputs = self.batch, source(texts, return_tensors="pt", padding=True)
        logits = hf_model(**inputs, decoder_input_ids=batch["target"].values).logits
        penalty: float = predictor.run.decode.strategy.length_penalty
        hf_model.generation_config = plain_generation(
            hf_model.generation_config, predictor.target.end, predictor.suppressed, hf
        )
        for theirs, ours in (
            ({"num_beams": 1}, greedy(self.max_tokens)),
            (
                {"num_beams": BEAM, "early_stopping": False, "length_penalty": penalty},
                beam(self.max_tokens, "heuristic", penalty),
            ),
        ):
            outputs = hf_model.generate(**inputs, max_new_tokens=self.max_tokens, **theirs)
            decoded = target.batch_decode(outputs, skip_special_tokens=True)
            self.count.add("transformers", decoded, whole_texts(predictor, texts, ours))
        return [logits.flatten(0, 1)[batch["labels"].positions]]

    def findings(self) -> str:
        return f"{self.count}, "


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
