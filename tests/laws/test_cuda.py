"""Tests that need a GPU; skipped elsewhere. Their CPU counterparts are in the other files."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import small
from helpers.families import case_subject
from helpers.inputs import inputs
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard.config.family import family_of
from regard.config.losses import SmoothedLoss
from regard.data.batch import Batch
from regard.data.datasets.collate import collate_pairs
from regard.decode import Sample, SamplingSettings, SearchSettings, Suppress, run_search
from regard.decode.engine import fixed_shapes
from regard.parts import FeedForward, Layer, Mask, Residual, SoftmaxKernel, Stack, slots
from regard.parts.inputs import Inputs
from regard.processors.image.processor import ImageProcessor
from regard.processors.text.tokenizers import TrainedTokenizer
from regard.tasks.objectives import Seq2SeqObjective
from regard.training.checkpoint import load_model, save_model
from regard.training.step import DeviceCopy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def read_pairs(model, batch):
    """The logits of known targets."""
    return model.logits(model.decode(batch["target"], model.encode(batch["source"])))


def blind(backend: SDPBackend, dtype: torch.dtype, floating: bool) -> float | str:
    """The largest output of this backend for a query without a visible key, or its error message."""
    q, k, v = (torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype) for _ in range(3))
    seen = torch.ones(2, 1, 64, 64, dtype=torch.bool, device="cuda").tril()
    seen[1, :, 5:9] = False
    mask = torch.zeros(seen.shape, device="cuda", dtype=dtype).masked_fill(~seen, -torch.inf) if floating else seen
    try:
        with sdpa_kernel([backend]):
            out = F.scaled_dot_product_attention(q, k, v, mask)
    except RuntimeError as error:
        return str(error).splitlines()[0][:60]
    return out[1, :, 5:9].float().nan_to_num(float("inf")).abs().max().item()


def test_zeros_by_backend(capsys):
    """Prints a table of all backends; asserts the law for those we allow with a mask."""
    for backend in (
        SDPBackend.MATH,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
    ):
        for dtype in (torch.float32, torch.bfloat16):
            for floating in (False, True):
                with capsys.disabled():
                    print(
                        f"\n{backend.name:20s} {str(dtype):15s} {'float' if floating else 'bool'}: {blind(backend, dtype, floating)}",
                        end="",
                    )
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        keys = torch.tensor([[True] * 64, [False] * 64], device="cuda")
        for bias in (None, torch.randn(1, 4, 64, 64, device="cuda", dtype=dtype)):
            out = SoftmaxKernel()(q, k, v, Mask(key_valid=keys), bias)
            assert out[1].abs().max() == 0 and out[0].abs().max() > 0
            assert all(each.isfinite().all() for each in torch.autograd.grad(out.float().sum(), (q, k, v)))


@torch.no_grad()
@pytest.mark.parametrize(
    "slot", [slots.Window(radius=4), slots.Dense(), slots.Favor(features=64)], ids=lambda slot: slot.kind
)
def test_ring_overwritten_in_chunks(slot):
    """Chunks longer than a ring: on a GPU the order of writes to one slot is undefined, so none may happen."""
    layers = [Layer(slot.build(32, 4), FeedForward(32, 64), lambda: Residual(torch.nn.LayerNorm(32))) for _ in range(2)]
    stack = Stack(layers, causal=True).cuda().eval()
    x = torch.randn(3, 40, 32, device="cuda")
    cache, parts = stack.cache(3), []
    for chunk in x.split([9, 1, 1, 13, 1, 9, 6], 1):
        parts.append(stack(chunk, cache.next_mask(chunk), cache=cache))
    assert (torch.cat(parts, 1) - stack(x, Mask())).abs().max() < 1e-4


SHAPES = {"transformer": {"inner": 128, "biased": True}, "rnn": {}, "cnn": {}}
FAMILIES = pytest.mark.parametrize("family", SHAPES)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Disable TF32, which cuDNN's fused LSTMs use by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def a_model(family: str = "transformer") -> torch.nn.Module:
    torch.manual_seed(0)
    module = family_of(family)
    model = module.Model(module.Config(vocab=97, width=64, heads=4, layers=2, **SHAPES[family])).eval()
    for each in model.parameters():
        each.data = each.data * 2
    if model.head.bias is None:
        model.head = torch.nn.Linear(64, 97)
        model.head.weight = model.target.weight
    model.head.bias.data[2] += 2.0
    return model


@FAMILIES
def test_search_equals_cpu(family):
    model, lengths = a_model(family), torch.randint(1, 15, (20,))
    valid = torch.arange(15)[None] < lengths[:, None]
    source = torch.randint(3, 97, (20, 15))
    found = []
    for device in ("cpu", "cuda"):
        model.to(device)
        with torch.no_grad():
            cache = model.start(inputs(source.to(device), valid.to(device)), len(source))
        prompt, limits = torch.ones(20, 1, dtype=torch.long, device=device), (2 * lengths + 4).to(device)
        found.append(
            [
                [each.tokens for each in best]
                for best in run_search(model, cache, prompt, limits, SearchSettings(2, 4, nbest=2))
            ]
        )
    assert found[0] == found[1]


WAYS = {
    "greedy": SearchSettings(2, 1, early_stopping="first"),
    "exact": SearchSettings(2, 4, nbest=2),
    "heuristic": SearchSettings(2, 5, 0.7, 2, "heuristic", (Suppress([0, 1]),)),
    "first": SearchSettings(2, 3, early_stopping="first"),
    "samples": SearchSettings(2, nbest=3),
}


@FAMILIES
@pytest.mark.parametrize("way", WAYS)
def test_graphed_search_equals_eager(way, family):
    """Whole steps are replayed over a fixed cache; rows end at different times, and few are left."""
    model, rows = a_model(family), 30
    source, lengths = torch.randint(3, 97, (rows, 9)), torch.cat([torch.full((28,), 6), torch.tensor([40, 45])])
    found = []
    for device, capacity in (("cpu", None), ("cuda", 64)):
        model.to(device)
        settings = WAYS[way]
        if way == "samples":
            keys = torch.arange(3 * rows, device=device).view(rows, 3)
            settings = replace(settings, sampling=SamplingSettings.of(keys, [Sample(n=3, top_k=20)] * rows))
        with torch.no_grad():
            cache = model.start(inputs(source.to(device)), len(source), capacity)
        prompt = torch.ones(rows, 1, dtype=torch.long, device=device)
        best = run_search(model, cache, prompt, lengths.to(device), settings)
        found.append([[(each.tokens, each.ended) for each in some] for some in best])
    assert found[0] == found[1] and len({len(tokens) for some in found[0] for tokens, _ in some}) >= 3


@pytest.mark.parametrize("weight", [0.4, 1.0])
@pytest.mark.parametrize("way", ["greedy", "exact", "heuristic"])
def test_graphed_joint_search_equals_cpu(way, weight, monkeypatch):
    """Decoder and CTC in one captured step; sources of different lengths; a second search with the same shapes."""
    from helpers.generation import END, START, build

    from regard.decode.engine import cuda_graph

    models, settings = (build("joint"), build("joint").cuda()), replace(WAYS[way], filters=(Suppress([0, START]),))
    assert settings.end == END
    made, kept = [], cuda_graph.GraphedStep.capture
    monkeypatch.setattr(cuda_graph.GraphedStep, "capture", lambda self, *words: made.append(1) or kept(self, *words))
    for seed in range(2):
        draw = torch.Generator().manual_seed(seed)
        source, lengths = torch.randint(3, 50, (12, 40), generator=draw), torch.arange(12) * 3 + 7
        found = []
        for joint, device, capacity in zip(models, ("cpu", "cuda"), (None, 64), strict=True):
            joint.weight, valid = weight, torch.arange(40) < lengths[:, None]
            with torch.no_grad():
                cache = joint.start(inputs(source.to(device), valid.to(device)), 12, capacity)
            prompt = torch.full((12, 1), START, device=device)
            best = run_search(joint, cache, prompt, torch.full((12,), 30, device=device), settings)
            found.append([[(each.tokens, each.ended) for each in some] for some in best])
        assert found[0] == found[1] and len({len(tokens) for some in found[0] for tokens, _ in some}) >= 3
    assert made


@pytest.mark.parametrize("way", ["greedy", "exact", "samples"])
def test_next_search_reuses_the_graph(way, monkeypatch):
    """The second search of the same shapes captures no graph, also after another prompt, and finds its own texts."""
    from regard.decode.engine import cuda_graph

    model, twin, made = a_model().cuda(), a_model(), []
    how, kept = replace(WAYS[way], filters=(Suppress([2]),)), cuda_graph.GraphedStep.capture

    def drawn(place):
        draws = SamplingSettings.of(torch.arange(36, device=place).view(12, 3), [Sample(n=3, top_k=20)] * 12)
        return replace(how, sampling=draws) if way == "samples" else how

    monkeypatch.setattr(cuda_graph.GraphedStep, "capture", lambda self, *words: made.append(1) or kept(self, *words))
    for seed in range(3):
        source = torch.randint(3, 97, (12, 9), generator=torch.Generator().manual_seed(seed))
        prompt, limits = torch.ones(12, 1, dtype=torch.long), torch.full((12,), 20)
        with torch.no_grad():
            best, wanted = (
                run_search(
                    each,
                    each.start(inputs(source.to(place)), len(source), room),
                    prompt.to(place),
                    limits.to(place),
                    drawn(place),
                )
                for each, place, room in ((model, "cuda", 64), (twin, "cpu", None))
            )
        assert [[each.tokens for each in some] for some in best] == [[each.tokens for each in some] for some in wanted]
    assert len(made) == 1


def test_compiled_packed_training_equals_plain():
    """FlexAttention with segments, inside a compiled loss, gives the loss and the gradients of plain attention."""
    rng = torch.Generator().manual_seed(3)
    texts = [
        torch.randint(4, 97, (int(n),), generator=rng).tolist() for n in torch.randint(2, 40, (48,), generator=rng)
    ]
    batch = collate_pairs(texts[:24], texts[24:], TrainedTokenizer, TrainedTokenizer, 128).to("cuda")
    model, found = a_model().cuda(), []
    objective = Seq2SeqObjective(model, SmoothedLoss())
    for forward in (objective.forward, torch.compile(objective.forward, dynamic=False)):
        model.zero_grad()
        loss = forward(batch).sum
        loss.backward()
        found.append((loss.item(), [each.grad.clone() for each in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    largest = max(float(each.norm()) for each in found[0][1])
    for a, b in zip(found[0][1], found[1][1], strict=True):
        assert (a - b).norm() <= 1e-3 * a.norm() + 1e-4 * largest  # a key's bias has no gradient but rounding


@pytest.mark.parametrize("family", ["rnn", "cnn"])
@pytest.mark.parametrize("width", [0, 64], ids=["padded", "packed"])
def test_recurrent_training_equals_cpu(family, width, tmp_path):
    """Fused LSTMs over padded and packed rows: equal gradients in float32, close ones in bfloat16; it is saved."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 20, (24,), generator=draw).tolist()
    texts = [torch.randint(4, 97, (length,), generator=draw).tolist() for length in lengths]
    batch, model, found = (
        collate_pairs(texts[:12], texts[12:], TrainedTokenizer, TrainedTokenizer, width),
        a_model(family),
        [],
    )
    for part in model.train().modules():  # cuDNN has gradients only while learning
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for device, half in (("cpu", False), ("cuda", False), ("cuda", True)):
        model.to(device).zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = read_pairs(model, batch.to(device)).float().square().mean()
        loss.backward()
        found.append(torch.cat([each.grad.flatten().cpu() for each in model.parameters()]))
    assert (found[0] - found[1]).norm() < 1e-3 * found[0].norm()
    assert (found[0] - found[2]).norm() < 0.5 * found[0].norm()  # the weights are large, and so is the rounding
    save_model(model, tmp_path / "model.safetensors", 1)
    assert load_model(a_model(family), tmp_path / "model.safetensors") == 1


