"""Planned steps as tensors: any number of processes and workers, resumed anywhere, gives the same bits."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.config.data.texts import MaskData, PairData, SpanData, TokenizerConfig
from regard.config.train import Train
from regard.data.datasets.masking import MaskedDataset, Masker
from regard.data.datasets.pairs import PairDataset
from regard.data.datasets.spans import SpanCorruptor, SpanDataset
from regard.data.loading import workers
from regard.data.loading.loader import Loader
from regard.data.loading.sampler import Step
from regard.data.rng import ExampleRng
from regard.data.source import InMemorySource
from regard.data.sources.pairs import open_pairs
from regard.errors import UserError
from regard.processors.text.tokenizers import MASK, sentinel, train_tokenizer

BYTE = train_tokenizer(
    TokenizerConfig(kind="byte"), [], control=(MASK, *(sentinel(number) for number in reversed(range(9))))
)
TEXTS = [" ".join(f"{i * k % 97}" for k in range(1 + i % 13)) for i in range(700)]


def pairs(train: Train | None = None, **data) -> PairDataset:
    examples = InMemorySource("made", [(text, text[::-1]) for text in TEXTS])
    return PairDataset(examples, BYTE, BYTE, PairData(**data), train or Train(tokens=200, accumulate=3))


def lines() -> InMemorySource:
    return InMemorySource("made", [(text,) for text in TEXTS])


def masked(next_sentence: bool = True, **data) -> MaskedDataset:
    settings = MaskData(next_sentence=next_sentence, max_tokens=40, **data)
    return MaskedDataset(lines(), Masker(BYTE, settings), settings, Train(tokens=400), None)


def spans(**data) -> SpanDataset:
    settings = SpanData(max_tokens=30, **data)
    return SpanDataset(lines(), SpanCorruptor(BYTE, settings), settings, Train(tokens=400))


def loader(dataset) -> Loader:
    made = Loader.of(dataset)
    made.sampler.pool_size = 250  # three pools
    return made


def bits(batch) -> list:
    fields = [(name, kind, value) for name in sorted(batch.inputs) for kind, value in vars(batch[name]).items()]
    tensors = [(name, kind, value.tolist()) for name, kind, value in fields if isinstance(value, torch.Tensor)]
    return [batch.number, batch.examples, batch.count, batch.counted, tensors]


def content(steps) -> list:
    return [(step.index, step.tokens, step.examples, [bits(batch) for batch in step.micro_batches]) for step in steps]


# --- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_every_micro_batch_is_on_one_process(count, world):
    parts = tuple(np.arange(3) + 10 * number for number in range(count))
    shards = [Step(0, 15, 99, parts).shard(rank, world) for rank in range(world)]
    assert len({len(shard) for shard in shards}) == 1  # processes wait for each other after every micro-batch
    counted = {each.number: each.examples for shard in shards for each in shard if each.counted}
    assert sorted(counted) == list(range(count))
    assert all(np.array_equal(counted[number], part) for number, part in enumerate(parts))
    for rank, shard in enumerate(shards):
        assert [each.number % world for each in shard] == [rank] * len(shard)  # memories stay with their rows
        for idle in (each for each in shard if not each.counted):
            assert idle.number >= count
            assert np.array_equal(idle.examples, parts[rank if rank < count else 0])


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_the_steps_of_one(world):
    alone = list(loader(pairs()).steps(3))
    shares = [list(loader(pairs()).steps(3, 0, rank, world)) for rank in range(world)]
    for step, *parts in zip(alone, *shares, strict=True):
        assert all((part.index, part.examples) == (step.index, step.examples) for part in parts)
        found = {batch.number: batch for part in parts for batch in part.micro_batches if batch.counted}
        assert [bits(found[number]) for number in sorted(found)] == [bits(batch) for batch in step.micro_batches]
        assert sum(part.count for part in parts) == step.count


def test_a_process_encodes_only_its_share(monkeypatch):
    made = loader(pairs())
    list(made.steps(0))  # costs are known now
    made.sampler.dataset._cache, asked = None, []
    encode = type(BYTE).encode
    monkeypatch.setattr(type(BYTE), "encode", lambda self, rows: asked.extend(rows) or encode(self, rows))
    list(made.steps(1, 0, 0, 3))
    assert 2 * len(TEXTS) / 3 * 0.7 < len(asked) < 2 * len(TEXTS) / 3 * 1.3


# --- augmentation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [masked, spans, lambda: masked(next_sentence=False, whole_words=True)])
def test_augmentation_depends_on_the_example_alone(make):
    dataset, chosen = make(), np.array([5, 30, 31, 7, 699])
    together = dataset.augment(dataset.encoded(chosen), draws(dataset, 4, chosen))
    for place in range(len(chosen)):
        alone = dataset.augment(dataset.encoded(chosen[[place]]), draws(dataset, 4, chosen[[place]]))[0]
        assert all(np.array_equal(a, b) for a, b in zip(alone, together[place], strict=True))
    again = dataset.augment(dataset.encoded(chosen), draws(dataset, 5, chosen))
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(together, again, strict=True))


def draws(dataset, epoch, chosen):
    return ExampleRng.of(dataset.train.seed, epoch, chosen)


def test_span_costs_are_exact():
    dataset = spans()
    indices = np.arange(len(TEXTS))
    batches = dataset.augment(dataset.encoded(indices), draws(dataset, 0, indices))
    assert [list(map(len, item)) for item in batches] == dataset.measure(indices).sizes.tolist()
    assert max(max(map(len, item)) for item in batches) <= 30


# --- workers -----------------------------------------------------------------------------------------------------------


def test_workers_change_no_bit_and_resume_anywhere():
    for make in (pairs, masked):
        whole = content(loader(make()).steps(0)), content(loader(make()).steps(1))
        torch.manual_seed(3)
        made = loader(make(workers=2))
        assert content(made.steps(0)) == whole[0]
        half = len(whole[1]) // 2
        first = made.steps(1)
        seen = [next(first) for _ in range(half)]
        assert content(seen) == whole[1][:half]
        assert content(made.steps(1, seen[-1].index)) == whole[1][half:]  # the same workers, after a break
        assert content(loader(make(workers=1)).steps(1, seen[-1].index)) == whole[1][half:]
        assert torch.equal(torch.rand(1), _first_number(3))  # workers draw nothing from the generator of dropout
        children = {process.pid for process in active_children()}
        assert len(children) >= 2
        made.close()
        del made, first
    assert not active_children()


def _first_number(seed: int) -> torch.Tensor:
    return torch.rand(1, generator=torch.Generator().manual_seed(seed))


def test_large_tensors_are_shared(monkeypatch):
    monkeypatch.setattr(workers, "SHARED_BYTES", 300)
    made = loader(pairs(workers=1))
    assert content(made.steps(0)) == content(loader(pairs()).steps(0))
    made.close()


def test_workers_load_the_next_epoch_ahead(monkeypatch):
    batch = PairDataset.batch

    def slow(self, indices, epoch, *arguments):
        time.sleep(0.3 if epoch else 0)
        return batch(self, indices, epoch, *arguments)

    monkeypatch.setattr(PairDataset, "batch", slow)
    made = loader(pairs(Train(tokens=2000, accumulate=3), workers=2))
    list(made.steps(0))
    time.sleep(1)  # while the model is evaluated
    began = time.monotonic()
    steps = made.steps(1)
    next(steps)
    next(steps)
    assert time.monotonic() - began < 0.3
    del steps
    alone = loader(pairs(Train(tokens=2000, accumulate=3)))
    assert next(made.steps(5)).index == next(alone.steps(5)).index  # another epoch than the next
    made.close()


def test_reports_of_workers():
    one, other = loader(pairs(max_tokens=20)), loader(pairs(max_tokens=20, workers=1))
    assert content(one.steps(0)) == content(other.steps(0))
    assert (
        one.report() == other.report()
        and "examples left out because they have a side of more than 20" in one.report()[0]
    )
    other.close()


def test_an_error_in_a_worker_is_raised_here(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("some words\n" * 600)
    found = open_pairs([[str(tmp_path / "a")], [str(tmp_path / "b")]], PairData())
    (tmp_path / "a").write_text("")
    messages = []
    for number in (0, 2):
        dataset = PairDataset(found, BYTE, BYTE, PairData(workers=number), Train())
        with pytest.raises(UserError, match="was changed while it was being read") as error:
            list(loader(dataset).steps(0))
        messages.append(str(error.value))
    assert messages[0] == messages[1] and not active_children()


def test_other_errors_keep_their_type(monkeypatch):
    made = loader(pairs(workers=1))
    monkeypatch.setattr(PairDataset, "collate", lambda self, items: {}["missing"])
    with pytest.raises(KeyError, match="missing") as error:
        list(made.steps(0))
    assert "in a worker process" in error.value.__notes__[0] and "collate" in error.value.__notes__[0]


def test_a_dead_worker_is_one_sentence(monkeypatch):
    asked = torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(asked, "__defaults__", (0.2,))  # how often torch looks for dead workers; its own is 5 seconds
    made = loader(pairs(workers=2))
    steps = made.steps(0)
    next(steps)
    os.kill(active_children()[0].pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"a worker process of the data ended by signal 9, .*\(data.workers, now 2\)"):
        list(steps)
    assert time.monotonic() - began < 20 and not active_children()
    assert next(made.steps(0)).count > 1 and len(active_children()) == 2  # new ones start
    made.close()
    assert not active_children()
    assert not signal_handling_pids()  # torch has forgotten them


def signal_handling_pids():
    from torch._C import _error_if_any_worker_fails

    return _error_if_any_worker_fails()  # raises if a dead worker is still known


def test_workers_end_with_their_loader():
    steps = loader(pairs(workers=2)).steps(0)
    next(steps)
    assert len(active_children()) == 2
    del steps  # amid an epoch, as a training ends after train.steps
    assert not active_children()


KILLED = """
import sys, time
from multiprocessing import active_children
import numpy as np
sys.path[:0] = {path!r}
import torch.utils.data._utils.worker
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.2  # how often a worker looks for its parent; else 5 seconds
from regard.data.loading.workers import Workers
results = Workers(lambda job: np.zeros(200_000), 1).map(range(9))  # more than a pipe holds
next(results)
print(active_children()[0].pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_process_leaves_no_worker():
    process = subprocess.Popen([sys.executable, "-c", KILLED.format(path=sys.path)], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    for _ in range(150):
        if not is_running(pid):
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker runs on")


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


INTERRUPTED = """
import signal, sys, time
from multiprocessing import active_children
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
sys.path[:0] = {path!r}
from test_loader import loader, pairs
made = loader(pairs(workers=2))
steps = made.steps(0)
next(steps)
try:
    print(*(process.pid for process in active_children()), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print(len(list(steps)), flush=True)  # workers go on, so that the loop ends in order
"""


def test_ctrl_c_leaves_no_worker():
    code = INTERRUPTED.format(path=[str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and int(output) > 10 and not errors
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_are_bounded_ahead():
    made = loader(pairs(Train(tokens=40), workers=2))
    taken = []

    def jobs():
        for number in range(200):
            taken.append(number)
            yield None

    results = made._stream.workers.map(jobs())
    for done in range(50):
        next(results)
        assert len(taken) <= done + 2 + 2 * workers.JOBS_AHEAD
    made.close()
