"""`python -m benchmarks`: a row per program, ratios of the rates, checks of equality, and errors."""

import json
import math

import pytest
import torch
from helpers.losses import batch_loss

from benchmarks import BENCHMARKS, bench, timing
from benchmarks.__main__ import main
from benchmarks.report import Report, Section
from benchmarks.translate import decoding, pairs, peers, training
from benchmarks.translate.workload import TranslateWorkload, make_workload, model_config
from regard.errors import UserError

CPU = torch.device("cpu")
TRAINING = ["regard, same batches", "regard, buckets", "HF Marian", "torch.nn.Transformer"]
OURS = ["regard fp32", "regard bf16", "regard int8"]
DECODING = [*OURS, "HF generate fp32", "HF generate bf16", "CTranslate2 fp32", "CTranslate2 int8"]


def run_main(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_whole_benchmark_as_json(capsys):
    code, out, _ = run_main(capsys, "translate", "--size", "tiny", "--rounds", "1", "--device", "cpu", "--json")
    assert code == 0 and out.count("\n") == 1
    found = json.loads(out)
    assert (found["bench"], found["size"], found["rounds"], found["notes"]) == ("translate", "tiny", 1, [])
    assert found["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    assert [section["name"] for section in found["sections"]] == ["training", "greedy", "beam 5"]
    for section, names in zip(found["sections"], (TRAINING, DECODING, DECODING), strict=True):
        assert [way["name"] for way in section["ways"]] == names
        ours = [way["name"] for way in section["ways"] if way["ours"]]
        assert ours == [name for name in names if name.startswith("regard")]
        assert all(len(way["rates"]) == 1 and way["median"] > 0 for way in section["ways"])
        assert len(section["ratios"]) == len(ours) * (len(names) - len(ours))
        rates = {way["name"]: way["median"] for way in section["ways"]}
        for each in section["ratios"]:
            assert math.isfinite(each["median"]) and each["low"] <= each["median"] * 1.0001 <= each["high"] * 1.001
            assert each["median"] == pytest.approx(rates[each["ours"]] / rates[each["peer"]])


def test_one_part_as_a_table(capsys):
    code, out, err = run_main(
        capsys, "translate", "--size", "tiny", "--rounds", "2", "--device", "cpu", "--only", "training"
    )
    assert code == 0 and "timing training" in err and "decoding" not in err
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("training"))
    assert all(lines[start + 1 + i].startswith(name) for i, name in enumerate(TRAINING))
    assert lines[start].count("×") == 2 and lines[start + 3].count(" to ") == 2 and " to " not in lines[start + 1]
    assert any("padding: " in line for line in lines) and any("differ by" in line for line in lines)


def test_part_packed(capsys):
    arguments = ("--size", "tiny", "--rounds", "1", "--device", "cpu", "--only", "packed", "--json")
    code, out, err = run_main(capsys, "translate", *arguments)
    (section,) = json.loads(out)["sections"]
    assert code == 0 and "decoding" not in err
    assert [way["name"] for way in section["ways"]] == ["regard, buckets", "HF Marian"]
    (fact,) = [fact for fact in section["facts"] if fact.startswith("padding")]
    assert "in the peers' batches" in fact and "regard, buckets" in fact


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["translat"], f"regard: there is no benchmark 'translat'; expected {', '.join(BENCHMARKS)}"),
        (["translate", "--rounds", "0"], "regard: --rounds is 0; expected 1 or more"),
        (
            ["translate", "--size", "huge"],
            "regard: --size huge is not a size of this benchmark; expected base, tiny, small, big",
        ),
        (
            ["translate", "--only", "eating"],
            "regard: --only eating is not a part of this benchmark; expected training, decoding, packed",
        ),
        (["translate", "--device", "abacus"], "regard: device=abacus is not a device; expected auto, cpu, cuda"),
    ],
)
def test_errors(arguments, sentence, capsys):
    code, out, err = run_main(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith(sentence) and err.count("\n") == 1


# --- equality checks ---


def small() -> tuple[TranslateWorkload, pairs.RandomPairs, pairs.EncodedPairs]:
    workload = make_workload("tiny", CPU)
    examples = pairs.RandomPairs(workload.corpus, workload.vocab, seed=1)
    return workload, examples, pairs.EncodedPairs(examples, pairs.tokenizer(workload.vocab))


@pytest.mark.parametrize("name", TRAINING[1:])
def test_a_model_with_other_weights_is_not_timed(name):
    workload, examples, encoded = small()
    programs = training.build_programs(workload, examples, encoded, CPU, [])
    assert training.compare(programs, encoded, CPU) < 1e-5
    with torch.no_grad():
        next(programs[name].model.parameters()).mul_(1.01)
    with pytest.raises(UserError, match=f"{name} and regard are not equal: losses differ by .*nothing was timed"):
        training.compare(programs, encoded, CPU)


def test_the_programs_train_alike():
    """After some steps on the same batches without dropout, their losses are still equal, and lower."""
    workload, examples, encoded = small()
    programs = training.build_programs(workload, examples, encoded, CPU, [])
    alike = {name: program for name, program in programs.items() if name != "regard, buckets"}
    before, after = {}, {}
    for name, (net, loss, steps, _) in alike.items():
        for part in net.modules():
            for word in ("p", "dropout"):
                if isinstance(getattr(part, word, None), float):
                    setattr(part, word, 0.0)
        before[name] = loss(net, steps[0].micro_batches[0]).item() / steps[0].count
        assert training.train_rounds(alike[name], workload, CPU, 1, compiled=False)(0) == pairs.valid_tokens(steps)
        after[name] = loss(net, steps[0].micro_batches[0]).item() / steps[0].count
    assert max(after.values()) - min(after.values()) < 1e-4 and max(after.values()) < min(before.values()) - 5e-4


def test_all_rounds_together_use_all_steps():
    workload, examples, encoded = small()
    program = training.build_programs(workload, examples, encoded, CPU, [])["regard, buckets"]
    go = training.train_rounds(program, workload, CPU, 3, compiled=False)
    assert sum(go(number) for number in range(3)) == pairs.valid_tokens(program.steps)


def outputs(workload: TranslateWorkload, **changed: list[list[int]]) -> dict[str, list[list[int]]]:
    plain = [[row] * workload.tokens for row in range(10)]
    return {name.replace("_", " "): tokens for name, tokens in ({"regard_fp32": plain} | changed).items()}


def test_different_outputs_are_not_timed():
    workload, notes = TranslateWorkload("tiny", tokens=3), []
    same, other = [[row] * 3 for row in range(10)], [[row + 1] * 3 for row in range(10)]
    found = decoding.compare(
        outputs(workload, HF_generate_fp32=same, HF_generate_bf16=other), "greedy", workload, notes
    )
    assert found == {"regard fp32": 10, "HF generate fp32": 10, "HF generate bf16": 0} and notes == []
    found = decoding.compare(outputs(workload, HF_generate_fp32=same[:9] + [[7] * 3]), "greedy", workload, notes)
    assert found["HF generate fp32"] == 9 and notes == []
    found = decoding.compare(
        outputs(workload, HF_generate_fp32=same, CTranslate2_fp32=other), "greedy", workload, notes
    )
    assert list(found) == ["regard fp32", "HF generate fp32"]
    assert notes == ["CTranslate2 fp32 equals regard in 0 of 10 outputs, so it was not timed"]
    with pytest.raises(UserError, match="HF generate fp32 and regard are not equal in fp32, so nothing was timed"):
        decoding.compare(outputs(workload, HF_generate_fp32=other, CTranslate2_fp32=other), "greedy", workload, [])
    with pytest.raises(UserError, match="HF generate bf16 gave 2 tokens instead of 3, so nothing was timed"):
        decoding.compare(outputs(workload, HF_generate_bf16=[row[:2] for row in same]), "greedy", workload, [])


def test_a_missing_or_failing_peer_is_left_out(monkeypatch, tmp_path):
    notes, workload = [], make_workload("tiny", CPU)
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    programs = decoding.build_programs(workload, decoding.sources(workload), CPU, tmp_path, notes)
    assert list(programs) == OURS
    assert [note.split(" is ")[0] for note in notes] == ["transformers", "ctranslate2"]
    examples = small()
    assert "HF Marian" not in training.build_programs(*examples, CPU, notes)

    def broken(beam):
        raise RuntimeError("no such device\nand more")

    notes.clear()
    outputs_of = decoding.run_programs({"regard fp32": lambda beam: [[1]], "CTranslate2 int8": broken}, 1, notes)
    assert list(outputs_of) == ["regard fp32"]
    assert notes == ["CTranslate2 int8 cannot run here, so it was not timed: no such device"]
    with pytest.raises(RuntimeError):
        decoding.run_programs({"regard int8": broken}, 1, notes)


def test_outputs_are_diverse_and_depend_on_the_source():
    workload = make_workload("tiny", CPU)
    predictor = decoding.build_predictor(workload, CPU)
    for beam in (1, 5):
        found = decoding.ours(predictor, decoding.sources(workload), workload)(beam)
        assert all(len(output) == workload.tokens and len(set(output)) > workload.tokens // 2 for output in found)
        assert len({tuple(output) for output in found}) == len(found)
        assert min(min(output) for output in found) > 3  # no special token


# --- sentences and batches ---


def test_length_distribution_of_pairs():
    examples = pairs.RandomPairs(4000, 1000, seed=1)
    lengths = torch.tensor([[len(text.split()) + 1 for text in both] for both in examples]).float()
    assert 27 < lengths[:, 0].mean() < 31 and lengths.min() == 4 and lengths.max() == 120
    assert 0.14 < (lengths[:, 1] / lengths[:, 0]).log().std() < 0.2
    text = pairs.tokenizer(1000)
    ids = text.encode([examples[0][0]])[0]
    assert text.size == 1000 and len(ids) == lengths[0, 0] - 1 and min(ids) > 3
    assert pairs.RandomPairs(4000, 1000, seed=1).pairs == examples.pairs != pairs.RandomPairs(4000, 1000, 2).pairs


def test_batches_are_grouped_as_by_the_trainer():
    """Megabatches of fifty batches, each sorted by the length of the source."""
    examples = pairs.RandomPairs(250, 500, seed=1)
    encoded = pairs.EncodedPairs(examples, pairs.tokenizer(500))
    steps = encoded.grouped(3)
    assert sorted(i for step in steps for i in step.examples) == list(range(250))
    assert [len(step.examples) for step in steps] == [3] * 50 + [3] * 33 + [1]
    for first, last, numbers in ((0, 50, range(150)), (50, 84, range(150, 250))):
        order = [i for step in steps[first:last] for i in step.examples]
        assert sorted(order) == list(numbers)
        lengths = [len(encoded.sources[i]) for i in order]
        assert lengths == sorted(lengths, reverse=True)
    batch = steps[7].micro_batches[0]
    assert batch["source"].valid.sum(1).tolist() == [len(encoded.sources[i]) + 1 for i in steps[7].examples]
    assert steps[7].count == sum(len(encoded.targets[i]) + 1 for i in steps[7].examples)
    some = pairs.spread(steps, 5)
    assert len(some) == 5 and len({step.examples[0] for step in some}) == 5
    means = [step.tokens / len(step.examples) for step in some]
    assert means == sorted(means)


def test_padding_to_a_multiple_keeps_the_loss():
    workload, examples, _ = small()
    text = pairs.tokenizer(workload.vocab)
    plain, wide = (pairs.EncodedPairs(examples, text, multiple).step([3, 5, 8]) for multiple in (1, 8))
    assert all(wide.micro_batches[0][side].values.size(1) % 8 == 0 for side in ("source", "target"))
    batch = wide.micro_batches[0]
    inputs, labels = batch["target"].values.flatten(), batch["labels"]
    assert inputs[labels.positions[1:]][labels.values[:-1] != 2].equal(labels.values[:-1][labels.values[:-1] != 2])
    assert len(labels.positions) == len(labels.values) == wide.count
    assert pairs.valid_tokens([plain]) == pairs.valid_tokens([wide]) and pairs.padding([plain]) < pairs.padding([wide])
    objective = training.build_objective(workload, examples, pairs.EncodedPairs(examples, text), CPU)
    objective.model.eval()
    losses = [batch_loss(objective, each.micro_batches[0]).item() for each in (plain, wide)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# --- timing and the report ---


def test_programs_take_turns_after_a_warm_up(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def program(name: str, seconds: float):
        def go(number: int) -> float:
            calls.append((name, number))
            clock[0] += seconds
            return 6.0

        return go

    rates = timing.rounds({"a": program("a", 2.0), "b": program("b", 3.0)}, 2, CPU)
    assert calls == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert rates == {"a": [3.0, 3.0], "b": [2.0, 2.0]}
    assert timing.ratio([4.0, 2.0, 8.0], [2.0, 2.0, 2.0]) == (2.0, 1.0, 4.0)


def test_the_table():
    section = Section("eating", "plates/s", {"we": [4.0, 2.0, 8.0], "they": [2.0, 2.0, 2.0]}, ("we",), ["one fact"])
    table = Report("meals", {"threads": 2}, [section], ["a note"]).table()
    assert table == (
        "meals: threads 2\n\n"
        "eating  plates/s                 we ×\n"
        "we             4\n"
        "they           2  2.00 (1.00 to 4.00)\n"
        "  one fact\n\n"
        "a note"
    )


def test_the_sizes_of_a_workload():
    assert "translate" in BENCHMARKS
    base, gpu = make_workload("base", CPU), make_workload("base", torch.device("cuda"))
    assert (base.sentences, base.rows, base.precision, gpu.sentences, gpu.rows, gpu.precision) == (
        16, 16, "fp32", 256, 64, "bf16",
    )  # fmt: skip
    assert (
        model_config(base).width == 512 and model_config(base).vocab == base.vocab == 32000 and model_config(base).tied
    )
    with pytest.raises(UserError, match="there is no benchmark 'transcribe'; expected .*translate"):
        bench("transcribe", "cpu", "tiny", 1, None)
