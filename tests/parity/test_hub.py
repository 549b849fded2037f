"""Models of the Hugging Face hub by name, from a made cache in the library's layout; nothing reaches the network."""

import fnmatch
import json
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
from helpers import causal, gguf_files
from huggingface_hub import errors

import regard
from regard.cli import main
from regard.config.run_folder import read_run
from regard.errors import UserError
from regard.formats.hub import HubName, fetch_model, parse_hub_name, peft_base
from regard.formats.model_source import find_model

FIRST, SECOND = "1" * 40, "2" * 40
FAST = {"train.steps": 2, "train.tokens": 100, "data.max_tokens": 16, "train.tensorboard": False, "device": "cpu"}


class Cache:
    """A cache folder of huggingface_hub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, repo: str, commit: str, source: Path, revision: str = "main") -> Path:
        """Store the files of a folder as a commit, which becomes the revision."""
        home = self.folder / f"models--{repo.replace('/', '--')}"
        shutil.copytree(source, home / "snapshots" / commit)
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / revision).write_text(commit)
        return home / "snapshots" / commit


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, offline, with an empty working folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return Cache(tmp_path / "hub")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return causal.llama(tmp_path_factory.mktemp("llama") / "folder")[0]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model of the same shape with other weights."""
    folder, model = causal.llama(tmp_path_factory.mktemp("other") / "folder")
    for each in model.parameters():
        each.data = each.data.flip(0)
    model.save_pretrained(folder)
    return folder


