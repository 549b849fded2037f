"""Translation by families that write all tokens at once: fertilities, Mask-Predict, their strategies and mistakes."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small

import regard
from regard import api
from regard.alignment.fertility import choose_by_links, fertilities
from regard.config.strategies import Argmax, Average, MaskPredict, NoisyParallel
from regard.decode.parallel import decoding as parallel
from regard.decode.parallel.copies import TokenCopying, likeliest_lengths, limit_fertilities
from regard.errors import UserError
from regard.messages.texts import TranslateRequest
from regard.parts import Encoded, Inputs
from regard.parts.parallel.fertility import best_fertilities, copy_tokens
from regard.tasks.parallel.data import FertilityDataset, MaskPredictDataset

TEXTS = ["the cat sleeps.", "a dog", "one two three four five six seven", "x"]


@pytest.fixture(scope="module")
def teacher() -> Path:
    return small.translator()


@pytest.fixture(scope="module")
def nat() -> Path:
    return small.translator(model__family="nat", decode__kind="argmax")


@pytest.fixture(scope="module")
def cmlm() -> Path:
    return small.translator(model__family="cmlm", decode__kind="mask-predict")


# --- fertilities -----------------------------------------------------------------------------------------------------


def test_best_fertilities_equal_a_search_of_all() -> None:
    logprobs = torch.randn(3, 4, 4).log_softmax(-1)
    logprobs[1, 3] = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])  # padding
    for length in (0, 1, 5, 9):
        found, score = best_fertilities(logprobs, torch.full((3,), length))
        for row in range(3):
            possible = (each for each in itertools.product(range(4), repeat=4) if sum(each) == length)
            totals = {each: float(sum(logprobs[row, i, f] for i, f in enumerate(each))) for each in possible}
            best = max(totals, key=totals.__getitem__)
            assert tuple(found[row].tolist()) == best and score[row] == pytest.approx(totals[best], abs=1e-5)
    assert best_fertilities(logprobs, torch.tensor([20, 3, 2]))[0].sum(1).tolist() == [20, 3, 2]


def test_copies_follow_fertilities() -> None:
    values, valid = copy_tokens(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[2, 0, 1], [0, 1, 0]]))
    assert [row[keep].tolist() for row, keep in zip(values, valid, strict=True)] == [[5, 5, 7], [9]]
    assert copy_tokens(torch.tensor([[5, 6]]), torch.tensor([[0, 0]]))[0].shape == (1, 0)
    limited = limit_fertilities(torch.tensor([[2, 0, 3], [1, 1, 1]]), torch.tensor([3, 9]))
    assert limited.tolist() == [[2, 0, 1], [1, 1, 1]]


def test_fertilities_sum_to_the_target_length() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        size, length, limit = rng.integers(1, 7), rng.integers(0, 20), rng.integers(1, 6)
        found = fertilities(rng.integers(-1, size, length), size, int(limit))
        assert found.sum() == min(length, size * limit) and found.max(initial=0) <= limit and len(found) == size
    assert fertilities(np.array([-1, 0, 0, -1, 2]), 4, 50).tolist() == [4, 0, 1, 0]
    assert fertilities(np.array([3] * 9), 4, 3).tolist() == [0, 3, 3, 3]
    assert fertilities(np.array([-1, -1]), 2, 50).tolist() == [1, 1]


def test_links_of_words_become_choices_of_tokens() -> None:
    """The three tokens of the second target word share the two tokens of the source word that it is linked to."""
    chosen = choose_by_links(frozenset({(1, 1), (0, 9)}), [0, 1, 1, None], [0, 1, 1, 1])
    assert chosen.tolist() == [-1, 1, 1, 2]


def test_mean_and_sampled_fertilities() -> None:
    copying = TokenCopying(torch.tensor([[[0.5, 0.0, 0.5], [0.05, 0.05, 0.9]]]).log(), None)
    assert copying.mean().tolist() == [[1, 2]]
    assert copying.likeliest().tolist() == [[0, 2]]
    keys = torch.arange(4000)[None]
    drawn = copying.several(keys)[0]
    assert drawn[0].tolist() == [0, 2] and drawn[1:, 0].float().mean() == pytest.approx(1.0, abs=0.06)
    assert (drawn[1:, 1] == 2).float().mean() == pytest.approx(0.9, abs=0.03)
    assert torch.equal(copying.several(keys[:, :7])[0], drawn[:7])


# --- training data ---------------------------------------------------------------------------------------------------


def job_of(settings: dict[str, Any]) -> Any:
    from regard.config.run import resolve_run
    from regard.tasks.task import prepare

    return prepare(resolve_run("translate", {**small.TINY, "train.steps": 1, **settings}).run, {}, torch.device("cpu"))


def test_batches_of_fertilities(tmp_path: Path) -> None:
    data = small.write_files(tmp_path, train=40)
    job = job_of({"data.train": f"{data}/train.low,{data}/train.up", "model.family": "nat", "decode.kind": "argmax"})
    (batch, *_) = next(job.steps(0, 0)).micro_batches
    own, source, copies = batch["fertility"].values, batch["source"], batch["copies"]
    fertility = own.masked_fill(~source.valid, 0)
    values, valid = copy_tokens(source.values, fertility)
    assert torch.equal(valid, copies.valid) and torch.equal(values[valid], copies.values[valid])
    assert fertility.sum() == len(batch["labels"].values) == batch.count
    assert batch.counts == {"fertility": int(source.valid.sum())}
    ends = source.valid.sum(1) - 1
    assert fertility.gather(1, ends[:, None]).max() == 0  # END gives no token


def test_links_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("red house\nold book\n\nbig tree\n")
    (tmp_path / "a.de").write_text("rotes haus\naltes buch\nleer\ngroßer baum\n")
    (tmp_path / "links").write_text("0-0 1-1\n0-1 1-0\n\n1-0 1-1\n")
    settings = {
        "data.train": f"{tmp_path}/a.en,{tmp_path}/a.de",
        "data.alignments": str(tmp_path / "links"),
        "model.family": "nat",
        "decode.kind": "argmax",
        "tokenizer.kind": "space",
    }
    job = job_of(settings)
    dataset = FertilityDataset(
        job.splits["train"], job.predictor.source, job.predictor.target, job.run.data, job.run.train, None, 50
    )
    rows = [own.tolist() for _, _, own in dataset.encode([0, 1, 2])]
    assert rows[0] == rows[1] and sum(rows[2][:-1]) == sum(rows[0][:-1]) and rows[2][0] == 0
    (tmp_path / "links").write_text("0-0 1-1\nx\n\n0-0\n")
    with pytest.raises(UserError, match="has 'x'; expected links such as 0-0 1-2"):
        list(job_of(settings).steps(0, 0))
    (tmp_path / "links").write_text("0-0\n")
    with pytest.raises(UserError, match="the sides of the data differ in length"):
        job_of(settings)


def test_long_targets_are_cut_and_reported(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("a\nb c\n")
    (tmp_path / "a.de").write_text("one two three four five\nsix seven\n")
    settings = {"data.train": f"{tmp_path}/a.en,{tmp_path}/a.de", "model.family": "nat", "decode.kind": "argmax"}
    job = job_of({**settings, "model.max_fertility": 2, "tokenizer.kind": "word"})
    (step,) = job.steps(0, 0)
    assert "targets have over 2 tokens for a source token and were cut" in " ".join(job.describe_data())
    assert step.micro_batches[0]["fertility"].values.max() == 2


def test_masks_of_mask_predict_depend_on_the_epoch(tmp_path: Path) -> None:
    data = small.write_files(tmp_path, train=40)
    sides = {"data.train": f"{data}/train.low,{data}/train.up", "model.family": "cmlm", "decode.kind": "mask-predict"}
    job = job_of(sides)
    dataset = MaskPredictDataset(
        job.splits["train"], job.predictor.source, job.predictor.target, job.run.data, job.run.train
    )
    one, two = (dataset.batch(np.arange(8), epoch) for epoch in (0, 1))
    assert one["target"].values.ne(two["target"].values).any()
    again = dataset.batch(np.arange(8), 0)
    assert torch.equal(one["target"].values, again["target"].values)
    pad, flat = job.predictor.target.pad, one["target"].values.flatten()
    assert (flat[one["labels"].positions] == pad).all() and one.count == len(one["labels"].values)
    masked = (one["target"].values == pad) & one["target"].valid
    assert masked.sum() == one.count and masked.any(1).all() and one.counts == {"length": 8}


# --- decoding --------------------------------------------------------------------------------------------------------

STRATEGIES = [Argmax(), Average(), Argmax(merge_repeats=True)]


def alone_equals_together(run: Path, **decode: Any) -> list[str]:
    predictor = regard.load(run)
    together: list[str] = predictor.predict(TEXTS, **decode)
    assert together == [predictor.predict(text, **decode) for text in TEXTS]
    assert together == predictor.predict(TEXTS, batch=2, **decode)
    return together


def test_noisy_parallel_decoding_asks_the_teacher(nat: Path, teacher: Path) -> None:
    decode = {"kind": "npd", "samples": 6, "teacher": str(teacher)}
    found = alone_equals_together(nat, **decode)
    predictor, teacher_run = regard.load(nat), regard.load(teacher)
    records = predictor.predict(TEXTS, details=True, **decode)
    first = predictor.predict(TEXTS)

    def score(text: str, target: str) -> float:
        return float(teacher_run.score(text, target)) / (len(teacher_run.target.encode([target])[0]) + 1)

    for text, target, plain, record in zip(TEXTS, found, first, records, strict=True):
        assert record["score"] == pytest.approx(score(text, target), abs=1e-4)
        assert record["score"] >= score(text, plain) - 1e-4  # the likeliest fertilities are among the samples
    assert predictor.predict(TEXTS, **{**decode, "samples": 1}) == first
    assert predictor.predict(TEXTS, **{**decode, "seed": 5, "samples": 30})


def test_a_teacher_of_another_vocabulary_scores_texts(nat: Path) -> None:
    other = small.translator(tokenizer__kind="char")
    assert len(alone_equals_together(nat, kind="npd", samples=3, teacher=str(other))) == 4


def test_requests_carry_strategies(nat: Path, cmlm: Path, teacher: Path) -> None:
    strategies = [*STRATEGIES, NoisyParallel(str(teacher), 3)]
    predictor = regard.load(nat)
    results = predictor.predict_requests([TranslateRequest(TEXTS[0], strategy=each) for each in strategies])
    assert [each.text for each in results[:2]] == [
        predictor.predict(TEXTS[0]),
        predictor.predict(TEXTS[0], kind="average"),
    ]
    assert all(each.finish == "end" and each.score is not None for each in results)
    (found,) = regard.load(cmlm).predict_requests([TranslateRequest(TEXTS[0], strategy=MaskPredict(4, 2))])
    assert found.text == regard.load(cmlm).predict(TEXTS[0], iterations=4, length_beam=2)


@torch.no_grad()
def test_mask_predict_equals_a_plain_loop(cmlm: Path) -> None:
    """Of one row and one length at a time."""
    predictor = regard.load(cmlm)
    model, pad, iterations = predictor.model, predictor.target.pad, 5
    ids = [*predictor.source.encode([TEXTS[0]])[0], predictor.source.end]
    encoded = model.encode(Inputs("tokens", torch.tensor([ids])))
    lengths = torch.tensor([3, 7])
    twice = Encoded(encoded.states.repeat_interleave(2, 0), None)
    tokens, logprobs = parallel.mask_predict(model, twice, lengths, pad, predictor.writer.hidden, 7, iterations)
    for row, length in enumerate(lengths.tolist()):
        own, scores = [pad] * length, [0.0] * length
        for iteration in range(iterations):
            count = length if not iteration else length * (iterations - iteration) // iterations
            places = sorted(range(length), key=lambda i: scores[i])[:count] if iteration else list(range(length))
            for place in places:
                own[place] = pad
            found = model.logits(model.decode(Inputs("tokens", torch.tensor([own])), encoded))[0].log_softmax(-1)
            found[:, predictor.writer.hidden] = -torch.inf
            for place in places:
                own[place] = int(found[place].argmax())
                scores[place] = float(found[place].max())
        assert tokens[row, :length].tolist() == own
        assert logprobs[row, :length].tolist() == pytest.approx(scores, abs=1e-4)


def test_lengths_are_within_their_limit() -> None:
    logits = torch.tensor([[9.0, 1.0, 3.0, 2.0, 8.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    lengths, logprobs = likeliest_lengths(logits, torch.tensor([3, 1]), 3)
    assert lengths.tolist() == [[2, 3, 1], [1, 1, 1]]
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, lengths))


@torch.no_grad()
def test_scores_of_mask_predict_count_the_length(cmlm: Path) -> None:
    """Among several lengths, an unlikely one needs likelier tokens."""
    predictor = regard.load(cmlm)
    model, ids = predictor.model, [*predictor.source.encode([TEXTS[0]])[0], predictor.source.end]
    source, limits = Inputs("tokens", torch.tensor([ids])), torch.tensor([20])
    valid = torch.ones_like(source.values, dtype=torch.bool)
    given = predictor.writer.hidden, predictor.target.pad, MaskPredict(3, 4)
    found = parallel.decode_mask_predict(model, (source.values, valid), limits, *given)
    encoded = model.encode(source)
    lengths, priors = likeliest_lengths(model.length_logits(encoded), limits, 4)
    assert found.lengths.tolist() == lengths[0].tolist() and len(set(lengths[0].tolist())) == 4
    for row, length in enumerate(found.lengths):
        own = parallel.mask_predict(
            model, encoded, length[None], predictor.target.pad, predictor.writer.hidden, int(length), 3
        )
        assert float(found.logprobs[row]) == pytest.approx(float(own[1].sum() + priors[0, row]), abs=1e-4)


def test_repeated_tokens_are_merged() -> None:
    assert parallel.merge_repeats([1, 1, 2, 1, 1, 1, 3]) == [1, 2, 1, 3] and parallel.merge_repeats([]) == []


@pytest.mark.parametrize("family", ["nat", "cmlm"])
def test_what_predictors_offer(family: str, nat: Path, cmlm: Path, tmp_path: Path) -> None:
    """Scores of known targets, attention, alignment, streams, sentences, details and evaluation."""
    predictor = regard.load({"nat": nat, "cmlm": cmlm}[family])
    found = predictor.predict(TEXTS[0])
    alone, several = predictor.score(TEXTS[0], "THE CAT"), predictor.score(TEXTS, ["THE CAT", "A", "B C D", ""])
    assert alone == pytest.approx(several[0], abs=1e-4) and alone < 0
    (record,) = predictor.score([TEXTS[0]], ["THE CAT"], details=True)
    assert sum(record["logprobs"]) == pytest.approx(alone, abs=1e-4) and len(record["tokens"]) == len(
        record["logprobs"]
    )
    assert "".join(predictor.stream(TEXTS[0])) == found
    (record,) = predictor.predict(TEXTS[:1], details=True)
    assert len(record["alignment"]["positions"]) == len(record["tokens"]) and record["text"] == found
    predictor.look(TEXTS[0]).save(tmp_path / "a.png")
    assert all(i < 3 and j < 2 for i, j in predictor.align([TEXTS[0]], ["THE CAT"])[0])
    assert predictor.predict("One two. Three.", split=True)
    assert predictor.predict(["", " "]) == ["", ""]
    metrics = predictor.evaluate()
    assert metrics["examples"] == 60 and metrics["loss"] > 0


def test_fertility_zero_everywhere_is_an_empty_translation(nat: Path, teacher: Path) -> None:
    predictor = regard.load(nat)
    predictor.model.fertility.weight.data.zero_()
    predictor.model.fertility.bias.data.fill_(-100.0)
    predictor.model.fertility.bias.data[0] = 100.0
    for decode in ({}, {"kind": "average"}, {"kind": "npd", "teacher": str(teacher), "samples": 2}):
        assert predictor.predict(TEXTS, **decode) == [""] * 4
    assert predictor.score(TEXTS[0], "A B") < -50


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_of_decoding(nat: Path, cmlm: Path, teacher: Path, tmp_path: Path) -> None:
    regard.train(
        "classify", {"model.size": "tiny", "train.steps": 1, "data.examples": 20, "device": "cpu"}, out=tmp_path / "c"
    )
    predictor = regard.load(nat)
    for decode, words in [
        ({"kind": "beam"}, 'decode.strategy.kind is "beam"; expected one of argmax, average, npd'),
        (
            {"kind": "npd"},
            "decode.strategy=npd needs a run that scores its samples; give one with decode.strategy.teacher=RUN",
        ),
        ({"kind": "npd", "teacher": "gone"}, "decode.strategy.teacher is gone, which is not a run folder"),
        ({"kind": "npd", "teacher": str(tmp_path / "c")}, "a run of the task classify; give a whole run of"),
        ({"kind": "npd", "teacher": str(cmlm)}, "which writes all tokens at once; give a run that writes token by"),
        ({"nbest": 2}, "decode.strategy.n does not belong to decode.strategy=argmax, which has merge_repeats"),
        ({"prefix": "Das"}, "decode.prefix is not a key"),
        ({"exclude": "Das"}, "decode.exclude is not a key"),
        ({"min_tokens": 3}, "decode.min_tokens is not a key"),
        ({"repetition_penalty": 1.5}, "decode.repetition_penalty is not a key"),
        ({"suppress_tokens": [4]}, "decode.suppress_tokens is not a key"),
    ]:
        with pytest.raises(UserError) as error:
            predictor.predict(TEXTS[0], **decode)
        assert words in str(error.value), (decode, str(error.value))
    with pytest.raises(UserError, match='decode.strategy.kind is "argmax"; expected one of greedy, sample, beam'):
        regard.load(teacher).predict(TEXTS[0], kind="argmax")
    with pytest.raises(UserError, match="write all tokens at once and cannot form an ensemble"):
        regard.load(f"{nat},{nat}")


def test_mistakes_of_training(tmp_path: Path) -> None:
    data = small.write_files(tmp_path, train=10)
    (tmp_path / "links").write_text("0-0\n" * 10)
    (tmp_path / "a.tsv").write_text("a\tb\n" * 10)
    sides = {"data.train": f"{data}/train.low,{data}/train.up", "model.family": "nat", "decode.kind": "argmax"}
    for settings, words in [
        ({**sides, "data.packed": True}, "data.packed is true, but model.family=nat trains on padded rows"),
        (
            {**sides, "model.family": "cmlm", "data.packed": True, "decode.kind": "mask-predict"},
            "trains on padded rows",
        ),
        (
            {**sides, "model.family": "transformer", "decode.kind": "beam", "data.alignments": f"{data}/links"},
            "data.alignments is not a key",
        ),
        (
            {**sides, "data.train": f"{data}/a.tsv", "data.alignments": f"{data}/links"},
            "alignments go with two files of lines",
        ),
        (
            {"data.alignments": f"{data}/links", "model.family": "nat"},
            "but the embedded data need none; name data.train, too",
        ),
        (
            {**sides, "data.alignments": f"{tmp_path}/links", "model.fertilities": False},
            "but model.fertilities=false copies evenly; leave out one",
        ),
        ({**sides, "model.width": 30}, "width 30 does not divide into 4 heads"),
    ]:
        with pytest.raises(UserError) as error:
            job_of(settings)
        assert words in str(error.value), (settings, str(error.value))


# --- teachers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(teacher: Path) -> Path:
    """A run with the tokenizers of the teacher."""
    own = {
        "model__family": "nat",
        "decode__kind": "argmax",
        "train__objective__teacher": str(teacher),
        "tokenizer__vocab": 100,
    }
    return small.translator(**own)


def test_a_teacher_gives_its_tokenizers(teacher: Path, taught: Path) -> None:
    ours, theirs = regard.load(taught), regard.load(teacher)
    assert ours.source is ours.target and ours.target.size == theirs.target.size
    assert ours.target.encode(TEXTS) == theirs.target.encode(TEXTS)


def test_a_dry_run_opens_the_teacher(teacher: Path, tmp_path: Path) -> None:
    data = small.write_files(tmp_path, train=10)
    sides = {"data.train": f"{data}/train.low,{data}/train.up", "model.family": "nat", "decode.kind": "argmax"}
    taught = {"train.objective.teacher": str(teacher), "train.objective.teacher_weight": 0.5}
    assert "fertility.weight" in api.dry("translate", {**small.TINY, **sides, **taught, "train.steps": 1})


def test_fine_tuning_continues_a_run(teacher: Path, taught: Path, tmp_path: Path) -> None:
    tuned = {"start": str(taught), "train__objective__teacher": str(teacher), "train__objective__teacher_weight": 0.25}
    settings = {key: value for key, value in small.TINY.items() if not key.startswith(("model.", "tokenizer."))}
    data = small.write_files(tmp_path / "files", train=60)
    sides = {f"data.{name}": f"{data}/{name}.low,{data}/{name}.up" for name in ("train", "valid")}
    own = {key.replace("__", "."): value for key, value in tuned.items()}
    regard.train(
        "translate",
        {**settings, **sides, **own, "model.family": "nat", "decode.kind": "argmax", "train.steps": 2},
        out=tmp_path / "run",
    )
    before, after = regard.load(taught).model.state_dict(), regard.load(tmp_path / "run").model.state_dict()
    assert before.keys() == after.keys()  # the teacher is not saved
    assert any(not before[name].equal(after[name]) for name in before)


def test_mistakes_of_teachers(nat: Path, cmlm: Path, teacher: Path, tmp_path: Path) -> None:
    data = small.write_files(tmp_path, train=10)
    sides = {"data.train": f"{data}/train.low,{data}/train.up", "model.family": "nat", "decode.kind": "argmax"}
    plain = {**sides, "model.family": "transformer", "decode.kind": "beam"}
    for settings, words in [
        ({**sides, "train.objective.teacher": "gone"}, "train.objective.teacher is gone, which is not a run folder"),
        (
            {**sides, "train.objective.teacher": str(cmlm)},
            "which writes all tokens at once; give a run that writes token by token",
        ),
        ({**sides, "train.objective.teacher_weight": 0.5}, "train.objective.teacher_weight is 0.5, but no run teaches"),
        (
            {**plain, "train.objective.teacher": str(teacher), "train.objective.teacher_weight": 0.5},
            "train.objective.teacher_weight is not a key",
        ),
    ]:
        with pytest.raises(UserError) as error:
            job_of(settings)
        assert words in str(error.value), (settings, str(error.value))
    settings = {key: value for key, value in small.TINY.items() if not key.startswith(("model.", "tokenizer."))}
    other = small.translator(tokenizer__kind="char")
    own = {
        "start": str(nat),
        "model.family": "nat",
        "train.objective.teacher": str(other),
        "train.objective.teacher_weight": 0.5,
    }
    with pytest.raises(UserError, match="has another source vocabulary than this run and cannot fine-tune it"):
        regard.train(
            "translate", {**settings, "data.train": sides["data.train"], **own, "train.steps": 1}, out=tmp_path / "r"
        )
