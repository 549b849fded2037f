"""Manifests of texts, images and recordings, their mixture, and steps that hold all kinds."""

import json
from collections import Counter

import numpy as np
import pytest

from regard.config.data.mixed import MultitaskData
from regard.config.data.texts import TokenizerConfig
from regard.config.train import Train
from regard.data.datasets.fields import ImageField, ProcessorField, SoundField
from regard.data.datasets.multitask import MultitaskDataset, MultitaskSampler, spread_groups
from regard.data.datasets.source_target import SourceTargetDataset
from regard.data.datasets.targets import TargetField, TranscriptField
from regard.data.loading.loader import Loader
from regard.data.sources.holdout import hold_out
from regard.data.sources.manifest import MODALITIES, ManifestRecords, SourceTag, open_manifests, parse_line
from regard.data.sources.task_mixture import TaskMixture
from regard.errors import UserError
from regard.processors.image.processor import ImageProcessor
from regard.processors.sound.filterbank import FilterbankProcessor
from regard.processors.sound.read import Samples
from regard.processors.text.tokenizers import train_tokenizer
from regard.tasks.multitask.tags import TaggedTargets, TaskTags
from regard.tasks.multitask.training import EndedText

RNG = np.random.default_rng(1)
DATA = MultitaskData(rate=8000, bins=20)


def records(texts=12, images=8, sounds=6):
    """Targets of different lengths; two tasks of texts."""
    found = [
        {"text": "ab" * (1 + number % 5), "target": "x" * (1 + number % 4), "task": "long" if number % 2 else "short"}
        for number in range(texts)
    ]
    found += [{"image": RNG.integers(0, 256, (16, 16, 3), np.uint8), "target": "red"} for _ in range(images)]
    lengths = RNG.integers(2000, 6000, sounds)
    sound = [Samples(RNG.normal(0, 0.1, length).astype(np.float32), 8000) for length in lengths]
    return found + [{"audio": each, "target": "one two"} for each in sound]


@pytest.fixture(scope="module")
def examples():
    return ManifestRecords("records in memory", records(), DATA)


def make_dataset(examples, weights=None, **train):
    mixture, settings = TaskMixture(examples, weights), Train(**{"tokens": 60, **train})
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), mixture.texts_to_learn())
    tags = TaskTags.of(mixture, tokenizer.size)
    targets = TaggedTargets(tokenizer, dict(zip(tags.tasks, tags.ids, strict=True)))
    image, sound = ImageProcessor(resize=16, crop=16, patch=8), FilterbankProcessor(rate=8000, bins=20, hop=80)
    fields = {
        "text": (ProcessorField("source", EndedText(tokenizer)), TargetField(targets, tokenizer.pad, 256)),
        "image": (ImageField("source", image, in_bytes=False), TargetField(targets, tokenizer.pad, 256, noun="target")),
        "audio": (SoundField("source", sound, 30), TranscriptField(targets, tokenizer.pad, 256, None)),
    }
    members = {
        name: SourceTargetDataset(mixture.of_modality(name), *pair, DATA, settings) for name, pair in fields.items()
    }
    return MultitaskDataset(mixture, members, {"text": 1, "image": 1, "audio": 4}, DATA, settings), tags


def steps_of(dataset, epoch=0, index=0):
    return list(Loader.of(dataset, MultitaskSampler).steps(epoch, index))


