"""Control ids of a folder are checked against its vocabulary, in every family."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from helpers import bert, causal, long, marian
from helpers.parity import change_config

import regard
from regard.cli import main
from regard.errors import UserError

CONTROL = [
    "pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    "decoder_start_token_id",
]  # fmt: skip


def t5(path: Path) -> Path:
    import transformers as hf

    shape = dict(vocab_size=60, d_model=36, d_kv=10, d_ff=50, num_layers=1, num_heads=3, decoder_start_token_id=0)
    hf.T5ForConditionalGeneration(hf.T5Config(**shape)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """A folder of every importer with the size of its vocabulary; the causal ones do not name their tokens."""
    home = tmp_path_factory.mktemp("ids")
    for name in ("gpt2", "llama"):
        path, _ = getattr(causal, name)(home / name)
        (path / "tokenizer_config.json").write_text("{}")
    marian.folder(home / "marian", taught=False)
    return {
        "bert": (bert.folder(home / "bert"), len(bert.VOCAB)),
        "longformer": (long.longformer(home / "longformer"), long.VOCAB),
        "bigbird": (long.bigbird(home / "bigbird"), 120),
        "marian": (home / "marian", 0),
        "t5": (t5(home / "t5"), 60),
        "gpt2": (home / "gpt2", 300),
        "llama": (home / "llama", 303),
    }


@pytest.mark.parametrize("name", ["bert", "longformer", "bigbird", "marian", "t5", "gpt2", "llama"])
def test_ids_outside_the_vocabulary_are_refused(folders: dict[str, tuple[Path, int]], name: str) -> None:
    path, vocab = folders[name]
    whole = (path / "config.json").read_text()
    vocab = vocab or json.loads(whole)["vocab_size"]
    for key in CONTROL:
        if (name, key) == ("longformer", "pad_token_id"):
            continue  # it numbers the positions: the weights do not fit
        for value in (50256, vocab, [0, 50256], "2", True, -2):
            (path / "config.json").write_text(json.dumps(json.loads(whole) | {key: value}))
            shown = repr(value[1] if isinstance(value, list) else value)
            words = f"config.json: {key} is {shown} and the vocabulary has {vocab} entries"
            with pytest.raises(UserError) as error:
                regard.load(path)
            assert words in str(error.value) and f"from 0 to {vocab - 1}, correct it or remove" in str(error.value)
    (path / "config.json").write_text(whole)


def test_ids_of_generation_config(folders: dict[str, tuple[Path, int]]) -> None:
    path, _ = folders["gpt2"]
    file = path / "generation_config.json"
    whole = file.read_text()
    for key, value in {
        "suppress_tokens": [1, 300],
        "bad_words_ids": [[3], [4, 300]],
        "forced_eos_token_id": 300,
    }.items():
        file.write_text(json.dumps(json.loads(whole) | {key: value}))
        with pytest.raises(UserError, match=rf"{file.name}: {key} is 300 and the vocabulary has 300 entries"):
            regard.load(path)
    file.write_text(whole)


def test_the_command_names_file_key_and_value(
    folders: dict[str, tuple[Path, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = folders["llama"]
    whole = (path / "config.json").read_text()
    change_config(path, eos_token_id=50256)
    assert main(["predict", str(path), "--prompt", "the cat"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "llama/config.json: eos_token_id is 50256" in err
    change_config(path, eos_token_id=1, pad_token_id=-1)  # as the first Llama writes: there is no padding
    assert regard.load(path, device="cpu").tokenizer.pad == 1
    (path / "config.json").write_text(whole)


def test_a_token_that_the_tokenizer_names_needs_no_id(tmp_path: Path) -> None:
    """GPT-2's default of 50256 stays in config.json where a small vocabulary has a tokenizer of its own."""
    path, _ = causal.gpt2(tmp_path / "x", bos_token_id=0, eos_token_id=0)
    expected = regard.load(path).predict("the cat", kind="greedy", max_tokens=5)
    change_config(path, eos_token_id=50256)
    (path / "generation_config.json").unlink()
    with pytest.warns(UserWarning, match="eos_token_id is 50256 .* the eos_token of the tokenizer is used instead"):
        assert regard.load(path).predict("the cat", kind="greedy", max_tokens=5) == expected


def test_ids_with_gaps(tmp_path: Path) -> None:
    """A tokenizer with few entries may still have an id that the model does not have."""
    path, _ = causal.gpt2(tmp_path / "x")
    content = json.loads((path / "tokenizer.json").read_text())
    vocab: dict[str, Any] = content["model"]["vocab"]
    last = max(vocab, key=lambda name: vocab[name])
    vocab[last] = 50256
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "".join(pair) != last]
    (path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="the tokenizer has the id 50256 and the model only 300 entries"):
        regard.load(path)


def test_marian_folders_that_lack_a_control_token(folders: dict[str, tuple[Path, int]]) -> None:
    path, _ = folders["marian"]
    config, vocab = (json.loads((path / name).read_text()) for name in ("config.json", "vocab.json"))
    (path / "config.json").write_text(json.dumps({key: each for key, each in config.items() if key != "eos_token_id"}))
    with pytest.raises(UserError, match="config.json has no 'eos_token_id'"):
        regard.load(path)
    (path / "config.json").write_text(json.dumps(config))
    (path / "vocab.json").write_text(json.dumps({key: each for key, each in vocab.items() if key != "<unk>"}))
    with pytest.raises(UserError, match="vocab.json has no '<unk>'"):
        regard.load(path)
    (path / "vocab.json").write_text(json.dumps(vocab | {"new": len(vocab) + 5}))
    with pytest.raises(UserError, match=f"the tokenizer has the id {len(vocab) + 5} and the model only"):
        regard.load(path)
    (path / "vocab.json").write_text(json.dumps(vocab))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard.load(path)
