"""Every supported class of transformers, both ways: its folder gives its outputs here; ours gives ours there."""

import json
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import bert as small_bert
from helpers import causal, long, parity
from helpers.causal import loud as causal_loud
from prototypes.checks import loud

from regard.config.data.texts import TokenizerConfig
from regard.config.family import family_of
from regard.config.run import resolve_run
from regard.errors import UserError
from regard.formats.convert import exporters, find_exporter
from regard.formats.huggingface.folder import FORMATS, format_of_type
from regard.formats.huggingface.weight_names import export_weights
from regard.processors.text import tokenizers

Settings = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A class of transformers: `theirs` changes its config, `ours` the config of our family that exports to it."""

    name: str
    family: str
    architecture: str
    theirs: Settings = field(default_factory=dict)
    ours: Settings | None = None  # None: only the import is in this row
    expected: Settings = field(default_factory=dict)  # settings of the imported config


BERT = {
    "width": 36, "heads": 3, "layers": 2, "inner": 50, "token_types": 3, "positions": {"kind": "learned", "tokens": 41},
}  # fmt: skip
LONG = {
    "width": 36, "heads": 3, "layers": 2, "inner": 50, "attention": {"radius": 2}, "positions": {"kind": "learned", "tokens": 150},
}  # fmt: skip
GPT = {"width": 48, "heads": 4, "layers": 2, "inner": 64, "positions": {"kind": "learned", "tokens": 90}}
MODERN = {"size": "modern-tiny", "width": 48, "heads": 4, "key_heads": 2, "inner": 64}
PAIR = {"width": 36, "heads": 3, "layers": 2, "inner": 50}
LABELS = {"num_labels": 5}
TASK = {"transformer": "translate", "t5": "translate", "gpt": "language"}
MAX_TOKENS = {"bert": 41, "longformer": 138, "bigbird": 140}  # of the folders that `write_folder` makes
MEDIA = {"vit", "detr", "resnet", "whisper", "clip", "vision-encoder-decoder"}  # compared in test_vit.py, …
KEYS = "config.key_heads"
WINDOW = {"config.attention.radius": (4, 2, 8)}
ROWS = [
    Row("model", "bert", "BertModel", {}, BERT | {"pooled": True}),
    Row("masked", "bert", "BertForMaskedLM", {}, BERT | {"head": "words", "pooled": True}),
    Row("gelu_new", "bert", "BertForMaskedLM", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "hidden_size": 39}),
    Row("relu", "bert", "BertForMaskedLM", {"hidden_act": "relu", "hidden_size": 39}),
    Row("untied", "bert", "BertForMaskedLM", {"tie_word_embeddings": False}, BERT | {"head": "words", "tied": False}),
    Row("pretraining", "bert", "BertForPreTraining", {},
        BERT | {"head": "words", "next_sentence": True, "feed": {"kind": "plain", "act": "gelu_tanh"}}),
    Row("next sentence", "bert", "BertForNextSentencePrediction", {}, BERT | {"next_sentence": True}),
    Row("class", "bert", "BertForSequenceClassification", LABELS,
        BERT | {"head": "class", "labels": 4, "norm": {"kind": "layer", "eps": 0.2}}),
    Row("tags", "bert", "BertForTokenClassification", LABELS, BERT | {"head": "tag", "labels": 7, "pooled": True}),
    Row("roberta", "bert", "RobertaModel", {}, None, {"config.positions.tokens": 41}),
    Row("roberta masked", "bert", "RobertaForMaskedLM", {"type_vocab_size": 2}),
    Row("untied", "bert", "RobertaForMaskedLM", {"tie_word_embeddings": False}),
    Row("roberta class", "bert", "RobertaForSequenceClassification", LABELS),
    Row("roberta tags", "bert", "RobertaForTokenClassification", LABELS | {"pad_token_id": 0, "max_position_embeddings": 42}),
    Row("model", "longformer", "LongformerModel", {}, LONG | {"head": "none", "pooled": True, "tied": False}, WINDOW),
    Row("wide", "longformer", "LongformerModel", {"attention_window": 300}),  # above any text: full attention
    Row("masked", "longformer", "LongformerForMaskedLM", {},
        LONG | {"head": "words", "attention": {"radius": 2, "globals": 0}}, WINDOW | {"config.attention.globals": 0}),
    Row("untied", "longformer", "LongformerForMaskedLM", {"tie_word_embeddings": False}),
    Row("class", "longformer", "LongformerForSequenceClassification", LABELS,
        LONG | {"head": "class", "labels": 3}, WINDOW | {"config.attention.globals": 1}),
    Row("tags", "longformer", "LongformerForTokenClassification", LABELS,
        LONG | {"head": "tag", "labels": 4, "attention": {"radius": [2, 3]}}, WINDOW | {"config.attention.globals": 0}),
    Row("model", "bigbird", "BigBirdModel", {}, None, {"config.attention.drawn": False}),
    Row("full", "bigbird", "BigBirdModel", {"attention_type": "original_full"}),
    Row("masked", "bigbird", "BigBirdForMaskedLM", {}, None, {"config.attention.drawn": False}),
    Row("pretraining", "bigbird", "BigBirdForPreTraining", {}, None, {"config.attention.drawn": False}),
    Row("class", "bigbird", "BigBirdForSequenceClassification", LABELS, None, {"config.attention.drawn": False}),
    Row("blocks", "bigbird", "BigBirdForSequenceClassification",
        {"block_size": 3, "num_random_blocks": 1, "hidden_act": "relu", "type_vocab_size": 3}),
    Row("tags", "bigbird", "BigBirdForTokenClassification", LABELS, None, {"config.attention.drawn": False}),
    Row("gpt2", "gpt", "GPT2LMHeadModel", {}, GPT, {"config.inner": 144}),
    Row("inner", "gpt", "GPT2LMHeadModel", {"n_inner": 50, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
        GPT | {"feed": {"kind": "plain", "act": "gelu"}}, {"config.inner": 50}),
    Row("untied", "gpt", "GPT2LMHeadModel",
        {"tie_word_embeddings": False, "activation_function": "relu", "scale_attn_weights": False},
        GPT | {"tied": False, "biased": False, "attention": {"kind": "dense", "scaled": False}}),
    Row("llama", "gpt", "LlamaForCausalLM", {}, MODERN | {"tied": False}, {KEYS: 0}),
    Row("grouped", "gpt", "LlamaForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
        MODERN | {"head_width": 10, "positions": {"kind": "rotary", "base": 500.0}}, {KEYS: 2}),
    Row("one key head", "gpt", "LlamaForCausalLM",
        {"num_key_value_heads": 1, "attention_bias": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        MODERN | {"key_heads": 1, "biased": True, "norm": {"kind": "rms", "eps": 1e-3}}, {KEYS: 1}),
    Row("feed bias", "gpt", "LlamaForCausalLM", {"mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"}),
    Row("mistral", "gpt", "MistralForCausalLM", {"num_key_value_heads": 3, "sliding_window": None}, None, {KEYS: 3}),
    Row("sliding", "gpt", "MistralForCausalLM", {"num_key_value_heads": 3, "sliding_window": 4},
        MODERN | {"attention": {"kind": "window", "radius": 3}}, {KEYS: 3}),
    Row("qwen2", "gpt", "Qwen2ForCausalLM", {"num_key_value_heads": 2, "tie_word_embeddings": True}, None, {KEYS: 2}),
    Row("shared", "transformer", "MarianMTModel", {}, PAIR | {"positions": {"kind": "sinusoid"}}),
    Row("relu", "transformer", "MarianMTModel", {"scale_embedding": False, "activation_function": "relu"},
        PAIR | {"tied": False, "biased": True, "scaled": False, "feed": {"kind": "plain", "act": "gelu_tanh"}}),
    Row("first", "t5", "T5ForConditionalGeneration", {"feed_forward_proj": "relu", "tie_word_embeddings": True},
        PAIR | {"head_width": 10, "tied": True, "feed": {"kind": "plain", "act": "relu"}}),
    Row("later", "t5", "T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        PAIR | {"head_width": 10, "decoder_layers": 1, "norm": {"kind": "rms", "eps": 0.2}}),
]  # fmt: skip
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.architecture} {row.name}")


# --- folders of transformers -----------------------------------------------------------------------------------------


def marian_folder(path: Path, row: Row) -> None:
    shape = dict(
        vocab_size=60, decoder_vocab_size=60, d_model=36, encoder_layers=2, decoder_layers=3, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=50, decoder_ffn_dim=50, activation_function="swish", scale_embedding=True,
        pad_token_id=59, eos_token_id=0, decoder_start_token_id=59, forced_eos_token_id=0, max_position_embeddings=64,
    )  # fmt: skip
    model = loud(hf.MarianMTModel(hf.MarianConfig(**shape | row.theirs)), spread=1.5)
    model.final_logits_bias.data.normal_()
    model.save_pretrained(path)


def t5_folder(path: Path, row: Row) -> None:
    shape = dict(
        vocab_size=60, d_model=36, d_kv=10, d_ff=50, num_layers=3, num_decoder_layers=2, num_heads=3,
        relative_attention_num_buckets=14, relative_attention_max_distance=19, decoder_start_token_id=0,
    )  # fmt: skip
    model = hf.T5ForConditionalGeneration(hf.T5Config(**shape | row.theirs))
    if not row.theirs["tie_word_embeddings"]:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight) * 0.2)
    model.save_pretrained(path)


def write_folder(path: Path, row: Row) -> None:
    """A folder of this class with random weights."""
    torch.manual_seed(0)
    if row.architecture.startswith("Roberta"):
        long.roberta(path, row.architecture, **row.theirs)
    elif row.family == "bert":
        small_bert.folder(path, row.architecture, **row.theirs)
    elif row.family in ("longformer", "bigbird"):
        getattr(long, row.family)(path, row.architecture, **row.theirs)
    elif row.architecture == "GPT2LMHeadModel":
        causal.gpt2(path, **row.theirs)
    elif row.family == "gpt":
        causal.llama(path, row.architecture.removesuffix("ForCausalLM").lower(), **row.theirs)
    else:
        {"transformer": marian_folder, "t5": t5_folder}[row.family](path, row)


def read_folder(path: Path) -> SimpleNamespace:
    """What the importer of a folder reads: config and model; of an encoder also max_tokens, labels and tokenizer."""
    config = json.loads((path / "config.json").read_text())
    importer = format_of_type(config["model_type"])
    folder = importer.read(path) if importer.family in MAX_TOKENS else importer.read_model(path)
    return SimpleNamespace(importer=importer, folder=folder, config=folder.config, model=folder.model)


def compare(row: Row, model: Any, path: Path) -> Any:
    """Compare our model with the folder in transformers, which must have no tensor too many or too few."""
    kind = getattr(hf, row.architecture)
    theirs, info = kind.from_pretrained(path, output_loading_info=True, attn_implementation=attention(row))
    unread = (
        {"cls.predictions.bias", "lm_head.bias"} if row.name == "untied" else set()
    )  # the bias of the decoder is another one
    assert set(info["missing_keys"]) <= unread and not info["unexpected_keys"]
    if row.family == "bigbird":
        parity.same_bigbird(model, lambda: kind.from_pretrained(path).eval())
    else:
        same = {"bert": parity.same_bert, "longformer": parity.same_longformer, "gpt": parity.same_causal}
        same.get(row.family, parity.same_seq2seq)(model.eval(), theirs.eval())
    return theirs


def attention(row: Row) -> str | None:
    return "eager" if "Mistral" in row.architecture else None  # the fused kernel ignores the window


@rows
def test_a_folder_of_transformers_gives_its_outputs_here(row: Row, tmp_path: Path) -> None:
    write_folder(tmp_path / "x", row)
    found = read_folder(tmp_path / "x")
    assert found.config.family == row.family
    theirs = compare(row, found.model, tmp_path / "x")
    for path, value in row.expected.items():
        assert attrgetter(path)(found) == value, path
    if row.family in MAX_TOKENS:
        labels = row.theirs.get("num_labels", 2) if "Classification" in row.architecture else 0
        assert found.folder.labels == tuple(f"LABEL_{i}" for i in range(labels))
        assert found.folder.max_tokens == MAX_TOKENS[row.family]
    if row.name == "untied" and row.architecture == "BertForMaskedLM":
        assert not theirs.cls.predictions.decoder.bias.equal(theirs.cls.predictions.bias)
    if row.family == "gpt":
        keys = found.config.key_heads or found.config.heads
        assert found.model.stack.layers[0].attention.key_heads == keys
        assert found.model.context == (64 if "GPT2" in row.architecture else None)
    if row.family in TASK:  # every tensor goes back bit for bit
        back, state = export_weights(found.model, found.importer.weights.names(found.config)), theirs.state_dict()
        assert len(back) > 10
        for name in {*back, *state} if row.family == "gpt" else back:
            zero = name not in state and name.endswith(".bias") and back[name].abs().max() == 0
            assert zero or back[name].equal(state[name]), name


# --- folders of ours -------------------------------------------------------------------------------------------------


def exported(row: Row, settings: Settings) -> SimpleNamespace:
    """The attributes of a predictor that an export uses."""
    module, masked = family_of(row.family), settings.get("head") == "words"
    if row.family == "bert":
        texts = [text for text in small_bert.AWKWARD if text.strip()] + ["the cat sat unaffable hello world"] * 3
        tokenizer = TokenizerConfig(kind="wordpiece", vocab=120, symbols=("<url>",))
    else:
        texts, tokenizer = long.LINES, TokenizerConfig(kind="bpe", vocab=300)
    text = tokenizers.train_tokenizer(tokenizer, texts, control=(tokenizers.MASK,) if masked else ())
    size = settings.get("size", "tiny")
    config = module.Config.model_validate({"size": size, **module.SIZES[size], **settings, "vocab": text.size})
    torch.manual_seed(4)
    model = module.Model(config)
    model = causal_loud(model) if row.family == "gpt" else loud(model, spread=1.5 if row.family in TASK else 3.0)
    run = resolve_run(TASK.get(row.family, "classify"), {"model.family": row.family}).run
    return SimpleNamespace(
        run=run.model_copy(update={"model": config}), model=model.eval(), module=model, tokenizer=text, source=text, target=text,
        labels=[f"label {i}" for i in range(getattr(config, "labels", 0))], suppressed=[text.pad, text.start],
    )  # fmt: skip


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.ours is not None], ids=lambda row: f"{row.architecture} {row.name}"
)
def test_our_model_gives_its_outputs_in_transformers(row: Row, tmp_path: Path) -> None:
    assert row.ours is not None
    ours, out = exported(row, row.ours), tmp_path / "out"
    exporter = find_exporter(tmp_path, "huggingface", ours.run)
    exporter.write(ours, out, "fp32")
    theirs = compare(row, ours.model, out)
    assert theirs.config.architectures == [row.architecture]
    again = read_folder(out)
    compare(row, again.model, out)
    if row.family in MAX_TOKENS:
        report = exporter.verify(ours, out, "fp32")
        assert "8 texts with regard and transformers" in report and "tokens equal, outputs apart by" in report
        assert again.folder.labels == tuple(ours.labels)
        assert not ours.labels or theirs.config.id2label[1] == "label 1"
    if row.family == "bert":
        same_tokens(ours, again.folder, out)
    if row.family == "longformer":
        leading = ours.run.model.attention.globals
        assert again.config.attention.globals == leading and f"[:, :{leading}] = 1" in exporter.usage(ours)


def same_tokens(ours: SimpleNamespace, folder: Any, out: Path) -> None:
    """An exported tokenizer, in transformers and here, gives the tokens of the run."""
    text = hf.AutoTokenizer.from_pretrained(out)
    encoded = text(small_bert.AWKWARD[0], small_bert.AWKWARD[1])
    first, second = ours.tokenizer.encode(small_bert.AWKWARD[:2])
    assert encoded.input_ids == [1, *first, 2, *second, 2]
    assert encoded.token_type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert folder.tokenizer.encode(small_bert.AWKWARD) == ours.tokenizer.encode(small_bert.AWKWARD)
    masked = ours.run.model.head == "words"
    assert folder.tokenizer.mask == ours.tokenizer.mask == (ours.tokenizer.size - 1 if masked else None)
    if masked:
        assert ours.tokenizer.mask in text("the <mask> sat").input_ids
    else:
        assert not {0, 1, 2} & set(text("the <s> </s> <pad>").input_ids[1:-1])


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.family not in exporters("huggingface")], ids=lambda row: row.architecture
)
def test_what_cannot_be_exported_is_refused(row: Row, tmp_path: Path) -> None:
    write_folder(tmp_path / "x", row)
    run = SimpleNamespace(model=read_folder(tmp_path / "x").config)
    with pytest.raises(UserError, match=f"cannot become --to huggingface: model.family is {row.family}; expected "):
        find_exporter(tmp_path, "huggingface", run)


def test_every_importer_and_exporter_has_a_row() -> None:
    types = {getattr(hf, row.architecture).config_class.model_type for row in ROWS}
    assert types | MEDIA == set(FORMATS)
    assert {row.family for row in ROWS if row.ours} | {"vit", "detr", "whisper", "clip", "captioner"} == set(
        exporters("huggingface")
    )