def data(folder: Path) -> dict[str, str]:
    (folder / "texts.txt").write_text("\n".join(causal.SENTENCES * 9))
    return {f"data.{split}": str(folder / "texts.txt") for split in ("train", "valid")}


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("org/name", HubName("org/name")),
        ("org/name-1.5_b@v1.0", HubName("org/name-1.5_b", "", "v1.0")),
        ("org/name@refs/pr/3", HubName("org/name", "", "refs/pr/3")),
        ("org/name/x.Q4_0.gguf", HubName("org/name", "x.Q4_0.gguf")),
        ("org/name/sub/x.gguf@main", HubName("org/name", "sub/x.gguf", "main")),
        ("hf://org/name", HubName("org/name")),
        ("hf://here/name", HubName("here/name")),
        ("here/name", None), ("name", None), ("/org/name", None), ("./org/name", None), ("../name", None), ("org/name/x", None),
        ("org/na me", None), ("~/name", None), ("org/", None), ("", None),
    ],
)  # fmt: skip
def test_what_may_be_a_name_of_the_hub(name, parsed, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_hub_name(name) == parsed
    if parsed:
        assert parse_hub_name(f"hf://{parsed}") == parsed


def test_loading_by_name(cache, llama, capsys):
    cache.add("org/name", FIRST, llama)
    expected = regard.load(llama, device="cpu").predict(["the cat", "a"], max_tokens=5)
    for name in ("org/name", "org/name@main", f"org/name@{FIRST}", "hf://org/name"):
        assert regard.load(name, device="cpu").predict(["the cat", "a"], max_tokens=5) == expected
    source = find_model("org/name")
    assert (source.format, source.commit, source.name) == ("huggingface", FIRST, f"hf://org/name@{FIRST}")
    assert main(["predict", "org/name", "--prompt", "the cat", "decode.max_tokens=5", "device=cpu"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == expected[0].rstrip("\n")
    assert main(["eval", "org/name"]) == 2
    assert "org/name is not a run folder and names no test data" in capsys.readouterr().err
    with pytest.raises(UserError, match="is not a run folder: it has no run.json"):
        regard.api.convert("org/name", to="huggingface", out="out")


def test_a_folder_of_that_name_wins(cache, llama, other):
    cache.add("org/name", FIRST, other)
    shutil.copytree(llama, "org/name")
    assert find_model("org/name").commit == "" and find_model("hf://org/name").commit == FIRST
    with pytest.raises(
        UserError, match=r"org/none does not exist; give a run folder .*, or hf://org/none for the model"
    ):
        regard.load("org/none")
    with pytest.raises(UserError, match="start=org/none does not exist; give a run folder or a Hugging Face folder"):
        regard.resolve("language", {"start": "org/none"})


def test_a_gguf_file_and_a_run_of_the_hub(cache, tmp_path):
    pieces = gguf_files.sentencepiece_model(tmp_path / "pieces")
    model = causal.KINDS["llama"][1](
        causal.KINDS["llama"][0](
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=330
        )
    )
    fields = gguf_files.metadata(model.config, "llama") | gguf_files.sentencepiece_fields(pieces)
    gguf_files.write(tmp_path / "files/x.gguf", fields, gguf_files.tensors(model, "llama"))
    gguf_files.write(tmp_path / "files/parts/y.gguf", fields, gguf_files.tensors(model, "llama"), parts=2)
    cache.add("org/gguf", FIRST, tmp_path / "files")
    source = find_model("org/gguf/x.gguf")
    assert (source.format, source.commit, source.path.name) == ("gguf", FIRST, "x.gguf")
    expected = regard.load(source.path, device="cpu").predict("a", max_tokens=4)
    for name in ("org/gguf/x.gguf", f"org/gguf/parts/y-00001-of-00002.gguf@{FIRST}"):
        assert regard.load(name, device="cpu").predict("a", max_tokens=4) == expected
    with pytest.raises(UserError, match=r"org/gguf has no z\.gguf; it has .*x\.gguf"):
        regard.load("org/gguf/z.gguf")
    with pytest.raises(
        UserError, match=r"org/gguf is no model .* nor run\.json; name one of its GGUF files: org/gguf/\S*\.gguf"
    ):
        regard.load("org/gguf")
    run = regard.train("language", {"start": "org/gguf/x.gguf", **data(tmp_path), **FAST}, out=tmp_path / "run")
    assert read_run(tmp_path / "run")["start"]["commit"] == FIRST
    cache.add("org/run", SECOND, tmp_path / "run")
    assert regard.load("org/run").predict("a", max_tokens=4) == run.predict("a", max_tokens=4)


# --- runs that start from the hub ------------------------------------------------------------------------------------


def test_a_run_records_the_commit_and_keeps_to_it(cache, llama, other, tmp_path):
    cache.add("org/name", FIRST, llama)
    settings = {"start": "org/name", **data(tmp_path), **FAST}
    regard.train("language", settings, out=tmp_path / "run")
    tuned = regard.train("language", settings | {"tune.kind": "lora"}, out=tmp_path / "lora")
    about = read_run(tmp_path / "run")
    assert about["start"]["folder"] == about["config"]["start"] == "org/name" and about["start"]["commit"] == FIRST
    cache.add("org/name", SECOND, other)  # main moves on
    assert find_model("org/name").commit == SECOND
    regard.train("language", settings | {"train.steps": 3}, out=tmp_path / "run", resume=True)
    expected = tuned.predict("the cat", max_tokens=5)
    assert regard.load(tmp_path / "lora").predict("the cat", max_tokens=5) == expected
    assert regard.load(f"org/name@{FIRST}", tune=tmp_path / "lora").predict("the cat", max_tokens=5) == expected
    with pytest.raises(UserError, match="was tuned over org/name .* has other weights"):
        regard.load("org/name", tune=tmp_path / "lora")


def test_adapters_of_the_hub(cache, llama, tmp_path):
    """Tuned runs and PEFT folders by name, and the name of the base in a PEFT folder."""
    cache.add("org/name", FIRST, llama)
    plain = {"max_tokens": 5, "kind": "greedy", "add_start": False}  # else the base and the run have other settings
    settings = {"start": "hf://org/name@main", "tune.kind": "lora", **data(tmp_path), **FAST}
    expected = regard.train("language", settings, out=tmp_path / "lora").predict("the cat", **plain)
    regard.convert(tmp_path / "lora", to="peft", out=tmp_path / "peft")
    about = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert (about["base_model_name_or_path"], about["revision"]) == ("org/name", "main")
    for name in ("lora", "peft"):
        cache.add(f"org/{name}", SECOND, tmp_path / name)
        assert regard.load("org/name", tune=f"org/{name}").predict("the cat", **plain) == expected
    both = regard.load("org/name", tune=["org/lora", "org/peft"])
    assert both["lora"].predict("the cat", **plain) == both["peft"].predict("the cat", **plain) == expected
    with pytest.raises(UserError, match="org/peft is an adapter of PEFT; name its base first: BASE --tune org/peft"):
        regard.load("org/peft")
    assert peft_base(str(llama)) == peft_base("here") | {"base_model_name_or_path": str(llama)}
    assert peft_base("org/name") == {"base_model_name_or_path": "org/name"}
    with pytest.raises(UserError, match="org/name is not a tuned run: it has no run.json"):
        regard.load("org/name", tune="org/name")


# --- downloads -------------------------------------------------------------------------------------------------------


class Hub:
    """The hub as far as regard asks it: one repository with these files, "downloaded" into a folder."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder, self.files, self.fetched = folder / "snapshots" / FIRST, files, list[str]()
        self.folder.mkdir(parents=True)

    def snapshot_download(self, repo, revision=None, allow_patterns=(), ignore_patterns=None):
        assert repo == "org/name" and revision in (None, FIRST)
        for name, content in self.files.items():
            wanted = any(fnmatch.fnmatch(name, each) for each in allow_patterns)
            if wanted and not any(fnmatch.fnmatch(name, each) for each in ignore_patterns or ()):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_text(content)
                self.fetched.append(name)
        return str(self.folder)

    def list_repo_files(self, repo, revision):
        assert (repo, revision) == ("org/name", FIRST)
        return list(self.files)


@pytest.fixture
def hub_of(tmp_path, monkeypatch):
    """A function from files to a Hub that takes the place of the real one."""

    def make(*names: str, **contents: str) -> Hub:
        hub = Hub(
            tmp_path, dict.fromkeys(names, "") | {key.replace("__", "."): value for key, value in contents.items()}
        )
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
        return hub

    return make


def test_only_the_needed_files_are_downloaded(hub_of):
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}})
    hub = hub_of(
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "source.spm", *shards,
        "consolidated.safetensors", "pytorch_model.bin", "onnx/model.json", "x.gguf", "tf_model.h5", "picture.png", "README.md",
        model__safetensors__index__json=index,
    )  # fmt: skip
    assert fetch_model(HubName("org/name")) == (hub.folder, FIRST)
    small = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "source.spm"}
    assert {*hub.fetched} == {*small, *shards, "model.safetensors.index.json"}
    hub.fetched.clear()
    fetch_model(HubName("org/name", "x.gguf", FIRST))
    assert hub.fetched == ["x.gguf"]


def test_sentence_transformers_keep_their_weights_in_a_module(hub_of):
    hub = hub_of(
        "0_Transformer/config.json", "0_Transformer/model.safetensors", "1_Pooling/config.json", "0_Transformer/pytorch_model.bin",
        modules__json=json.dumps([{"path": "0_Transformer"}, {"path": "1_Pooling"}]),
    )  # fmt: skip
    fetch_model(HubName("org/name"))
    assert hub.fetched[-1] == "0_Transformer/model.safetensors" and not any(
        each.endswith(".bin") for each in hub.fetched
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.json", "pytorch_model.bin"], "org/name has no model.safetensors but weights in another format, such as pickles, which regard never opens; convert it with transformers: AutoModel.from_pretrained('org/name')"),
        (["config.json", "b.gguf", "a.gguf"], "org/name has no model.safetensors; name one of its GGUF files: org/name/b.gguf"),
        (["config.json"], "org/name has no model.safetensors; choose a repository with weights in safetensors"),
        (["README.md"], "org/name is no model that regard reads: it has neither config.json nor run.json; choose another repository"),
    ],
)  # fmt: skip
def test_repositories_without_safetensors(files, words, hub_of):
    hub = hub_of(*files)
    with pytest.raises(UserError) as error:
        regard.load("org/name")
    assert words in str(error.value) and not any(each.endswith((".bin", ".gguf")) for each in hub.fetched)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_name_that_is_not_in_the_cache_while_offline(cache, llama, capsys):
    words = (
        "org/name is neither a folder here nor complete in the cache of the Hugging Face hub, which cannot be reached"
    )
    with pytest.raises(UserError, match=words):
        regard.load("org/name")
    assert main(["predict", "org/name", "--prompt", "a"]) == 2
    assert words in capsys.readouterr().err
    cache.add("org/part", FIRST, llama)
    (find_model("org/part").path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"org/part has no model\.safetensors"):
        regard.load("org/part")
    with pytest.raises(UserError, match="org/part@v2 is neither a folder here nor complete in the cache"):
        regard.load("org/part@v2")


def test_files_that_regard_does_not_need_may_be_missing_offline(cache, llama, monkeypatch):
    """The library knows that the cache has only a part of the files; those that are needed are there."""
    folder = cache.add("org/name", FIRST, llama)

    def incomplete(*_, **__):
        raise errors.IncompleteSnapshotError("incomplete", snapshot_path=str(folder))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", incomplete)
    assert find_model("org/name").path == folder


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.GatedRepoError, "org/name is gated; accept its conditions at https://huggingface.co/org/name and log in with `hf auth login`"),
        (errors.RepositoryNotFoundError, "org/name is neither a folder here nor a model of the Hugging Face hub; correct the name, or log in"),
        (errors.RevisionNotFoundError, "org/name has no revision 'v9'; choose a branch, tag or commit of https://huggingface.co/org/name"),
        (errors.LocalEntryNotFoundError, "org/name@v9 is neither a folder here nor complete in the cache"),
        (RuntimeError, "org/name@v9 cannot be fetched from the Hugging Face hub (RuntimeError); try again later"),
    ],
)  # fmt: skip
def test_errors_of_the_hub_are_one_sentence(kind, words, cache, monkeypatch):
    def fail(*_, **__):
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError) as error:
        regard.load("org/name@v9")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_without_the_package(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"org/name is not a folder here, and models .* pip install 'regard\[hub\]'"):
        regard.load("org/name")
