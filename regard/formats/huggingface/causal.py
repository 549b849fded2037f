"""Parts shared by folders of causal language models: tokenizer, generation settings, predictor, export."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from ...config.run_folder import FORMAT
from ...decode import SearchSettings, run_search
from ...errors import UserError
from ...families import gpt
from ...files import JsonMapping, JsonObject
from ...parts import Inputs
from ...processors.text.external import FolderTokenizer
from ...processors.text.tokenizers import Tokenizer, TrainedTokenizer
from ...tasks.language.settings import LanguageDecode
from ..parity import SAMPLE_COUNT, MatchCount, compare_tokens
from .config_table import Only
from .control_ids import NO_PAD, ROLES, check_control_ids, check_vocabulary
from .format import Export, Folder
from .generation import (
    RULES,
    Generation,
    control_ids,
    generated_rules,
    generated_strategy,
    penalty_from_generation,
    read_generation_config,
    regard_entry,
    rules_from_generation,
    strategy_from_generation,
)
from .tokenizer_export import portable_tokenizer, tokenizer_config, write_tokenizer_json
from .vocabularies import byte_level_bpe, tokenizer_settings

if TYPE_CHECKING:
    from ...tasks.language.task import LanguagePredictor

UNQUANTIZED = Only("quantization_config", None, "regard reads unquantized folders", written=False)
NOT_APPLIED = ("encoder_no_repeat_ngram_size",)  # rules of models with a source

# --- tokenizer -------------------------------------------------------------------------------------------------------


def tokenizer(path: Path, config: JsonMapping) -> FolderTokenizer:
    """The tokenizer of tokenizer.json, or of GPT-2's vocab.json and merges.txt."""
    names = tokenizer_settings(path)
    control = [names[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token") if names.get(key)]
    backend = _backend(path, control)

    def token_id(role: str) -> int | None:
        if name := names.get(f"{role}_token"):
            return _token_id(path, backend, name)
        value = config.get(f"{role}_token_id")
        number = value[0] if isinstance(value, list) else value
        return None if number == NO_PAD else number

    end = token_id("eos")
    if end is None:
        raise UserError(f"{path} does not name the token that ends a text; set eos_token in tokenizer_config.json")
    pad, start, unk = (end if (number := token_id(role)) is None else number for role in ("pad", "bos", "unk"))
    return FolderTokenizer(backend, pad, start, end, unk)


def _backend(path: Path, control: list[str]) -> Backend:
    if (path / "tokenizer.json").is_file():
        try:
            backend = Backend.from_str((path / "tokenizer.json").read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing more specific
            raise UserError(
                f"{path / 'tokenizer.json'} is no complete tokenizer ({error}); fetch the folder again"
            ) from error
        backend.no_truncation()
        backend.no_padding()
        return backend
    backend = byte_level_bpe(path)
    special = [name for name in dict.fromkeys([*control, "<|endoftext|>"]) if backend.token_to_id(name) is not None]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return backend


def _token_id(path: Path, backend: Backend, name: str) -> int:
    token: int | None = backend.token_to_id(name)
    if token is None:
        raise UserError(f"{path}: {name!r} of tokenizer_config.json is not in the vocabulary; fetch the folder again")
    return token


# --- generation settings ---------------------------------------------------------------------------------------------


def decode_from_generation(generation: JsonMapping) -> JsonObject:
    """The decode settings of a folder's generation_config.json. The prompt counts in its max_length and min_length."""
    limits: JsonObject = {}
    if newest := generation.get("max_new_tokens"):
        limits = {"max_tokens": newest}
    elif longest := generation.get("max_length"):
        limits = dict.fromkeys(("max_tokens", "max_length"), longest)
    if fewest := generation.get("min_new_tokens"):
        limits["min_tokens"] = min(fewest, limits.get("max_tokens", fewest))  # there the maximum wins
    elif shortest := generation.get("min_length"):
        limits["min_length"] = shortest
    if stop := generation.get("stop_strings"):
        limits["stop"] = [stop] if isinstance(stop, str) else stop
    strategy = {"strategy": strategy_from_generation(generation), **penalty_from_generation(generation)}
    rules = {key: value for key, value in rules_from_generation(generation).items() if key not in NOT_APPLIED}
    return {**strategy, **limits, "rules": rules}


def generation_settings(decode: LanguageDecode, suppressed: Collection[int] = ()) -> JsonObject:
    """generation_config.json of our decode settings."""
    counts_prompt = 0 < decode.max_length <= decode.max_tokens
    limits = {"max_length": decode.max_length} if counts_prompt else {"max_new_tokens": decode.max_tokens}
    limits |= {"min_length": decode.min_length} if decode.min_length else {}
    return limits | generated_strategy(decode) | generated_rules(decode, suppressed)


def decode_entry(decode: LanguageDecode) -> JsonObject:
    """The `regard` entry that `saved_decode` reads. Limits and rules are read from generation_config.json."""
    limits = {"max_tokens", "max_length", "min_tokens", "min_length"}
    penalty = "repetition_penalty"
    values = decode.model_dump(mode="json", exclude={"batch", "rules", penalty, *limits})
    generation = {key: value for key, value in generation_settings(decode).items() if key not in (*RULES, penalty)}
    return {"regard": {"format": FORMAT, "decode": values, "generation": generation}}


def saved_decode(config: JsonMapping, generation: JsonMapping) -> JsonObject:
    """The decode settings of the exported run; empty if generation_config.json was changed since, or is of another."""
    entry = regard_entry(config, "language", "gpt")
    if not entry or any(generation.get(key) != value for key, value in entry.get("generation", {}).items()):
        return {}
    decode: JsonObject = entry["decode"]
    return decode


GENERATION = Generation("language", decode_from_generation, saved_decode, NOT_APPLIED)


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CausalFolder(Folder):
    """The contents of a folder with a causal language model."""

    tokenizer: FolderTokenizer


class CausalProcessors:
    """The tokenizer of a language model, and its decode settings."""

    def read(self, folder: Folder) -> CausalFolder:
        """The folder with its tokenizer."""
        path, theirs = folder.path, folder.theirs
        names = tokenizer_settings(path)
        named = [role for role in ROLES if names.get(f"{role}_token")]
        check_control_ids(path, theirs, folder.config.vocab, named=named)
        return with_tokenizer(folder, tokenizer(path, theirs))

    def load(self, folder: CausalFolder, overrides: JsonMapping) -> "LanguagePredictor":
        """The language predictor of a folder."""
        from ...device import resolve_device
        from ...tasks.language.task import LanguagePredictor

        text = folder.tokenizer
        generation = read_generation_config(folder.path, folder.theirs)
        run, filters = GENERATION.run(folder, generation, text, overrides, add_start=text.adds_start)
        return LanguagePredictor(run, folder.model, text, resolve_device(run.device), filters)

    def write(self, predictor: "LanguagePredictor", draft: Path) -> JsonObject:
        """Write the tokenizer; return its control tokens and the decode settings of the run."""
        longest = max_length(predictor)
        write_folder_tokenizer(predictor.tokenizer, draft, longest, add_end=False)
        has_table = cast(gpt.Model, predictor.module).context
        positions = {} if has_table else {"max_position_embeddings": longest}
        return positions | control_ids(predictor.tokenizer) | decode_entry(predictor.run.decode)


def with_tokenizer(folder: Folder, text: FolderTokenizer) -> CausalFolder:
    """The folder with a tokenizer that fits its model."""
    path, vocab = folder.path, folder.config.vocab
    if text.size > vocab:
        raise UserError(
            f"{path}: the tokenizer has {text.size} entries and the model only {vocab} (vocab_size); "
            "use the tokenizer of this model"
        )
    check_vocabulary(path, text.backend.get_vocab().values(), vocab)
    return CausalFolder(**vars(folder), tokenizer=text)


def max_length(predictor: "LanguagePredictor") -> int:
    """The longest text of a model."""
    return cast(gpt.Model, predictor.module).context or max(2048, predictor.run.data.max_tokens)


def written_generation(predictor: "LanguagePredictor") -> JsonObject:
    """generation_config.json of a run."""
    ends = list(predictor.run.decode.rules.eos_token_id)
    settings = generation_settings(predictor.run.decode, predictor.suppressed)
    return settings | control_ids(predictor.tokenizer) | ({"eos_token_id": ends} if ends else {})


def write_folder_tokenizer(tokenizer: Tokenizer, draft: Path, longest: int, add_end: bool = True) -> None:
    """Write a tokenizer of ours, or one that was imported with its own control tokens."""
    about = tokenizer_config(tokenizer, longest)
    if isinstance(tokenizer, FolderTokenizer):
        write_tokenizer_json(draft, tokenizer.backend, about | control_token_names(tokenizer))
    else:
        write_tokenizer_json(draft, portable_tokenizer(cast(TrainedTokenizer, tokenizer), add_end=add_end), about)


def control_token_names(tokenizer: FolderTokenizer) -> dict[str, str]:
    """The names that an imported vocabulary has for control tokens."""
    roles = {
        "pad_token": tokenizer.pad,
        "bos_token": tokenizer.start,
        "eos_token": tokenizer.end,
        "unk_token": tokenizer.unk,
    }
    return {role: str(tokenizer.backend.id_to_token(token)) for role, token in roles.items()}


# --- the export is compared ------------------------------------------------------------------------------------------

STEPS = 16  # tokens by which every text is continued


class CausalSample:
    """Tokens, logits and continuations of the run for a few texts of random tokens, which are hard to tokenize."""

    def __init__(self, predictor: "LanguagePredictor") -> None:
        model, self.tokenizer = cast(gpt.Model, predictor.module), predictor.tokenizer
        generator = torch.Generator().manual_seed(1)
        rows = torch.randint(4, self.tokenizer.size, (SAMPLE_COUNT, 12), generator=generator).tolist()
        texts = self.tokenizer.decode([row[: 5 + i] for i, row in enumerate(rows)])
        self.texts = [*texts, "</s> is <s> text"]
        self.ids = self.tokenizer.encode(self.texts)
        prompts = [[self.tokenizer.start, *ids] for ids in self.ids]
        longest = min(max(map(len, prompts)), (model.context or 10**9) - STEPS)
        self.prompts = [prompt[: max(longest, 1)] for prompt in prompts]
        self.logits, self.outputs = self.logits_of(model), self.continuations(model)
        self.inputs, self.expected, self.count = f"{len(self.texts)} texts", [self.logits], MatchCount()

    def batch(self, left: bool = False) -> tuple[Tensor, Tensor]:
        """(tokens, valid), padded on the right as regard does, or on the left as transformers does."""
        longest = max(map(len, self.prompts))
        pads = [[self.tokenizer.pad] * (longest - len(row)) for row in self.prompts]
        rows = [pad + row if left else row + pad for row, pad in zip(self.prompts, pads, strict=True)]
        valid = torch.arange(longest) < torch.tensor([[len(row)] for row in self.prompts])
        return torch.tensor(rows), valid.flip(1) if left else valid

    @torch.no_grad()
    def logits_of(self, model: gpt.Model) -> Tensor:
        tokens, valid = self.batch()
        logits: Tensor = model(Inputs("tokens", tokens, valid))
        return logits[valid]

    def continuations(self, model: gpt.Model) -> list[str]:
        tokens, valid = self.batch()
        limits = torch.full((len(tokens),), STEPS)
        settings = SearchSettings(self.tokenizer.end, beam=1, early_stopping="first")
        hypotheses = run_search(model, model.start(None, len(tokens)), tokens, limits, settings, valid)
        return self.token_texts([best[0].tokens for best in hypotheses])

    def token_texts(self, rows: list[list[int]]) -> list[str]:
        """Texts that differ wherever the tokens do, also for tokens of half a character."""
        return [" ".join(self.tokenizer.tokens(row)) for row in rows]

    def ours(self, folder: CausalFolder) -> list[Tensor]:
        compare_tokens("the folder", self.texts, folder.tokenizer.encode(self.texts), self.ids)
        self.count.add("the folder", self.continuations(folder.model), self.outputs)
        return [self.logits_of(folder.model)]

    def theirs(self, model: nn.Module, draft: Path, hf: ModuleType) -> list[Tensor]:
        end, hf_model, ids = (
            self.tokenizer.end,
            cast(Any, model),
            hf.AutoTokenizer.from_pretrained(draft)(self.texts).input_ids,
        )
        if getattr(self.tokenizer, "adds_start", False):  # an imported vocabulary may put START before every text
            ids = [row[1:] if row[0] == self.tokenizer.start else row for row in ids]
        compare_tokens("transformers", self.texts, ids, self.ids)
        (tokens, valid), (left_tokens, left_valid) = self.batch(), self.batch(left=True)
        logits = hf_model(tokens, attention_mask=valid.long()).logits[valid]
        plain = hf.GenerationConfig(max_new_tokens=STEPS, eos_token_id=end, pad_token_id=self.tokenizer.pad)  # greedy
        hf_model.generation_config = hf.GenerationConfig()  # the preferences of a model are not compared
        output = hf_model.generate(left_tokens, attention_mask=left_valid.long(), generation_config=plain)
        rows = [row[: row.index(end)] if end in row else row for row in output[:, left_tokens.size(1) :].tolist()]
        self.count.add("transformers", self.token_texts(rows), self.outputs)
        return [logits]

    def findings(self) -> str:
        return f"{self.count}, "


def usage(predictor: "LanguagePredictor") -> str:
    """The usage example of README.md."""
    start = "tokenizer.bos_token_id, " if predictor.run.decode.add_start else ""
    control = "The tokenizer adds neither START (`<s>`) nor END (`</s>`)."
    if isinstance(predictor.tokenizer, FolderTokenizer):
        control = "Here the tokenizer adds neither START (`tokenizer.bos_token`) nor END (`tokenizer.eos_token`)."
    return f"""
```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
ids = torch.tensor([[{start}*tokenizer("a sentence", add_special_tokens=False).input_ids]])
output = model.generate(ids, attention_mask=torch.ones_like(ids))
print(tokenizer.decode(output[0], skip_special_tokens=True))
```

{control} START precedes a text that is read from its beginning;
regard adds it unless `decode.add_start=false`. The model predicts END where a text is over.
"""


def causal_export(model_type: Callable[[gpt.Config], str]) -> "Export[LanguagePredictor, CausalFolder]":
    """How runs become folders of the model type of their Config."""
    return Export(model_type, CausalSample, usage, lambda c: "text-generation", written_generation)
