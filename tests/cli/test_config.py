"""Settings: layers and origins, parsing, recipes, and a message for every error."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import regard
from regard import recipes
from regard.cli import main
from regard.config import run as config
from regard.config.data.sound import Filterbanks, Recordings
from regard.config.data.texts import PairData as Data
from regard.config.data.texts import TagData, TokenizerConfig
from regard.config.decode import Seq2SeqDecode
from regard.config.family import family_of
from regard.config.losses import SmoothedLoss
from regard.config.meanings import meaning_of
from regard.config.merge import flatten, split_commas
from regard.config.registry import FAMILIES, TASKS
from regard.config.renamed import MOVED, RENAMED, renamed_key
from regard.config.run import change_settings, changed_decode, changed_keys, load_config, resolve_run
from regard.config.schema import schema_of
from regard.config.strategies import Beam, Greedy, Sample
from regard.config.task_settings import section_types, task_settings
from regard.config.train import Adam, AdamW, Cosine, Noam, Train, WarmupStableDecay
from regard.errors import UserError
from regard.tasks.language.settings import LanguageDecode


def errors_of(recipe: str = "translate", **overrides: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        resolve_run(recipe, {key.replace("__", "."): value for key, value in overrides.items()})
    return str(caught.value).splitlines()


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_are_the_published_ones():
    train = Train()
    assert (train.lr, train.warmup, train.tokens, SmoothedLoss().smoothing, train.clip) == (5e-4, 400, 4096, 0.1, 1.0)
    assert train.schedule == Noam()
    assert (train.optimizer.betas, train.optimizer.eps, train.optimizer.decay) == ((0.9, 0.98), 1e-9, 0.0)
    assert (AdamW().betas, AdamW().eps, AdamW().decay) == ((0.9, 0.999), 1e-8, 0.01)
    assert (WarmupStableDecay().decay, Cosine().floor) == (0.2, 0.0)
    assert Data().locales == ("en", "de")
    assert TokenizerConfig().vocab == 8000
    assert (Seq2SeqDecode().strategy, LanguageDecode().strategy) == (Beam(5, 1, 1.0, "exact"), Sample())


def test_settings_are_frozen_and_unknown_keys_are_errors():
    with pytest.raises(ValidationError):
        Train().steps = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Train(stepz=3)  # type: ignore[call-arg]


# --- layers and their origins ----------------------------------------------------------------------------------------


def test_text_is_parsed_by_the_type_of_its_key():
    run = resolve_run(
        "translate",
        {
            "train.steps": "1_000",
            "train.lr": "1e-4",
            "train.compile": "True",
            "train.tensorboard": "false",
            "train.optimizer.betas": "0.8,0.9",
            "train.minutes": "3",
            "data.columns": "2,3",
            "data.locales": "fr,it",
            "tokenizer.symbols": '["<a>", "b,c"]',
            "train.precision": "bf16",
            "model.dropout": "0",
        },
    ).run
    assert run.train.steps == 1000
    assert run.train.lr == 1e-4
    assert run.train.compile is True
    assert run.train.tensorboard is False
    assert run.train.optimizer.betas == (0.8, 0.9)
    assert run.train.minutes == 3.0
    assert run.data.columns == ("2", "3")
    assert run.data.locales == ("fr", "it")
    assert run.tokenizer.symbols == ("<a>", "b,c")
    assert run.train.precision == "bf16"
    assert run.model.dropout == 0.0


def test_python_values_nested_or_dotted_mean_the_same():
    dotted = resolve_run("translate", {"model.size": "tiny", "train.steps": 300, "train.schedule.kind": "wsd"}).run
    nested = resolve_run(
        "translate", {"model": {"size": "tiny"}, "train": {"steps": 300, "schedule": {"kind": "wsd"}}}
    ).run
    values = resolve_run(
        "translate", {"model": {"size": "tiny"}, "train": {"steps": 300, "schedule": WarmupStableDecay()}}
    ).run
    assert dotted == nested == values
    assert (dotted.model.width, dotted.train.steps, dotted.train.schedule) == (128, 300, WarmupStableDecay())


def test_origin_of_every_key(tmp_path):
    path = write(tmp_path, "mine.toml", 'base = "translate"\n[train]\nseed = 7\nsteps = 9\n')
    resolved = resolve_run(path, {"train.steps": "5"})
    assert resolved.origin["train.steps"] == "command line"
    assert resolved.origin["train.seed"] == f"recipe {path}"
    assert resolved.origin["task"] == "recipe translate"
    assert resolved.origin["model.width"] == "size small"
    assert resolved.origin["decode.strategy.early_stopping"] == "default"
    assert list(resolved.origin) == [key for key, _ in flatten(resolved.run.dump())]


def test_show_prints_a_recipe_of_the_same_run(tmp_path):
    awkward = {"data.train": 'a\\,b "c"\\d,é*.de', "train.schedule": "wsd", "tokenizer.symbols": ["\x7f", "#", "\t"]}
    resolved = resolve_run("dates", {**awkward, "model.positions": "learned"})
    for shown in (resolved.show(), resolved.show(all=True)):
        assert re.search(r'^train\.schedule\.kind = "wsd" +# command line$', shown, re.MULTILINE)
        assert re.search(r"^model\.width = 128 +# size tiny$", shown, re.MULTILINE)
        assert resolve_run(write(tmp_path, "again.toml", shown)).run == resolved.run


@pytest.mark.parametrize("recipe", recipes.recipe_names())
def test_what_show_prints_is_a_recipe_of_the_same_run(tmp_path, recipe):
    sizes = family_of(resolve_run(recipe).run.model.family).SIZES
    for size in [*sizes, ""]:
        changes = {"model.size": size} if size else {}
        try:
            resolved = resolve_run(recipe, {**changes, "train.schedule": "wsd", "train.steps": 7})
        except UserError:  # the recipe sets what another size does not fit
            continue
        for everything in (False, True):
            path = write(tmp_path, "again.toml", resolved.show(everything))
            assert resolve_run(path).run == resolved.run


def test_show_prints_what_differs_from_the_defaults_and_counts_the_others():
    resolved = resolve_run("language", {"train.seed": "1", "train.epochs": "2"})
    short, whole = resolved.show(), resolved.show(all=True)
    lines = [line.split("  # ")[0].rstrip() for line in short.splitlines()]
    assert lines[:4] == ['task = "language"', "", 'model.family = "gpt"', 'model.size = "modern-tiny"']
    assert "train.seed = 1" in lines  # a default that the user gave
    assert "train.steps = 0" in lines and "# replaced by train.epochs" in short
    assert 'model.norm.kind = "rms"' in lines and "model.norm.eps = 1e-06" not in lines
    assert "data.document" not in short and "train.clip" not in short
    shown = sum(" = " in line for line in short.splitlines())
    others = len(resolved.origin) - shown
    assert lines[-2].startswith(f"# {others} other settings have their defaults; --show all prints them")
    assert lines[-1] == "# set by the data: model.vocab"
    assert sum(" = " in line for line in whole.splitlines()) == len(resolved.origin)
    assert whole.startswith(short.partition("\n# ")[0].rstrip()[:200])
    assert re.search(r"^model\.vocab = 0 +# default; set by the data$", whole, re.MULTILINE)
    assert re.search(r"^# data\.train = \[\] +# default$", whole, re.MULTILINE)  # an empty one would be refused


def test_a_default_that_a_recipe_repeats_is_none_of_its_differences(tmp_path):
    path = write(tmp_path, "mine.toml", 'base = "translate"\ntrain.clip = 1.0\nmodel.prenorm = true\n')
    shown = resolve_run(path).show()
    assert "train.clip" not in shown and "model.prenorm = true" in shown


def test_a_size_is_below_its_own_layer_and_above_earlier_ones(tmp_path):
    path = write(tmp_path, "mine.toml", 'base = "translate"\nmodel.size = "base"\nmodel.width = 64\n')
    assert resolve_run(path).run.model.width == 64
    assert resolve_run(path).run.model.inner == 2048
    again = resolve_run(path, {"model.size": "tiny"})
    assert (again.run.model.width, again.run.model.inner, again.origin["model.inner"]) == (128, 256, "size tiny")
    big = resolve_run("translate", {"model.size": "big"}).run
    assert big.model.dropout == 0.3
    assert resolve_run(write(tmp_path, "b.toml", big_recipe), {"model.size": "tiny"}).run.model.dropout == 0.1


big_recipe = 'base = "translate"\nmodel.size = "big"\n'  # its dropout must not remain when the size changes


def test_another_kind_removes_the_settings_of_the_former(tmp_path):
    path = write(tmp_path, "a.toml", 'base = "translate"\n[train.schedule]\nkind = "wsd"\ndecay = 0.5\n')
    assert resolve_run(path).run.train.schedule == WarmupStableDecay(decay=0.5)
    assert resolve_run(path, {"train.schedule": "cosine"}).run.train.schedule == Cosine()
    assert resolve_run(path, {"train.schedule.decay": "0.1"}).run.train.schedule == WarmupStableDecay(decay=0.1)
    assert resolve_run(path, {"train.schedule": "wsd"}).run.train.schedule == WarmupStableDecay(decay=0.5)
    inline = resolve_run(path, {"train.schedule": '{kind = "linear", floor = 0.25}'}).run.train.schedule
    assert (inline.kind, inline.floor) == ("linear", 0.25)


def test_another_family_removes_the_model_settings_of_the_former(tmp_path):
    path = write(tmp_path, "a.toml", 'base = "language"\n[model]\nfamily = "lm"\nheads = 2\n')
    own = resolve_run(path).run.model
    assert (own.family, own.size, own.width, own.heads) == ("lm", "base", 256, 2)
    other = resolve_run(path, {"model.family": "xl", "model.layers": 3})
    assert (other.run.model.family, other.run.model.layers, other.run.model.width) == ("xl", 3, 410)
    assert other.run.train == resolve_run("language").run.train and other.origin["model.layers"] == "command line"
    same = resolve_run("language", {"model.family": "gpt"}).run
    assert same == resolve_run("language").run
    assert "model.key_heads is not a key" in errors_of(path, model__key_heads=1)[0]


def test_a_section_keeps_its_settings_with_another_kind():
    run = resolve_run("translate", {"tokenizer": {"vocab": 99}, "tokenizer.kind": "char"}).run
    assert (run.tokenizer.vocab, run.tokenizer.kind) == (99, "char")
    decode = resolve_run("translate", {"decode": {"batch": 9}, "decode.strategy": "greedy"}).run.decode
    assert (decode.batch, decode.strategy) == (9, Greedy())


def test_a_setting_without_a_kind_applies_to_the_default_kind():
    assert resolve_run("translate", {"train.optimizer.decay": 0.5}).run.train.optimizer == Adam(decay=0.5)
    assert Train.model_validate({"optimizer": {"decay": 0.5}}).optimizer == Adam(decay=0.5)
    assert Train.model_validate({"optimizer": "adamw"}).optimizer == AdamW()


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_every_packaged_recipe_resolves_and_has_a_header():
    assert {"translate", "dates"} <= set(recipes.recipe_names())
    for name in recipes.recipe_names():
        assert resolve_run(name).run.task
        assert len(recipes.header(name)) > 20


def test_recipes_say_what_they_choose_and_not_what_keys_mean():
    for name in recipes.recipe_names():
        text = resources.files(recipes).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        assert not re.search(r"^# [\w.]+ = ", text, re.MULTILINE)  # a default


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_has_a_meaning_beside_its_field(task):
    families = [family for family in FAMILIES if task in family_of(family).SPEC.settings]
    for family in [None, *families]:
        fields = list(schema_of(config.Run, section_types(task, family)))
        assert {field.key for field in fields} > {"task", "train.schedule.floor", "data.train", "tune.rank"}
        assert not [field.key for field in fields if not field.meaning and field.key != "model"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_a_model_has_a_meaning(family):
    fields = list(schema_of(family_of(family).Config, {}, "model."))
    assert not [field.key for field in fields if not field.meaning]
    kinds = {
        (field.key, kind) for field in fields for kind, about in field.options.items() if field.kinds and not about
    }
    assert not kinds


def test_the_comment_beside_a_field_goes_on_below_it():
    assert meaning_of(Filterbanks, "cmvn").endswith("utterance: those of each recording")
    assert meaning_of(TagData, "format").startswith("auto: by file name")  # its own line is full
    assert meaning_of(TagData, "workers") == meaning_of(Recordings, "workers") != ""  # inherited
    local = type("Local", (Recordings,), {"__module__": "nowhere"})
    assert meaning_of(local, "bins") == meaning_of(Recordings, "bins")
    assert meaning_of(local, "nothing") == ""


def test_a_base_path_is_relative_to_the_recipe(tmp_path):
    write(tmp_path, "low.toml", 'base = "translate"\ntrain.seed = 3\ntrain.steps = 4\n')
    path = write(tmp_path, "high.toml", 'base = "low.toml"\ntrain.steps = 5\n')
    run = resolve_run(path).run
    assert (run.train.seed, run.train.steps, run.task) == (3, 5, "translate")


def test_equal_recipe_names_in_two_folders_are_not_a_cycle(tmp_path):
    for folder, base in (("a", "a/r.toml"), ("a/a", "translate")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "r.toml", f'base = "{base}"\n')
    assert resolve_run(write(tmp_path, "r.toml", 'base = "a/r.toml"\n')).run == resolve_run("translate").run


def test_a_cycle_of_recipes(tmp_path):
    write(tmp_path, "a.toml", 'base = "b.toml"\n')
    path = write(tmp_path, "b.toml", 'base = "a.toml"\n')
    assert "is its own base" in errors_of(path)[0]


def test_a_cycle_of_recipes_with_another_spelling(tmp_path):
    path = write(tmp_path, "a.toml", 'base = "./a.toml"\n')
    assert "is its own base" in errors_of(path)[0]


def test_unreadable_recipes(tmp_path):
    assert errors_of("translat") == ["there is no recipe 'translat'; did you mean translate?"]
    assert ", ".join(recipes.recipe_names()) in errors_of("xyzzy")[0]
    assert "is not a file" in errors_of(str(tmp_path / "none.toml"))[0]
    assert "is not a file" in errors_of(write(tmp_path, "a.toml", 'base = "none.toml"\n'))[0]
    assert "line 2" in errors_of(write(tmp_path, "b.toml", "x = 1\ny =\n"))[0]
    assert "base in recipe" in errors_of(write(tmp_path, "c.toml", "base = 3\n"))[0]
    (tmp_path / "d.toml").write_bytes(b"\xff\xfe\x00")
    assert "not valid TOML" in errors_of(str(tmp_path / "d.toml"))[0]


def test_an_error_names_its_recipe(tmp_path):
    path = write(tmp_path, "a.toml", 'base = "translate"\ntrain.step = 3\ntrain.lr = -1\n')
    assert errors_of(path) == [
        f"train.step is not a key; did you mean train.steps? (in recipe {path})",
        f"train.lr is -1; expected more than 0 (in recipe {path})",
    ]


# --- errors ----------------------------------------------------------------------------------------------------------

MESSAGES = {
    "unknown key": ("train.step=3", "train.step is not a key; did you mean train.steps?"),
    "key without its group": ("lr=3", "lr is not a key; did you mean train.lr?"),
    "nothing near": ("qqq=3", "qqq is not a key; `regard train RECIPE --show all` lists the keys"),
    "model key": ("model.num_layers=3", "model.num_layers is not a key; did you mean model.layers?"),
    "a group": ("train=5", 'train is a group of settings, not "5"; set train.steps, '),
    "text for a whole number": ("train.seed=abc", 'train.seed is "abc"; expected a whole number'),
    "fraction": ("train.steps=1.5", "train.steps is 1.5; expected a whole number"),
    "true for a number": ("tokenizer.vocab=true", "tokenizer.vocab is true; expected a whole number"),
    "text for a number": ("train.lr=fast", 'train.lr is "fast"; expected a number'),
    "not finite": ("train.lr=nan", "train.lr is nan; expected a number"),
    "too many digits": ("train.seed=" + "9" * 5000, "train.seed is "),
    "number for a boolean": ("train.compile=3", "train.compile is 3; expected true or false"),
    "negative steps": ("train.steps=-5", "train.steps is -5; expected at least 0"),
    "negative minutes": ("train.minutes=-1", "train.minutes is -1; expected at least 0"),
    "lr of zero": ("train.lr=0", "train.lr is 0; expected more than 0"),
    "smoothing of one": ("train.objective.smoothing=1", "train.objective.smoothing is 1; expected less than 1"),
    "negative smoothing": ("train.objective.smoothing=-0.1", "train.objective.smoothing is -0.1; expected at least 0"),
    "a seed that torch cannot hold": (
        "train.seed=9223372036854775808",
        "train.seed is 9223372036854775808; expected less than",
    ),
    "no beam": ("decode.beam=0", "decode.strategy.size is 0; expected at least 1"),
    "no budget": ("train.tokens=0", "train.tokens is 0; expected at least 1"),
    "no checkpoint kept": ("train.keep=0", "train.keep is 0; expected at least 1"),
    "a beta of one": ("train.optimizer.betas=0.9,1.0", "train.optimizer.betas is 1.0; expected less than 1"),
    "decay share": ("train.schedule.decay=2", "train.schedule.decay does not belong to train.schedule=noam"),
    "one option of several": ("train.precision=fp16", 'train.precision is "fp16"; expected one of fp32, bf16'),
    "task": ("task=translat", f'task is "translat"; expected one of {", ".join(TASKS)}; did you mean translate?'),
    "device": ("device=gpu", "device is 'gpu'; expected auto, cpu, cuda, cuda:1 (a number) or mps"),
    "kind": ("train.schedule=cosin", 'train.schedule.kind is "cosin"; expected one of noam, cosine, linear'),
    "setting of another kind": (
        "model.positions.tokens=9",
        "model.positions.tokens does not belong to model.positions=",
    ),
    "n-best above the beam": ("decode.nbest=9", "decode.strategy.n is 9, above decode.strategy.size=5; raise the size"),
    "no end": ("train.steps=0", "the training has no end; set train.steps, train.epochs or train.minutes"),
    "empty training data": ("data.train=", "data.train is empty; name files, or leave it out to train on the embedded"),
    "empty list of training data": ("data.train=[]", "data.train is empty; name files"),
    "valid data alone": ("data.valid=a.tsv", "data.valid is set but data.train is not, so the training would use the"),
    "an empty name of valid data": ("data.valid=", "data.valid is set but data.train is not"),
    "test data alone": ("data.test=a,b", "data.test is set but data.train is not"),
    "a share of nothing": ("data.holdout=0.1", "data.holdout is set but data.train is not, so the training would use"),
    "an empty side": ("data.train=a,,b", "data.train: 'a,,b' has nothing on one side of a comma"),
    "three locales": ("data.locales=a,b,c", "data.locales is "),
    "uneven heads": ("model.width=100", "width 100 does not divide into 8 heads; use 96 or 104 (model.width)"),
    "size": ("model.size=smal", 'model.size is "smal"; expected one of tiny, small, base, big; did you mean small?'),
    "family": (
        "model.family=transfomer",
        f'model.family is "transfomer"; expected one of {", ".join(FAMILIES)}; did you mean transformer?',
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_each_error_has_its_message(case):
    setting, sentence = MESSAGES[case]
    key, _, value = setting.partition("=")
    (line,) = errors_of(**{key: value}, **({"model.heads": "8"} if case == "uneven heads" else {}))
    assert line.startswith(sentence)
    assert len(line) < 400


def test_empty_training_data_in_python_and_recipes(tmp_path):
    for empty in ([], (), ""):
        with pytest.raises(UserError, match="^data.train is empty; name files"):
            regard.train("classify", out=tmp_path / "x", data={"train": empty})
    (tmp_path / "mine.toml").write_text('base = "classify"\n[data]\ntrain = ""\n')
    (line,) = errors_of(str(tmp_path / "mine.toml"))
    assert line.startswith(f"data.train is empty (in recipe {tmp_path / 'mine.toml'}); name files")
    assert not (tmp_path / "x").exists()


def test_more_errors():
    assert errors_of(train__schedule="cosine", train__steps=0) == [
        "the training has no end; set train.steps, train.epochs or train.minutes",
        "train.schedule=cosine decays until the training ends, which it does not; set train.steps, train.epochs or "
        "train.minutes, or use noam or constant",
    ]
    assert (
        "decode.strategy.n does not belong to decode.strategy=greedy"
        in errors_of(decode__kind="greedy", decode__nbest=2)[0]
    )
    assert errors_of(train__schedule="cosine", train__schedule__decay="0.2") == [
        "train.schedule.decay does not belong to train.schedule=cosine, which has floor"
    ]
    assert "data.train is 3" in errors_of(data__train=3)[0]
    assert "model.size is [1]" in errors_of(model__size=[1])[0]
    assert "model.family is [1]" in errors_of(model__family=[1])[0]


def test_all_errors_are_reported_at_once():
    lines = errors_of(
        train__step="3",
        train__lr="-1",
        model__width="100",
        model__heads="8",
        decode__beam="0",
        device="gpu",
        model__foo="1",
    )
    text = "\n".join(lines)
    for part in ("train.step ", "train.lr ", "width 100", "decode.strategy.size", "device", "model.foo"):
        assert part in text
    assert len(lines) == 6


def test_an_unknown_family_does_not_hide_other_errors():
    lines = errors_of(model__family="rnnn", model__cells="3", train__step="3")
    assert len(lines) == 2
    assert lines[0].startswith("model.family")
    assert lines[1].startswith("train.step")


def test_a_recipe_without_family_or_task(tmp_path):
    lines = errors_of(write(tmp_path, "a.toml", "train.steps = 3\n"))
    families = ", ".join(FAMILIES)
    assert lines == [f"model.family is missing; expected one of {families}", "task is missing; give it a value"]


# --- former names ----------------------------------------------------------------------------------------------------

FORMER = {
    "model.same": ("language", {"model.family": "xl"}),
    "model.near": ("translate", {"model.family": "cnn"}),
    "model.carried": ("language", {"model.family": "rnn"}),
    "model.kinds": ("classify", {}),
    "model.follow": ("masked", {}),
    "data.agree": ("classify", {}),
    "data.hide": ("classify", {}),
    "data.whole": ("masked", {}),
    "data.follow": ("masked", {}),
    "tokenizer.normalise": ("translate", {}),
    "train.optimiser": ("translate", {}),
    "train.optimiser.decay": ("translate", {}),
    "decode.until": ("language", {}),
    "decode.must": ("translate", {}),
    "decode.avoid": ("text2text", {}),
    "decode.begin": ("language", {}),
    "decode.normalised": ("tag", {}),
}  # a recipe whose task and family have the setting


def test_every_former_key_is_tested():
    """decode.stop is a key again, with another meaning."""
    assert {key for key in FORMER if key in RENAMED} == set(RENAMED) - {"decode.stop"}


@pytest.mark.parametrize("key", FORMER)
def test_a_former_key_gets_a_hint(key, capsys):
    recipe, settings = FORMER[key]
    hint = f"{key} is not a key; it is now called {MOVED.get(renamed_key(key), renamed_key(key))}"
    with pytest.raises(UserError) as caught:
        regard.resolve(recipe, {**settings, key: "1"})
    assert str(caught.value) == hint
    given = [f"{name}={value}" for name, value in settings.items()]
    assert main(["train", recipe, *given, f"{key}=1", "--show"]) == 2
    assert capsys.readouterr() == ("", f"regard: {hint}\n")


def test_the_former_key_decode_stop(capsys):
    assert errors_of(decode__stop="exact") == [
        "decode.stop is not a key; it is now called decode.strategy.early_stopping"
    ]
    assert resolve_run("language", {"decode.stop": "a,b"}).run.decode.stop == ("a", "b")


# --- sides -----------------------------------------------------------------------------------------------------------


def test_sides():
    assert Data(train="a.en,a.de").train == (("a.en",), ("a.de",))  # type: ignore[arg-type]
    assert Data(train=r"a\,b.tsv").train == (("a,b.tsv",),)  # type: ignore[arg-type]
    assert Data(train=["a,b.en", ["c.de", "d*.de"]]).train == (("a,b.en",), ("c.de", "d*.de"))  # type: ignore[arg-type]
    assert Data(train=[Path("a.en"), "b"]).train == (("a.en",), ("b",))  # type: ignore[arg-type, list-item]
    assert Data(train='["a.en", ["b.de", "c.de"]]').train == (("a.en",), ("b.de", "c.de"))  # type: ignore[arg-type]
    assert Data(train="[ab].en,[ab].de").train == (("[ab].en",), ("[ab].de",))  # type: ignore[arg-type]
    assert Data(train="").train == ()  # type: ignore[arg-type]
    assert config.parse_data_files("a,b") == (("a",), ("b",))
    with pytest.raises(UserError, match="nothing on one side"):
        config.parse_data_files("a,")


@given(st.lists(st.text(st.characters(exclude_characters="\\[")).filter(bool), min_size=1))
def test_split_commas_inverts_joining(parts):
    assert split_commas(",".join(part.replace(",", "\\,") for part in parts)) == parts


# --- stored runs -----------------------------------------------------------------------------------------------------


def test_a_run_round_trips_through_json():
    run = resolve_run("dates", {"model.positions": "rotary", "data.train": "a,b", "train.schedule": "cosine"}).run
    dumped = run.dump()
    assert load_config(json.loads(json.dumps(dumped))) == run
    assert dumped["train"]["schedule"] == {"kind": "cosine", "floor": 0.0}


def test_a_stored_run_is_not_filled_from_its_size():
    dumped = resolve_run("translate", {"model.size": "big"}).run.dump()
    del dumped["model"]["dropout"]
    assert load_config(dumped).model.dropout == 0.1
    assert (
        load_config({**dumped, "model": {**dumped["model"], "size": "of another version"}}).model.size
        == "of another version"
    )


def test_a_damaged_run_is_an_error():
    dumped = resolve_run("translate").run.dump()
    with pytest.raises(UserError, match=r"train\.color is not a key; .* \(in x/run\.json\)"):
        load_config({**dumped, "train": {**dumped["train"], "color": 1}}, "x/run.json")
    with pytest.raises(UserError, match="model.positions.color is not a key"):
        load_config({**dumped, "model": {**dumped["model"], "positions": {"kind": "learned", "color": 1}}})
    with pytest.raises(UserError, match="model.family is missing"):
        load_config({**dumped, "model": {}})
    with pytest.raises(UserError, match="train is a group"):
        load_config({**dumped, "train": None})
    with pytest.raises(UserError, match="model is a group"):
        load_config({**dumped, "model": [1], "model.family": "transformer"})


def test_changed_keys():
    old = resolve_run("translate").run
    assert changed_keys(old, old) == []
    new = resolve_run("translate", {"model.width": 128, "data.train": "a,b", "train.schedule": "wsd"}).run
    assert changed_keys(old, new) == ["model.width", "data.train", "train.schedule.kind", "train.schedule.decay"]


def test_change_settings():
    run = resolve_run("translate").run
    assert change_settings(run, {"decode.beam": "7"}).decode.strategy.size == 7
    assert change_settings(run, {"decode.beam": "7"}).model == run.model
    assert change_settings(run, {}) == run
    with pytest.raises(UserError, match="train.steps has no effect on a finished run"):
        change_settings(run, {"train.steps": "7"})
    with pytest.raises(UserError, match="did you mean decode.strategy.size"):
        change_settings(run, {"decode.bean": "7"})


def test_start_needs_a_reader():
    with pytest.raises(TypeError, match=r"needs read_start for a run with `start`; use regard\.resolve"):
        resolve_run("classify", {"start": "runs/x"})


def test_config_does_not_import_torch():
    code = "import sys, regard.config.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_metrics_have_a_direction() -> None:
    accuracy, loss = task_settings("classify").metric("accuracy"), task_settings("classify").metric("loss")
    assert accuracy.is_better(0.6, 0.5) and not accuracy.is_better(0.5, 0.6)
    assert loss.is_better(0.5, 0.6) and not loss.is_better(0.6, 0.5)
    for metric in (accuracy, loss):
        assert metric.is_better(0.0, None)
        assert not metric.is_better(float("nan"), None) and not metric.is_better(float("inf"), 1.0)


def test_changed_decode_settings_are_remembered_by_value_and_type():
    run = resolve_run("translate", {}).run
    first = changed_decode(run, {"beam": 1})
    assert changed_decode(run, {"beam": 1}) is first and first.strategy.size == 1
    assert changed_decode(run, {"strategy": Beam(2)}) is changed_decode(run, {"strategy": Beam(2)})
    assert changed_decode(run, {}) is run.decode
    with pytest.raises(UserError, match="decode.strategy.size"):
        changed_decode(run, {"beam": True})  # equals 1, which a table of values would find
    other = resolve_run("translate", {"decode.length_penalty": 2.0}).run
    assert changed_decode(other, {"beam": 2}).strategy.length_penalty == 2.0
    assert changed_decode(run, {"batch": np.int64(3)}).batch == 3  # not plain, so it is not remembered
    assert changed_decode(run, {"batch": np.int64(3)}) is not changed_decode(run, {"batch": np.int64(3)})


def test_a_changed_section_equals_a_merged_run():
    """Whatever is valid is equal by the short way of a section and by the long way of a whole run."""
    for recipe, changes in (
        ("translate", {"kind": "sample", "temperature": 0.5}),
        ("translate", {"strategy.n": 3, "rules.suppress_tokens": 7}),
        ("translate", {"kind": "greedy", "nbest": 1}),
        ("language", {"top_k": "3", "max_tokens": 5}),
        ("nat", {"kind": "npd", "teacher": "runs/x", "seed": 4}),
        ("transcribe", {"kind": "ctc"}),
    ):
        run = resolve_run(recipe, {}).run
        assert changed_decode(run, changes) == resolve_run(recipe, {"decode": changes}).run.decode
    limited = resolve_run("language", {"decode.max_length": 9, "decode.min_length": 4}).run
    assert (limited.decode.max_length, limited.decode.max_tokens) == (9, 256)
    changed = changed_decode(limited, {"max_tokens": 5})
    assert (changed.max_length, changed.min_length) == (0, 4)
    assert change_settings(limited, {"decode.min_tokens": "2", "eval": {}}).decode.min_length == 0
    both = changed_decode(limited, {"max_tokens": 5, "max_length": 7})
    assert (both.max_tokens, both.max_length) == (5, 7)