@torch.no_grad()
@FAMILIES
@pytest.mark.parametrize("beams", [0, 4])
def test_captured_step_equals_eager(beams, family):
    """One decode step over a preallocated cache, captured in a CUDA graph and replayed; for beams too."""
    model = a_model(family).cuda()
    source, shape = torch.randint(3, 97, (8, 11), device="cuda"), (8, beams or 1)
    caches = [model.start(inputs(source), len(source), 48) for _ in range(2)]
    for cache in caches:
        model.step(torch.ones(8, 1, dtype=torch.long, device="cuda"), cache)
        if beams:
            cache.branch(beams, 20)
    fed = torch.randint(3, 97, shape, device="cuda")
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())  # the caches may not be filled yet
    with torch.cuda.stream(aside):  # warm-up, on both caches so that they stay equal
        for _ in range(3):
            for cache in caches:
                model.step(fed, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model.step(fed, caches[0])
    for i in range(8):
        fed.copy_(torch.randint(3, 97, shape, device="cuda"))
        if beams:
            origin = torch.randint(beams, shape, device="cuda")
            for cache in caches:
                cache.reorder(origin)
        graph.replay()
        wanted = model.step(fed, caches[1])
        assert (logits - wanted).abs().max() < 1e-4, f"step {i}"


@torch.no_grad()
def test_masked_step_compiles_to_one_graph():
    model = a_model().cuda()
    step = torch.compile(model.step, fullgraph=True)
    source, valid = (
        torch.randint(3, 97, (3, 9), device="cuda"),
        torch.arange(9, device="cuda")[None] < torch.tensor([[9], [4], [6]], device="cuda"),
    )
    caches = [model.start(inputs(source, valid), len(source), 32) for _ in range(2)]
    torch._dynamo.utils.counters.clear()
    for cache in caches:
        model.step(torch.ones(3, 1, dtype=torch.long, device="cuda"), cache)
    for _ in range(6):
        tokens = torch.randint(3, 97, (3, 1), device="cuda")
        assert (step(tokens, caches[0]) - model.step(tokens, caches[1])).abs().max() < 1e-4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


SPARSE = {
    "window": slots.Window(radius=100),
    "globals": slots.Window(radius=20, globals=2),
    "dilated": slots.Window(radius=9, dilation=3),
    "blocks": slots.Blocks(size=16, random=2),
    "undrawn": slots.Blocks(size=64, random=1, drawn=False),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("padded", [False, True])
def test_compiled_windows_and_blocks_equal_plain(name, padded):
    """FlexAttention in compiled code, blocks in plain torch, and the CPU: the same numbers and gradients."""
    torch.manual_seed(1)
    layers = [
        Layer(
            slots.for_layer(SPARSE[name], i).build(64, 4),
            FeedForward(64, 128),
            lambda: Residual(torch.nn.LayerNorm(64)),
        )
        for i in range(2)
    ]
    stack, x = Stack(layers).eval(), torch.randn(3, 777, 64)
    valid = torch.arange(777)[None] < torch.tensor([[777], [500], [0]])

    def read(stack, x, valid):
        return stack(x, Mask(key_valid=valid))

    def found(stack, x, valid, read=read):
        out = read(stack, x, valid if padded else None)
        kept = out[valid] if padded else out
        kept.square().sum().backward()
        grads = {path: each.grad.cpu() for path, each in stack.named_parameters() if each.grad is not None}
        stack.zero_grad()
        return kept.detach().cpu(), grads

    wanted, grads = found(stack, x, valid)
    stack, x, valid = stack.cuda(), x.cuda(), valid.cuda()
    for way in (read, torch.compile(read, dynamic=False)):
        out, theirs = found(stack, x, valid, way)
        assert (out - wanted).abs().max() < 2e-3
        for path, each in grads.items():
            assert (theirs[path] - each).abs().max() < 5e-3 * max(each.abs().max(), 1), path


def test_memory_is_linear_in_text_length():
    """Twice the text needs about twice the peak memory."""
    for slot in (slots.Window(radius=64), slots.Blocks(size=32)):
        attention, peaks = slot.build(64, 2).cuda(), []
        read = torch.compile(lambda x, attention=attention: attention(x, x, x, Mask()), dynamic=False)
        for tokens in (4096, 8192):
            x = torch.randn(1, tokens, 64, device="cuda")
            with torch.no_grad():
                read(x)
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
                read(x)
            peaks.append(torch.cuda.max_memory_allocated() - held)
        assert peaks[1] < 2.6 * peaks[0]


@pytest.mark.parametrize(
    "name", ["transformer", "gpt", "window", "favor", "gru", "cnn", "ensemble", "joint", "prefix gpt"]
)
def test_joining_requests_equal_those_alone(name, monkeypatch):
    """200 requests of mixed strategies join one running batch, whose step is a CUDA graph; fp32, as each alone."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    from helpers.generation import SOURCED, alone, build, generator, random_request, worst_difference

    model, dice = build(name).cuda(), random.Random(0)
    requests = [random_request(dice, name in SOURCED, number) for number in range(200)]
    engine, handles, waiting = generator(model, rows=32, capacity=48), [], list(requests)
    while waiting or not all(handle.done for handle in handles):
        for _ in range(min(len(waiting), dice.choice([0, 1, 1, 3]))):
            handles.append(engine.submit(waiting.pop(0)))
        engine.tick()
    worst = [worst_difference(each.result(), alone(model, each.request)) for each in handles]
    print(name, "largest difference of scores", max(worst))
    assert max(worst) < 1e-5, [handles[i].request for i, each in enumerate(worst) if each >= 1e-5]


def test_an_open_batch_replays_its_step():
    """After two steps of the same rows the step of the model is replayed, also when rows join and leave."""
    from helpers.generation import START, build, generator

    from regard.decode import SearchRequest
    from regard.decode.engine import cuda_graph

    model = build("gpt").cuda()
    model.head.bias.data[2] = -10.0
    engine = generator(model, rows=4, capacity=48)
    handles = [engine.submit(SearchRequest((START, i), max_tokens=20 + i)) for i in (5, 6, 7, 8)]
    for _ in range(4):
        engine.tick()
    step = engine._batch.step
    assert isinstance(step, cuda_graph.BatchStep) and step.graph is not None
    graph = step.graph
    handles[1].cancel()
    handles.append(engine.submit(SearchRequest((START, 9), max_tokens=12)))
    engine.drain()
    assert engine._batch.step is step and step.graph is graph
    assert all(handle.done for handle in handles)


def test_threads_share_a_model():
    """8 threads search on one model at the same time, some while others capture a graph; each as alone."""
    from concurrent.futures import ThreadPoolExecutor

    from helpers.generation import alone, build, random_request, worst_difference

    model, dice = build("transformer").cuda(), random.Random(1)
    requests = [random_request(dice, True, number) for number in range(64)]
    wanted = [alone(model, request) for request in requests]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda request: alone(model, request), requests))
    assert max(map(worst_difference, found, wanted)) < 1e-5


@pytest.mark.parametrize(
    "case", [("vit", "paper"), ("vit", "mean"), ("vit", "stem"), ("detr", "paper"), ("detr", "anchors")], ids=" ".join
)
def test_images_equal_cpu(case):
    """Outputs and gradients of models that read images of unequal sizes; compiled, too, and close in bfloat16."""
    subject, found = case_subject(case), []
    image = subject.probe.batch(subject.sample(0, 2, 1))

    def loss(given):
        return torch.stack(subject.read(given)).float().square().mean()

    for device, read, half in (
        ("cpu", loss, False),
        ("cuda", loss, False),
        ("cuda", torch.compile(loss, dynamic=False), False),
        ("cuda", loss, True),
    ):
        subject.module.to(device).zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            value = read(image.to(device))
        value.backward()
        grads = [each.grad.flatten().cpu() for each in subject.module.parameters() if each.grad is not None]
        found.append((value.item(), torch.cat(grads)))
    (wanted, slopes), *others = found
    for (value, own), bound in zip(others, (1e-3, 1e-3, 0.5), strict=True):
        assert value == pytest.approx(wanted, rel=bound) and (own - slopes).norm() < bound * slopes.norm()


def test_bytes_are_normalized_to_the_bits_of_a_cpu():
    """Batches above and below the size from which they are pinned, one after the other; every byte occurs."""
    image, device = (
        ImageProcessor(256, 256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        torch.device("cuda"),
    )
    copy, rng, found = DeviceCopy(device), np.random.default_rng(1), []
    for rows in (16, 1, 16, 16, 1, 16):
        values = image.collate([rng.integers(0, 256, (3, 256, 256), np.uint8) for _ in range(rows)])
        batch = Batch({"image": values, "label": Inputs("labels", torch.arange(rows))}, rows)
        found.append((copy(batch), batch.to("cpu")))
    for moved, wanted in found:
        assert moved["image"].values.is_cuda and moved["image"].values.cpu().equal(wanted["image"].values)
        assert moved["label"].values.cpu().equal(wanted["label"].values)


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_whisper_equals_cpu(kind, tmp_path, monkeypatch):
    """Windows with timestamps, in captured steps."""
    from helpers.whisper import write_multilingual

    import regard
    from regard.decode.engine import cuda_graph

    write_multilingual(tmp_path)
    made, kept = [], cuda_graph.GraphedStep.capture
    monkeypatch.setattr(cuda_graph.GraphedStep, "capture", lambda self, *words: made.append(1) or kept(self, *words))
    rng, found = np.random.default_rng(1), []
    sounds = [rng.normal(0, 0.1, size).astype(np.float32) for size in (32000, 90000, 60000)]
    for device in ("cpu", "cuda"):
        model = regard.load(tmp_path, {"device": device})
        results = model.predict_requests(model.requests(sounds, kind=kind, temperatures=[0.0], details=True))
        found.append([[each.nbest[0].tokens for each in result.segments] for result in results])
    assert found[0] == found[1] and made and sum(map(len, found[0])) > 4


@pytest.mark.parametrize(
    ("family", "kind"),
    [("nat", "argmax"), ("nat", "average"), ("nat", "npd"), ("nat-ctc", "argmax"), ("cmlm", "mask-predict")],
)
def test_graphed_parallel_decoding_equals_eager(family, kind, tmp_path):
    """Texts of several lengths, each three times: eager, captured, replayed; and those of a CPU."""
    device = {"device": "cuda"}
    teacher = small.train_translator(tmp_path / "teacher", 3, pairs=60)
    plain = kind if family == "cmlm" else "argmax"
    run = small.train_translator(tmp_path / "run", 30, pairs=60, model__family=family, decode__kind=plain)
    own = {"kind": kind} | ({"samples": 5, "teacher": str(teacher)} if kind == "npd" else {})
    texts = ["the cat sleeps.", "a dog", "one two three four five six seven"]
    wanted = [regard.load(run, {"device": "cpu"}).predict(text, **own) for text in texts]
    predictor = regard.load(run, device)
    for _ in range(3):
        assert [predictor.predict(text, **own) for text in texts] == wanted
    captured = [call for call in fixed_shapes.GRAPHS[predictor.model].values() if call is not None]
    assert len(captured) >= (1 if family == "nat-ctc" else 2)
    assert predictor.predict(texts, **own) == wanted
