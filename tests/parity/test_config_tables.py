"""Config tables are two-way: a Config survives export and import, and a config.json survives import and export."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.types import Base
from regard.families import bert as bert_family
from regard.families import bigbird as bigbird_family
from regard.families import gpt as gpt_family
from regard.families import longformer as longformer_family
from regard.families import t5 as t5_family
from regard.families import transformer as transformer_family
from regard.families import whisper as whisper_family
from regard.formats.huggingface import bert, bigbird, gpt2, llama, longformer, marian, roberta, t5, whisper
from regard.formats.huggingface.config_table import (
    REQUIRED,
    ConfigTable,
    Field,
    Fixed,
    Joint,
    Limit,
    Only,
    choice,
    get_path,
    set_path,
)


@dataclass(frozen=True)
class Case:
    """A table with Configs of ours and configs of theirs that it must carry over unchanged."""

    table: ConfigTable
    config: type[Base]
    sizes: Mapping[str, Mapping[str, Any]]
    theirs: list[dict[str, Any]]  # config.json of transformers' own classes
    ours: dict[str, Any]  # settings that make every size representable
    settings: dict[str, st.SearchStrategy[Any]]  # by dotted path, for random Configs
    outside: tuple[str, ...] = ()  # fields that the importer takes from the tensors and labels
    repair: Callable[[dict[str, Any]], None] = field(default=lambda values: None)  # makes random settings consistent

    def build(self, **changes: Any) -> Any:
        """A Config with settings by dotted path."""
        values: dict[str, Any] = {"vocab": 60}
        for path, value in (self.ours | changes).items():
            set_path(values, path, value)
        self.repair(values)
        return self.config.model_validate(values)

    def size(self, name: str) -> Any:
        """The Config of a named size, with `ours` on top."""
        values: dict[str, Any] = {"vocab": 60, "size": name}
        for group, value in self.sizes[name].items():
            values[group] = dict(value) if isinstance(value, Mapping) else value
        for path, value in self.ours.items():
            set_path(values, path, value)
        return self.config.model_validate(values)

    def reimport(self, c: Any) -> Any:
        """Export and import."""
        outside = {name: getattr(c, name) for name in ("size", *self.outside)}
        return self.config.model_validate(self.table.read(self.table.write(c)) | outside)


counts, shares = st.integers(1, 9), st.sampled_from([0.0, 0.1, 0.25])
eps = st.sampled_from([1e-12, 1e-6, 0.2])
acts = st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])
ENCODER: dict[str, st.SearchStrategy[Any]] = {
    "vocab": counts, "token_types": counts, "heads": counts, "layers": st.integers(1, 4), "inner": counts,
    "dropout": shares, "tied": st.booleans(), "feed.act": acts, "norm.eps": eps, "positions.tokens": counts,
    "head": st.sampled_from(["none", "words", "class", "tag"]),
}  # fmt: skip


def widen(values: dict[str, Any]) -> None:
    values["width"] = 2 * values.get("heads", 8)


def widen_longformer(values: dict[str, Any]) -> None:
    widen(values)
    radius = values["attention"]["radius"]
    if isinstance(radius, list):  # one for each layer, not all equal
        values["attention"]["radius"] = [radius[0] + i for i in range(values["layers"])] if values["layers"] > 1 else 3


def set_heads(values: dict[str, Any]) -> None:
    """Make the heads fit: 2 key heads or as many as query heads, a head width of its own or one that follows."""
    if values.get("key_heads"):
        values["heads"], values["key_heads"] = 2 * values["heads"], values["heads"]
    values["width"] = 2 * values["heads"]
    if values.get("head_width"):
        values["head_width"] = 4


def as_json(config: Any, **changes: Any) -> dict[str, Any]:
    return config.to_dict() | changes


GPT: dict[str, st.SearchStrategy[Any]] = {
    "vocab": counts, "heads": counts, "layers": counts, "inner": counts, "dropout": shares, "head_dropout": shares,
    "tied": st.booleans(), "feed.act": acts, "feed.dropout": shares, "norm.eps": eps, "key_heads": st.integers(0, 1),
    "head_width": st.integers(0, 1),
}  # fmt: skip
MODERN: dict[str, Any] = {"positions.kind": "rotary", "norm.kind": "rms", "feed.kind": "gated"}
SCALED = {"attention.dropout": shares, "attention.scaled": st.sampled_from([True, True, False])}
BASES = {"positions.base": st.sampled_from([500.0, 10000.0, 1e6])}
OLDER = {"rope_theta": 10000.0}  # which transformers no longer writes
SMALL_GPT = {name: gpt_family.SIZES[name] for name in ("tiny", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}
MODERN_GPT = {
    name: {key: value for key, value in gpt_family.SIZES[name].items() if not isinstance(value, str)}  # slots: MODERN
    for name in ("modern-tiny", "modern")
}

CASES = {
    "marian": Case(
        marian.CONFIG, transformer_family.Config, transformer_family.SIZES,
        [as_json(hf.MarianConfig(decoder_layers=3, scale_embedding=True)),
         as_json(hf.MarianConfig(share_encoder_decoder_embeddings=False, decoder_vocab_size=50, activation_function="silu"))],
        {},
        {"vocab": counts, "target_vocab": st.integers(0, 9), "heads": counts, "layers": st.integers(4, 6),
         "decoder_layers": st.integers(0, 3), "inner": counts, "dropout": shares, "tied": st.booleans(), "scaled": st.booleans(),
         "biased": st.booleans(), "prenorm": st.sampled_from([False, False, True]), "feed.act": acts, "feed.dropout": shares,
         "norm.eps": st.sampled_from([1e-5, 1e-5, 0.1]), "positions.layout": st.sampled_from(["interleaved", "halves", "whisper"]),
         "attention.dropout": shares},
        (), widen,
    ),
    "gpt2": Case(
        gpt2.CONFIG, gpt_family.Config, SMALL_GPT,
        [as_json(hf.GPT2Config(n_inner=50, layer_norm_epsilon=0.1, n_positions=9)),
         as_json(hf.GPT2Config(n_inner=3072, activation_function="relu", scale_attn_weights=False))],
        {}, GPT | {"positions.kind": st.just("learned"), "positions.tokens": counts} | SCALED, (), set_heads,
    ),
    "llama": Case(
        llama.CONFIG, gpt_family.Config, MODERN_GPT,
        [as_json(hf.LlamaConfig(num_key_value_heads=4, head_dim=10, hidden_act="gelu"), **OLDER),
         as_json(hf.LlamaConfig(attention_bias=True, mlp_bias=True), **OLDER)],
        MODERN, GPT | BASES | {"biased": st.booleans()} | SCALED, (), set_heads,
    ),
    "mistral": Case(
        llama.MISTRAL_CONFIG, gpt_family.Config, MODERN_GPT,
        [as_json(hf.MistralConfig(sliding_window=7), **OLDER, attention_bias=False, mlp_bias=False),
         as_json(hf.MistralConfig(sliding_window=None), **OLDER, attention_bias=False, mlp_bias=False)],
        MODERN, GPT | BASES | {"biased": st.booleans(), "attention.kind": st.just("window"), "attention.radius": counts},
        (), set_heads,
    ),
    "qwen2": Case(
        llama.QWEN2_CONFIG, gpt_family.Config, MODERN_GPT,
        [as_json(hf.Qwen2Config(num_key_value_heads=2), **OLDER, head_dim=128), as_json(hf.Qwen2Config(), **OLDER, head_dim=128)],
        MODERN | {"biased": True}, GPT | BASES | SCALED, (), set_heads,
    ),
    "bert": Case(
        bert.CONFIG, bert_family.Config, bert_family.SIZES,
        [as_json(hf.BertConfig(), architectures=["BertForMaskedLM"]),
         as_json(hf.BertConfig(hidden_act="relu", layer_norm_eps=0.1), architectures=["BertForTokenClassification"])],
        {}, ENCODER | {"attention.kind": st.just("dense"), "attention.dropout": shares,
                                           "positions.kind": st.just("learned"), "next_sentence": st.booleans()},
        ("labels", "pooled", "next_sentence"), widen,
    ),
    "roberta": Case(
        roberta.CONFIG, bert_family.Config, bert_family.SIZES,
        [as_json(hf.RobertaConfig(), architectures=["RobertaForMaskedLM"])],
        {}, ENCODER | {"attention.kind": st.just("dense"), "attention.dropout": shares, "positions.kind": st.just("learned")},
        ("labels", "pooled"), widen,
    ),
    "longformer": Case(
        longformer.CONFIG, longformer_family.Config, longformer_family.SIZES,
        [as_json(hf.LongformerConfig(attention_window=[8, 6] + [4] * 10, attention_probs_dropout_prob=0.0),
                 architectures=["LongformerModel"], regard={"globals": 1})],
        {},
        ENCODER | {"attention.radius": st.one_of(counts, st.lists(counts, min_size=1)), "positions.kind": st.just("learned"),
                   "attention.globals": st.integers(0, 2), "feed.kind": st.just("plain")},
        ("labels", "pooled"), widen_longformer,
    ),
    "bigbird": Case(
        bigbird.CONFIG, bigbird_family.Config, bigbird_family.SIZES,
        [as_json(hf.BigBirdConfig(block_size=16), architectures=["BigBirdForMaskedLM"]),
         as_json(hf.BigBirdConfig(attention_type="original_full"), architectures=["BigBirdModel"])],
        {"attention.kind": "blocks", "attention.drawn": False},
        ENCODER | {"attention.size": counts, "attention.random": st.integers(0, 4), "positions.kind": st.just("learned"),
                   "feed.kind": st.just("plain")},
        ("labels", "pooled", "next_sentence"), widen,
    ),
    "t5": Case(
        t5.CONFIG, t5_family.Config, t5_family.SIZES,
        [as_json(hf.T5Config(num_decoder_layers=3), scale_decoder_outputs=True),
         as_json(hf.T5Config(feed_forward_proj="gated-gelu"), tie_word_embeddings=False, scale_decoder_outputs=False)],
        {},
        {"vocab": counts, "width": counts, "heads": counts, "head_width": counts, "layers": st.integers(4, 6),
         "decoder_layers": st.integers(0, 3), "inner": counts, "dropout": shares, "attention.dropout": shares, "tied": st.booleans(), "feed.kind": st.sampled_from(["plain", "gated"]),
         "feed.act": acts, "norm.eps": eps, "positions.buckets": st.integers(4, 9), "positions.far": st.integers(9, 20)},
    ),
    "whisper": Case(
        whisper.CONFIG, whisper_family.Config, whisper_family.SIZES,
        [as_json(hf.WhisperConfig(decoder_layers=2, num_mel_bins=128), architectures=["WhisperForConditionalGeneration"]),
         as_json(hf.WhisperConfig(activation_function="relu", max_target_positions=9, dropout=0.1, activation_dropout=0.2),
                 architectures=["WhisperForConditionalGeneration"])],
        {},
        {"vocab": counts, "bins": counts, "heads": counts, "layers": st.integers(4, 6), "decoder_layers": st.integers(0, 3),
         "inner": counts, "dropout": shares, "tied": st.booleans(), "source_positions": counts, "positions.tokens": counts,
         "attention.dropout": shares, "attention.scaled": st.sampled_from([True, True, False]), "feed.act": acts,
         "feed.dropout": shares, "norm.eps": st.sampled_from([1e-5, 1e-5, 0.1])},
        (), widen,
    ),
}  # fmt: skip


def assert_restored(case: Case, c: Any) -> None:
    """Export and import give the same Config, up to settings that only an import sets and no output depends on."""
    assert case.table.unsupported(c) == []
    values, back = c.model_dump(), case.reimport(c)
    for row in case.table.rows:
        if isinstance(row, Fixed) and row.expected is None:
            set_path(values, row.ours, row.value)
        elif isinstance(row, Field) and row.write is None:
            set_path(values, row.ours, get_path(back, row.ours))
    assert back == case.config.model_validate(values)
    assert case.table.write(back) == case.table.write(c)


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, case in CASES.items() for size in case.sizes])
def test_every_size_survives_export_and_import(name: str, size: str) -> None:
    assert_restored(CASES[name], CASES[name].size(size))


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_random_configs_survive_export_and_import(name: str, data: st.DataObject) -> None:
    """Every Config is restored, or refused in words."""
    case = CASES[name]
    changes = {path: data.draw(strategy, label=path) for path, strategy in case.settings.items()}
    c = case.build(**changes)
    if refused := case.table.unsupported(c):
        assert all(text.startswith("model.") and "(expected" in text for text in refused)
    else:
        assert_restored(case, c)


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, case in CASES.items() for i in range(len(case.theirs))]
)
def test_every_key_of_theirs_survives_import_and_export(name: str, number: int) -> None:
    case, theirs = CASES[name], CASES[name].theirs[number]
    written = case.table.write(case.config.model_validate(case.table.read(theirs)))
    assert len(written) > 10
    one = {} if theirs["architectures"] else {"architectures": written["architectures"]}  # the only class of a type
    assert written == {key: theirs.get(key, "absent") for key in written} | one
    assert hasattr(hf, written["architectures"][0])


@pytest.mark.parametrize("name", CASES)
def test_defaults_are_transformers_own(name: str) -> None:
    """An absent key means what it means in transformers: reading only what a table requires changes nothing."""
    case = CASES[name]
    theirs = case.theirs[-1]
    defaults = type(hf.AutoConfig.for_model(theirs["model_type"]))().to_dict()
    fields = [row for row in case.table.rows if isinstance(row, Field)]
    whole = case.table.read(theirs | {row.theirs: defaults[row.theirs] for row in fields if row.theirs in defaults})
    absent = {row.theirs for row in fields if row.theirs in defaults and row.default is not REQUIRED}
    assert absent
    assert case.table.read({key: value for key, value in theirs.items() if key not in absent}) == whole


# --- the rows --------------------------------------------------------------------------------------------------------


class Ours(Base):
    width: int = 4
    tied: bool = True
    act: str = "gelu"
    extra: int = 0


TABLE = ConfigTable(
    (
        Field("width", "d"),
        Field("act", "f", "a", **choice("f", {"a": "gelu", "b": "relu", "c": "relu"})),
        Fixed("tied", True, "expected true"),
        Fixed("extra", 0),
        Only("bias", True, "expected true"),
        Only("mode", "x", "expected 'x'", written=False),
        Joint(lambda theirs: {}, lambda c: {"double": 2 * c.width}),
        Limit(lambda c: "model.width=9 (expected less)" if c.width == 9 else None),
    )
)


def test_rows() -> None:
    assert TABLE.read({"d": 3, "f": None, "bias": None}) == {"width": 3, "act": "gelu", "tied": True, "extra": 0}
    assert TABLE.write(Ours(act="relu")) == {"d": 4, "f": "b", "bias": True, "double": 8}
    assert TABLE.unsupported(Ours(tied=False, width=9, extra=7)) == [
        "model.tied=false (expected true)",
        "model.width=9 (expected less)",
    ]
    for theirs, words in (
        ({"d": 3, "f": "z"}, "f is 'z'; expected one of a, b, c"),
        ({"d": 3, "bias": False}, "bias is false; expected true"),
        ({"d": 3, "mode": "y"}, "mode is 'y'; expected 'x'"),
    ):
        with pytest.raises(ValueError, match=words):
            TABLE.read(theirs)
    with pytest.raises(KeyError, match="d"):
        TABLE.read({})


def test_paths() -> None:
    c = bert_family.Config()
    assert get_path(c, "attention.dropout") == 0.1 and get_path(c, "attention.radius", 5) == 5
    with pytest.raises(AttributeError):
        get_path(c, "attention.radius")
