"""Measurements of `look` on small runs: head reports, effects, attribution, deletion, lens; pruned runs."""

import json
import threading
from pathlib import Path

import pytest
import torch
from helpers.whisper import write_folder

import regard
from regard.adapt.heads import head_sites
from regard.adapt.mute import shared_copy
from regard.cli import main
from regard.data.sources.dependencies import ROOT, read_trees
from regard.errors import UserError
from regard.look import record_attention
from regard.look.norms import value_norms, weigh_by_norm
from regard.look.rollout import rollout
from regard.look.word_links import DIRECTIONS, PATTERNS
from regard.measure.attribution import EmbeddingTap, copy_for_hooks, integrated_gradients, readout, saliency, score_at
from regard.measure.deletion import deletion_report, text_falls
from regard.measure.head_effect import measure_effect
from regard.measure.head_report import report_heads, word_links
from regard.measure.lens import layer_logits, lens
from regard.measure.text_reader import text_reader
from regard.parts import Inputs
from regard.training import curves, save_model

TREES = Path(__file__).parents[2] / "docs" / "sentences.conllu"
SMALL = {
    "model.size": "tiny", "model.width": 32, "model.heads": 4, "model.layers": 2, "model.inner": 32,
    "tokenizer.vocab": 280, "train.tokens": 400, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
TEXTS = [(" ".join(tree.words), "long" if len(tree.words) > 8 else "short") for tree in read_trees(TREES)]
TAGGED = [(list(tree.words), list(tree.relations)) for tree in read_trees(TREES)]
RNN = {"model__family": "rnn", "model__heads": None, "model__inner": None}
DATA = {
    "masked": [{"text": text} for text, _ in TEXTS],
    "classify": TEXTS,
    "tag": TAGGED,
    "language": [{"text": text} for text, _ in TEXTS],
    "translate": [(text, text.upper()) for text, _ in TEXTS],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a small run of a task; weights are enlarged, so that attention is not uniform."""
    folder = tmp_path_factory.mktemp("runs")
    patch = pytest.MonkeyPatch()
    patch.setattr(curves, "draw", lambda folder: None)

    def make(task: str, **settings) -> Path:
        out = folder / "-".join([task, *map(str, settings.values())])
        if not out.exists():
            own = SMALL | {key.replace("__", "."): value for key, value in settings.items()}
            own = {key: value for key, value in own.items() if value is not None}
            with torch.enable_grad():
                regard.train(task, {"train.steps": 1, **own}, data={"train": DATA[task]}, out=out)
            model = regard.load(out).model
            torch.manual_seed(2)
            for each in model.parameters():
                each.data += 0.15 * torch.randn_like(each)
            save_model(model, out / "model.safetensors", 1)
        return out

    yield make
    patch.undo()


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


# --- dependency trees ------------------------------------------------------------------------------------------------


def test_trees_are_read():
    trees = read_trees(TREES)
    assert len(trees) == 12 and trees[0].words[2:4] == ("dog", "chased")
    assert trees[0].heads == (2, 2, 3, ROOT, 5, 3, 3) and trees[0].relations[2] == "nsubj"
    assert trees[10].punctuation == [False, False, False, True, False, True]


@pytest.mark.parametrize(
    "line, message",
    [
        ("1\tA\ta\tX\t_\t_\t_\t_\t_\t_", "the head is '_' and the relation '_', so there is no tree"),
        ("1\tA\ta\tX\t_\t_\t7\tdet\t_\t_", "have ids 1, 2, 3…, and heads among them"),
        ("A\tX", "2 columns; a line of CoNLL-U has 10"),
    ],
)
def test_files_without_trees_are_refused(tmp_path, line, message):
    path = tmp_path / "a.conllu"
    path.write_text(line + "\n\n")
    with pytest.raises(UserError, match=message):
        read_trees(path)


# --- head report -----------------------------------------------------------------------------------------------------


def counted_by_hand(predictor, causal: bool) -> tuple[dict[str, list[float]], dict[tuple[str, str, str], float]]:
    """Shares of patterns by head, and accuracies by head, direction and relation: one sentence and word at a time."""
    reader, sites = text_reader(predictor, "--heads"), head_sites(predictor.module)
    patterns = {str(head): [0, 0, 0, 0] for site in sites for head in site.heads}
    hits, totals, words = {}, {}, 0
    for tree in read_trees(TREES):
        (row,) = reader.word_rows([tree.words])
        with record_attention(predictor.module) as maps, torch.no_grad():
            reader.read(Inputs("tokens", torch.tensor([row.tokens])))
        words += len(tree.words)
        for site in sites:
            for head, weights in zip(site.heads, maps[site.path][0].numpy(), strict=True):
                for i, (begin, end) in enumerate(row.spans):
                    mean = weights[begin:end].mean(0)
                    sums = [float(mean[a:b].sum()) for a, b in row.spans]
                    sums += [float(mean[: row.spans[0][0]].sum()), float(mean[row.spans[-1][1] :].sum())]
                    best = max(range(len(sums)), key=sums.__getitem__)
                    separator = best >= len(tree.words) or tree.punctuation[best]
                    for place, found in enumerate((best == i - 1, best == i + 1, best == i, separator)):
                        patterns[str(head)][place] += found
                    others = [j for j in range(len(tree.words)) if j != i and (j < i or not causal)]
                    best = max(others, key=sums.__getitem__, default=None)
                    wanted: dict[tuple[str, str], list[int]] = {}
                    if tree.heads[i] != ROOT:
                        wanted[DIRECTIONS[0], tree.relations[i]] = [tree.heads[i]]
                    for j, parent in enumerate(tree.heads):
                        if parent == i:
                            wanted.setdefault((DIRECTIONS[1], tree.relations[j]), []).append(j)
                    for key, targets in wanted.items():
                        if targets := [j for j in targets if j < i or not causal]:
                            totals[str(head), *key] = totals.get((str(head), *key), 0) + 1
                            hits[str(head), *key] = hits.get((str(head), *key), 0) + (best in targets)
    shares = {head: [each / words for each in counts] for head, counts in patterns.items()}
    return shares, {key: hits[key] / total for key, total in totals.items()}


@pytest.mark.parametrize("task, causal", [("tag", False), ("language", True)])
def test_a_report_counts_as_by_hand(runs, task, causal):
    settings = {} if task == "tag" else {"model__family": "gpt"}
    predictor = regard.load(runs(task, **settings))
    report, (patterns, accuracies) = report_heads(predictor, TREES), counted_by_hand(predictor, causal)
    assert report.words == sum(len(words) for words, _ in TAGGED) and report.causal is causal
    for entry in report.heads:
        assert [entry.patterns[name] for name in PATTERNS] == pytest.approx(patterns[entry.head])
        for way in DIRECTIONS:
            for relation, share in entry.relations[way].items():
                if relation != "(any)":
                    assert share == pytest.approx(accuracies[entry.head, way, relation])
    det = next(entry for entry in report.relations if entry.relation == "det")
    if not causal:  # 11 of the 14 determiners stand right before their noun
        assert (det.direction, det.links, det.offset, det.offset_accuracy) == ("to head", 14, 1, 11 / 14)
        assert det.accuracy == max(entry.relations["to head"]["det"] for entry in report.heads)


def test_a_sentence_of_one_word_has_no_links(runs, tmp_path):
    (tmp_path / "one.conllu").write_text("1\tStop\tstop\tVERB\t_\t_\t0\troot\t_\t_\n\n")
    report = report_heads(regard.load(runs("tag")), tmp_path / "one.conllu")
    assert report.words == 1 and all(0 <= sum(entry.patterns.values()) <= 1 for entry in report.heads)


def test_heads_are_chosen_on_one_file_and_measured_on_another(runs, tmp_path, capsys):
    blocks = TREES.read_text().split("\n\n")
    for name, part in (("dev", blocks[:6]), ("test", blocks[6:])):
        (tmp_path / f"{name}.conllu").write_text("\n\n".join(part).strip() + "\n\n")
    folder = runs("masked", model__family="longformer")
    predictor = regard.load(folder)
    alone = [report_heads(predictor, tmp_path / f"{name}.conllu") for name in ("dev", "test")]
    both = report_heads(predictor, tmp_path / "dev.conllu", tmp_path / "test.conllu")
    for entry in both.relations:
        chosen = next(e for e in alone[0].relations if (e.relation, e.direction) == (entry.relation, entry.direction))
        assert (entry.head, entry.offset, entry.chosen) == (chosen.head, chosen.offset, chosen.accuracy)
        own = next(each for each in alone[1].heads if each.head == entry.head)
        assert entry.accuracy == own.relations[entry.direction][entry.relation]
    out = tmp_path / "report.json"
    assert (
        run("look", folder, "--heads", tmp_path / "dev.conllu", "--data", tmp_path / "test.conllu", "--out", out) == 0
    )
    assert json.loads(out.read_text()) == json.loads(json.dumps(both.record()))
    printed = capsys.readouterr().out
    assert f"heads and offsets chosen on {tmp_path / 'dev.conllu'}" in printed and "nsubj" in printed
    assert run("look", folder, "--heads", TREES, "--out", tmp_path / "p.png") == 0
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_links_of_one_word(runs):
    predictor = regard.load(runs("tag"))
    text = "The dog saw it, and it barked."
    found = word_links(predictor, text, "it:2")
    words, row = text_reader(predictor, "--word").text_row(text)
    assert words == ["The", "dog", "saw", "it", ",", "and", "it", "barked", "."]
    with record_attention(predictor.module) as maps, torch.no_grad():
        predictor.model.encode(Inputs("tokens", torch.tensor([row.tokens])))
    site = head_sites(predictor.module)[1]
    begin, end = row.spans[6]
    mean = maps[site.path][0, 2, begin:end].mean(0)
    sums = {name: float(mean[a:b].sum()) for name, (a, b) in zip(range(9), row.spans, strict=True)}
    best = max(sums, key=sums.__getitem__)
    strongest = [each for each in found["2.3"] if each[0] not in "□■"][0]
    assert strongest == (words[best], pytest.approx(sums[best], abs=1e-5))
    assert word_links(predictor, text, "it") != found
    with pytest.raises(UserError, match="--word is 'cat', which the text does not have"):
        word_links(predictor, text, "cat")


# --- muting and effects ----------------------------------------------------------------------------------------------


def test_muting_belongs_to_its_predictor_and_thread(runs):
    predictor = regard.load(runs("translate"))
    source = TEXTS[0][0]
    before, muted = predictor.score(source, "A CAT."), predictor.muted("cross.1.2,encoder.2.*,decoder.1.1")
    wanted = muted.score(source, "A CAT.")
    assert abs(before - wanted) > 1e-3
    assert regard.load(runs("translate"), mute="cross.1.2,encoder.2.*,decoder.1.1").score(source, "A CAT.") == wanted
    found: dict[str, set[float]] = {"muted": set(), "plain": set()}
    threads = [
        threading.Thread(target=lambda n=name, p=each: [found[n].add(p.score(source, "A CAT.")) for _ in range(8)])
        for name, each in (("muted", muted), ("plain", predictor))
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == {"muted": {wanted}, "plain": {before}}
    greedy = muted.predict(source, kind="greedy", max_tokens=4)  # with a cache
    assert greedy == muted.predict([source, TEXTS[1][0]], kind="greedy", max_tokens=4)[0]


def test_a_layer_without_heads_is_reported(runs, capsys):
    folder = runs("classify")
    with pytest.warns(UserWarning, match=r"1\.1, 1\.2, 1\.3, 1\.4 are all heads of their layers"):
        regard.load(folder).muted("1.*")
    assert run("eval", folder, folder, "--mute", "1.1") == 2
    assert "--mute works with one run" in capsys.readouterr().err
    assert run("predict", folder, TREES, "--mute", "1.9") == 2
    assert "layer 1 has no head 9; expected 1 to 4" in capsys.readouterr().err
    with pytest.raises(UserError, match="--mute works with one model, and an ensemble has several"):
        regard.load(f"{runs('translate')},{runs('translate')}", mute="cross.1.1")


def test_the_effect_of_a_head_is_that_of_muting_it(runs, tmp_path, capsys):
    predictor = regard.load(runs("tag"))
    report = measure_effect(predictor, TAGGED)
    assert report.metric == "accuracy" and report.score == predictor.evaluate(TAGGED)["accuracy"]
    assert len(report.heads) == 8
    for entry in report.heads[::3]:
        assert entry.zero == report.score - predictor.muted(entry.head).evaluate(TAGGED)["accuracy"]
    report.draw(tmp_path / "e.svg")
    assert "<svg" in (tmp_path / "e.svg").read_text()
    assert (
        run("look", runs("tag"), "--effect", "--data", TREES, "data.column=deprel", "--out", tmp_path / "e.json") == 0
    )
    saved = json.loads((tmp_path / "e.json").read_text())
    assert [each["zero"] for each in saved["heads"]] == pytest.approx([each.zero for each in report.heads])
    assert (
        report.without_heads == predictor.muted("1.*,2.*").evaluate(TAGGED)["accuracy"] and report.ngrams_alone is None
    )
    assert f"with all heads, {report.without_heads:.4f} with all heads muted" in capsys.readouterr().out


# --- norms and rollout -----------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("task, settings", [("tag", {}), ("masked", {"model__family": "longformer"})])
def test_norm_weighted_attention_is_that_of_the_paper(runs, task, settings):
    predictor = regard.load(runs(task, **settings))
    model, tokens = predictor.module, torch.tensor([[1, 7, 8, 9, 2]])
    with record_attention(model) as maps:
        wanted = model(Inputs("tokens", tokens))
    seen = {}
    weighed = weigh_by_norm(shared_copy(model), relative=False)
    site = head_sites(model)[1]
    path, attention = next(iter(site.parts.items()))
    handle = attention.value.register_forward_hook(lambda module, inputs, out: seen.setdefault("x", inputs[0]))
    with record_attention(weighed) as normed:
        assert torch.equal(weighed(Inputs("tokens", tokens)), wanted)
    model(Inputs("tokens", tokens))
    handle.remove()
    values = attention.split_heads(attention.value(seen["x"]))[0]  # (heads, keys, head_width)
    width = attention.head_width
    for head in range(attention.heads):
        transformed = values[head] @ site.out.weight[:, head * width : (head + 1) * width].T  # f(x), (keys, width)
        by_hand = (maps[path][0, head][:, :, None] * transformed[None]).norm(dim=-1)
        assert (normed[path][0, head] - by_hand).abs().max() < 1e-5
    assert (value_norms(values[None], site.out.weight)[0, 0] - transformed.new_tensor(0)).min() >= 0
    view = predictor.norm_weighted().look("A dog barks.")
    assert torch.allclose(torch.tensor(view.weights(2, 1)).sum(1), torch.ones(len(view.tokens)), atol=1e-4)
    assert not torch.allclose(
        torch.tensor(view.weights(2, 1)), torch.tensor(predictor.look("A dog barks.").weights(2, 1))
    )


def test_rollout_is_the_product_of_the_layers():
    first = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])  # the mean is 0.5 everywhere
    second = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    a, b = torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    found = rollout([first, second])
    assert torch.allclose(found[0], a) and torch.allclose(found[1], b @ a)


def test_norms_need_weights(runs):
    with pytest.raises(UserError, match="needs output projections in fp32 or bf16; use precision=fp32"):
        regard.load(runs("classify"), precision="int8").norm_weighted()


# --- attribution -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, text, target, settings",
    [
        ("classify", "The dog sees a cat.", "long", {}),
        ("masked", "The <mask> sees a cat.", None, {}),
        ("language", "The dog", " sees", {"model__family": "gpt"}),
        ("translate", "The dog.", "THE DOG.", {}),
        ("classify", "The dog sees a cat.", None, RNN),
    ],
)
def test_integrated_gradients_are_complete_and_gradients_are_those_of_torch(runs, task, text, target, settings):
    predictor = regard.load(runs(task, **settings))
    own = copy_for_hooks(predictor, "--saliency")
    tap, reading = EmbeddingTap(own.module), readout(own, text, target)
    total = float(integrated_gradients(tap, reading, 256).sum())
    assert total == pytest.approx(score_at(tap, reading, 1.0) - score_at(tap, reading, 0.0), rel=0.02, abs=0.02)
    found = saliency(predictor, text, target)
    assert len(found.tokens) == len(found.gradient_input) == len(found.integrated_gradients)
    inputs = reading.inputs([reading.tokens])
    gradients, embeddings, _, of_ngrams = tap.gradients(reading.score, inputs, None)
    up, down = (float(tap.gradients(reading.score, inputs, torch.tensor([s])).scores) for s in (1.002, 0.998))
    slope = float((gradients * (embeddings - tap.mean)).sum())  # along the way of integrated gradients, at its end
    assert (of_ngrams is not None) == (tap.ngrams is not None) == (task == "classify")
    if of_ngrams is not None:
        slope += float(of_ngrams[0] @ (tap.ngrams(inputs)[0] - tap.ngrams.constant()).detach())
        assert slope - float((gradients * (embeddings - tap.mean)).sum()) == pytest.approx(
            sum(found.ngram_gradient_input), abs=1e-5
        )
    assert slope == pytest.approx((up - down) / 0.004, rel=0.05, abs=0.02)
    by_ngrams = found.ngram_gradient_input or [0.0] * len(found.tokens)
    by_encoder = [total - part for total, part in zip(found.gradient_input, by_ngrams, strict=True)]
    assert by_encoder == pytest.approx((gradients * embeddings).sum(-1)[0].tolist(), abs=1e-5)
    assert float(reading.score(inputs).detach()) == pytest.approx(found.logprob, abs=1e-5)


def test_attribution_of_what_cannot_be_attributed(runs, capsys):
    for folder, text, message in (
        (runs("tag"), "A dog", "--saliency explains labels and tokens, and task tag has neither"),
        (runs("masked"), "A dog", "has no <mask>; mark the word to predict"),
        (runs("classify"), " ", "the text is empty, so nothing depends on it"),
        (runs("language", model__family="gpt"), ("A", ""), "the target is empty"),
        (runs("masked"), "a <mask> " * 200, "tokens, and the model reads 126; shorten it"),
    ):
        texts = [text] if isinstance(text, str) else text
        with pytest.raises(UserError, match=message):
            saliency(regard.load(folder), *texts)
    with pytest.raises(UserError, match="precision=int8 has no gradients; use precision=fp32"):
        saliency(regard.load(runs("classify"), precision="int8"), "A dog")
    with pytest.raises(UserError, match="2 texts are given as one item, but task language reads one; give one"):
        saliency(regard.load(runs("language")), ("A dog", "a cat"))
    assert run("look", runs("classify"), "A dog", "--saliency", "--out", "a.png") == 2
    assert "this measurement has no picture; expected a .json file" in capsys.readouterr().err


def test_deleting_what_the_model_uses_costs_more(runs, tmp_path, capsys):
    """In a text where one token decides the label, the true order has the largest fall."""
    predictor = regard.load(runs("classify"))
    reading = readout(copy_for_hooks(predictor, "--deletion"), "The dog sees a cat and a bird here.")
    places = [place for place in range(len(reading.tokens)) if place not in reading.fixed]
    with torch.no_grad():
        full, *others = reading.score(
            reading.inputs([reading.tokens, *([t for i, t in enumerate(reading.tokens) if i != p] for p in places)])
        ).exp()
    single = torch.full((len(reading.tokens),), -1.0)
    for place, value in zip(places, others, strict=True):
        single[place] = full - value
    falls = text_falls({"single": single, "reversed": -single}, reading)
    assert falls["single"][0] >= falls["reversed"][0] and falls["random"].shape == falls["single"].shape == (5,)
    first = max(places, key=lambda place: single[place])
    if round(0.1 * len(places)) <= 1:
        assert falls["single"][0] == pytest.approx(float(single[first]), abs=1e-5)
    report = deletion_report(predictor, DATA["classify"], examples=4)
    assert report.texts == 4 and len(report.curves) == 7
    methods = {"attention", "rollout", "random", "integrated gradients", "n-grams"}
    assert {each.method for each in report.curves} >= methods
    assert all(each.aopc == pytest.approx(sum(each.falls) / 5, abs=1e-6) for each in report.curves)
    report.draw(tmp_path / "d.png")
    assert len(deletion_report(regard.load(runs("translate")), DATA["translate"], examples=2).curves) == 4
    assert deletion_report(regard.load(runs("masked")), DATA["masked"], examples=2).texts == 2
    for folder, arguments, message in (
        (runs("classify"), ("--examples", 0), "--examples is 0; expected 1 or more"),
        (runs("tag"), (), "--deletion deletes tokens of texts that are read as a whole, and task tag reads none"),
    ):
        assert run("look", folder, "--deletion", *arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError, match="no text of the data has two tokens to delete"):
        deletion_report(predictor, [("a", "long")])


# --- logit lens ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    "task, text, settings",
    [
        ("masked", "The <mask> sees a cat.", {}),
        ("language", "The dog sees", {"model__family": "gpt"}),
        ("language", "The dog sees", {"model__family": "xl"}),
        ("translate", "The dog.", {}),
    ],
)
def test_the_last_layer_of_the_lens_is_the_output(runs, task, text, settings, capsys):
    predictor = regard.load(runs(task, **settings))
    places, layers, _ = layer_logits(predictor, text, "THE" if task == "translate" else None)
    assert len(layers) == 2 and not torch.allclose(layers[0], layers[1], atol=1e-3)
    if task == "masked":
        tokens = predictor.masked_row(text)
        own = predictor.model(Inputs("tokens", torch.tensor([tokens])))[0, tokens.index(predictor.tokenizer.mask)]
        assert places == ["<mask>"]
    elif task == "language":
        (ids,) = predictor.encode_texts([text])
        own = predictor.model(Inputs("tokens", torch.tensor([[predictor.start_token, *ids]])))[0]
    else:
        batch = predictor.pair(predictor.source.encode([text]), predictor.target.encode(["THE"]))
        own = predictor.model(batch["source"], batch["target"])[0]
    assert (layers[-1] - own).abs().max() < 1e-5
    found = lens(predictor, text, top=2)
    assert len(found.layers[-1][0].tokens) == 2 and found.places
    assert run("look", runs(task, **settings), text, "--lens") == 0
    assert "layer 2" in capsys.readouterr().out


def test_the_lens_needs_a_model_that_writes_tokens(runs):
    for task, texts, message in (
        ("classify", ["A dog"], "--lens shows the tokens that a decoder or a masked model would write"),
        ("masked", ["A <mask>", "dog"], "a masked model takes no target"),
        ("masked", [" "], "the text is empty, so there is nothing to predict"),
    ):
        with pytest.raises(UserError, match=message):
            lens(regard.load(runs(task)), *texts)


# --- other predictors ------------------------------------------------------------------------------------------------


def test_what_a_predictor_keeps_of_its_model_follows_the_muted_one(tmp_path):
    write_folder(tmp_path / "whisper")
    predictor = regard.load(tmp_path / "whisper")
    assert predictor.transcriber.context.model is predictor.engine.context.model is predictor.model
    muted = predictor.muted("cross.1.1")
    assert muted.transcriber.context.model is muted.engine.context.model is muted.model is not predictor.model
    assert predictor.transcriber.context.model is predictor.model
    with pytest.raises(UserError, match="--heads reads texts, and task transcribe does not"):
        report_heads(predictor, TREES)


# --- the command line ------------------------------------------------------------------------------------------------


def test_options_that_do_not_fit(runs, tmp_path, capsys):
    (tmp_path / "long.conllu").write_text("".join(f"{i}\tw\tw\tX\t_\t_\t{i - 1}\tdep\t_\t_\n" for i in range(1, 300)))
    for arguments, message in (
        (["--heads", TREES, "--effect"], "--heads and --effect cannot be combined"),
        (["A dog", "--data", "x.tsv"], "only --heads, --effect, --deletion and --ngrams read data"),
        (["A dog", "--effect"], "is a text, but this measurement reads data"),
        (["--lens"], "give a text and perhaps its target, not 0 texts"),
        (["A dog", "B", "--word", "dog"], "--word reads one text, without a target"),
        ([" ", "--word", "dog"], "the text is empty and has no words"),
        (["dog " * 300, "--word", "dog"], "tokens, and the model reads 126; shorten it"),
        (["--heads", tmp_path / "long.conllu"], "all 1 sentences are longer than the 126 tokens of the model"),
        (["--effect", "--out", "x.txt"], "x.txt"),
    ):
        assert run("look", runs("masked"), *arguments) == 2
        assert message in capsys.readouterr().err
    rnn = runs("classify", **RNN)
    for arguments in (["--heads", TREES], ["--effect"], ["A dog", "--word", "dog"]):
        assert run("look", rnn, *arguments) == 2
        assert "attention" in capsys.readouterr().err
    with pytest.raises(UserError, match="this model has no attention heads"):
        regard.load(rnn, mute="1.1")