def test_a_manifest_gives_tags_inputs_and_targets(tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    lines = [{"text": "a", "target": " b ", "task": "t"}, {"image": "a.png", "target": "red", "id": 7}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = open_manifests([[str(tmp_path / "m.jsonl")]], DATA)
    assert found[0] == (SourceTag("text", "t"), "a", "b")
    assert found[1] == (SourceTag("image", "image"), tmp_path / "a.png", "red")  # the tag is the kind by default
    assert len(found) == 2 and found.location(1).endswith("m.jsonl:2") and found.field(1, 2) == "red"
    twice = open_manifests([[str(tmp_path / "m.jsonl")], [str(tmp_path / "m.jsonl")]], DATA)
    assert len(twice) == 4 and twice.fingerprint() != found.fingerprint()
    held = [hold_out(twice, 0.25, split) for split in ("train", "valid")]
    assert [len(each) for each in held] == [3, 1] and isinstance(held[0].field(0, 0), SourceTag)


BAD_LINES = {
    "unknown kind": (
        '{"video": "a.mp4", "target": "b"}',
        "m.jsonl:1: no input of a known kind; there is video, target",
    ),
    "several kinds": (
        '{"text": "a", "image": "a.png", "target": "b"}',
        "m.jsonl:1: text and image at once; expected one",
    ),
    "no target": ('{"text": "a"}', "m.jsonl:1: no text under 'target'; expected what is written for the text"),
    "empty target": ('{"text": "a", "target": " "}', "m.jsonl:1: no text under 'target'"),
    "empty input": ('{"image": "", "target": "b"}', "m.jsonl:1: no image under 'image'; expected the path of a file"),
    "no text": ('{"text": 5, "target": "b"}', "m.jsonl:1: no text under 'text'; expected a text"),
    "bad task": ('{"text": "a", "target": "b", "task": 3}', "m.jsonl:1: no text under 'task'; expected a tag"),
    "not JSON": ("a,b", "m.jsonl:1: not one JSON object on one line"),
    "missing file": ('{"audio": "no.wav", "target": "b"}', "m.jsonl:1: there is no audio file .*no.wav; correct"),
    "no sound": ('{"audio": "m.jsonl", "target": "b"}', "m.jsonl:1: .*, or set data.invalid=skip"),
    "no image": ('{"image": "m.jsonl", "target": "b"}', "m.jsonl:1: .*, or set data.invalid=skip"),
    "no path": ('{"image": 5, "target": "b"}', "m.jsonl:1: no image but 5; give the path of a file"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused_with_its_place(name, tmp_path):
    line, message = BAD_LINES[name]
    path = tmp_path / "m.jsonl"
    path.write_text(f'{line}\n{{"text": "a", "target": "b"}}\n')
    with pytest.raises(UserError, match=message):
        open_manifests([[str(path)]], DATA)
    kept = open_manifests([[str(path)]], DATA.model_copy(update={"invalid": "skip"}))
    assert len(kept) == 1 and kept.report()


def test_bad_records_and_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="records, record 2: a str; expected a dict such as"):
        ManifestRecords("records", [{"text": "a", "target": "b"}, "a"], DATA)
    with pytest.raises(UserError, match="a.tsv is no manifest; expected a .jsonl file with lines such as"):
        open_manifests([["a.tsv"]], DATA)
    from regard.data.files.in_memory import InMemory

    with pytest.raises(UserError, match="expected a list of dicts"):
        open_manifests([[InMemory({"text": ["a"], "target": ["b"]})]], DATA)
    with pytest.raises(ValueError, match="nothing"):
        parse_line({})
    long = [{"audio": Samples(np.ones(800, np.float32), 8000), "target": "a"}] * 2
    short = ManifestRecords(
        "records", [*long, {"text": "a", "target": "b"}], DATA.model_copy(update={"max_seconds": 0.01})
    )
    assert len(short) == 1 and "2 recordings left out because they are longer than 0.01 seconds" in short.report()[0]


def test_every_example_is_in_one_step_of_an_epoch(examples):
    dataset, _ = make_dataset(examples)
    steps = steps_of(dataset)
    assert sorted(index for step in steps for index in step.examples) == list(range(len(examples)))
    kinds = [
        {MODALITIES.index(examples.field(i, 0).modality) for i in batch.examples}
        for step in steps
        for batch in step.micro_batches
    ]
    assert all(len(each) == 1 for each in kinds)  # a micro-batch has one kind
    assert max(len(step.micro_batches) for step in steps) == 3  # a step has all kinds, by their shares
    assert all(step.tokens <= 60 for step in steps) and steps[-1].index == len(examples)
    batch = next(batch for batch in steps[0].micro_batches if batch["source"].modality == "frames")
    assert "transcript" in batch and batch["target"].values.size(1) > 2


def test_steps_begin_where_a_run_was_interrupted(examples):
    dataset, _ = make_dataset(examples)
    whole = steps_of(dataset, 1)
    rest = steps_of(make_dataset(examples)[0], 1, whole[1].index)
    assert [each.examples for each in rest] == [each.examples for each in whole[2:]]
    with pytest.raises(UserError, match="no step ends after 1 examples"):
        steps_of(dataset, 1, 1)


def test_accumulation_divides_the_micro_batches_of_the_same_steps(examples):
    one, two = (steps_of(make_dataset(examples, accumulate=count)[0]) for count in (1, 2))
    assert [sorted(each.examples) for each in one] == [sorted(each.examples) for each in two]
    assert [each.count for each in one] == [each.count for each in two]
    assert len(two[0].micro_batches) > len(one[0].micro_batches)


def test_prompts_have_the_token_of_the_task(examples):
    dataset, tags = make_dataset(examples)
    assert tags.tasks == ["short", "long", "image", "audio"] and len(set(tags.ids)) == 4
    for batch in (batch for step in steps_of(dataset) for batch in step.micro_batches):
        wanted = [tags.token(examples.field(index, 0).task) for index in batch.examples]
        assert batch["target"].values[:, 1].tolist() == wanted


def test_weights_say_how_often_a_task_is_drawn(examples):
    weights = {"short": 1.0, "long": 1.0, "image": 6.0, "audio": 2.0}
    mixture = TaskMixture(examples, weights)
    rng = np.random.default_rng(1)
    counts = Counter(mixture.tags[i].task for _ in range(200) for i in mixture.order(rng).tolist())
    for task, weight in weights.items():
        assert counts[task] / counts.total() == pytest.approx(weight / 10, abs=0.02)
    with pytest.raises(UserError, match="data.weights names the task 'images', which data.train lacks; .* mean image"):
        TaskMixture(examples, weights | {"images": 1.0})
    with pytest.raises(UserError, match="data.weights has no weight for the task 'audio'; give one for each of short"):
        TaskMixture(examples, dict.fromkeys(("short", "long", "image"), 1.0))


def test_groups_of_rare_kinds_are_spread_over_the_steps():
    many, few = [np.array([i]) for i in range(6)], [np.array([6]), np.array([7])]
    assert [[each.tolist() for each in step] for step in spread_groups([many, few])] == [
        [[0], [6]], [[1]], [[2]], [[3], [7]], [[4]], [[5]]
    ]  # fmt: skip
    assert spread_groups([]) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("weights", "dates", "has 'dates'; expected a task and a number above 0, such as dates:2"),
        ("weights", "a:0", "expected a task and a number above 0"),
        ("weights", "a:x", "expected a task and a number above 0"),
        ("weights", "a:1,a:2", "names a task twice"),
        ("sources", "dates,video", "data.sources has 'video'; expected one of dates, scenes, morse"),
        ("sources", "dates,dates", "expected one or more of dates, scenes, morse"),
    ],
)
def test_bad_settings_are_refused(key, value, message):
    from regard.config.run import resolve_run

    with pytest.raises(UserError, match=message):
        resolve_run("multitask", {f"data.{key}": value})
