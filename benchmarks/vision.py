"""`python -m benchmarks vision`: ViT and DETR beside Hugging Face, and how many images a second one core reads.

Both sides have the same weights and inputs, and attention by SDPA. On a GPU both are compiled, in bf16: weights in
forward passes, autocast with fp32 weights in training. On a CPU both run fp32 without a compiler.
"""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.device import resolve_device
from regard.errors import UserError
from regard.families import detr, vit
from regard.parts import Inputs
from regard.processors.image.processor import ImageProcessor

from .report import Report, Section
from .timing import RunRound, rounds
from .translate import environment
from .translate.peers import installed

SIZES = ("base", "tiny")
PARTS = ("vit", "detr", "images")
BICUBIC = 3  # Pillow's number
TOLERANCE = 1e-4  # largest difference of an output between fp32 programs
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class VisionWorkload:
    """How much is measured."""

    vit: dict[str, Any]
    detr: dict[str, Any]
    batch: int  # images of ViT
    height: int  # of the images of DETR
    width: int
    detr_batch: int
    repeats: int  # of a forward pass or step in a round
    images: int  # that one core reads in a round
    trains: bool = True  # time training steps too


def make_workload(size: str, device: torch.device) -> VisionWorkload:
    if size == "tiny":
        return VisionWorkload(vit.SIZES["tiny"], detr.SIZES["tiny"], 2, 64, 96, 2, 1, 4)
    models = vit.SIZES["B/16"], detr.SIZES["R50"]
    if device.type == "cuda":
        return VisionWorkload(*models, 64, 800, 1066, 8, 10, 200)
    return VisionWorkload(*models, 8, 480, 640, 2, 1, 200, trains=False)


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes, sections = resolve_device(device), list[str](), list[Section]()
    workload = make_workload(size, where)
    measures = {"vit": vit_sections, "detr": detr_sections, "images": image_sections}
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        for section in measures[part](workload, where, count, notes):
            print(section.table(), file=sys.stderr, flush=True)
            sections.append(section)
    return Report("vision", environment(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


# --- models ----------------------------------------------------------------------------------------------------------


def vit_sections(workload: VisionWorkload, device: torch.device, count: int, notes: list[str]) -> Iterator[Section]:
    c = vit.Config.model_validate(workload.vit | {"head": "class", "labels": 1000})
    model = vit.Model(c)
    nn.init.normal_(model.get_submodule("classes").weight, std=0.02)  # new ones are 0
    ours, theirs = make_pair(model, c, "vit", "ViTForImageClassification", notes)
    pixels = torch.randn(workload.batch, 3, c.image, c.image)
    labels = torch.randint(1000, (workload.batch,), device=device)
    models = {"regard": lambda x: ours(Inputs("pixels", x))} | ({"HF": lambda x: theirs(x).logits} if theirs else {})
    compare(models, pixels[:2])
    about = f"{workload.batch} images of {c.image} × {c.image}"
    modules = [each for each in (ours, theirs) if each]
    with precision_of(device, modules) as dtype:
        steps = forward_steps(models, pixels.to(device, dtype), device)
        yield time_steps("ViT forward", steps, workload, device, count, about)
    if not workload.trains:
        return
    steps = {
        name: training_step(module, models[name], pixels.to(device), labels, device)
        for name, module in zip(models, modules, strict=True)
    }
    yield time_steps("ViT training", steps, workload, device, count, about)


def detr_sections(workload: VisionWorkload, device: torch.device, count: int, notes: list[str]) -> Iterator[Section]:
    settings = {"labels": 91, "backbone_norm": {"kind": "frozen"}}
    c = detr.Config.model_validate(workload.detr | settings)
    model = detr.Model(c)
    for part in model.modules():
        if isinstance(part, nn.Conv2d):  # deep stacks of random convolutions overflow in bf16 without their norms
            part.weight.data *= 0.7
    ours, theirs = make_pair(model, c, "detr", "DetrForObjectDetection", notes)
    pixels = torch.randn(workload.detr_batch, 3, workload.height, workload.width)

    def detect(x: Tensor) -> Tensor:
        found = ours.detect(Inputs("pixels", x))
        return torch.cat([found.logits[-1], found.boxes[-1]], -1)

    def detect_theirs(x: Tensor) -> Tensor:
        found = theirs(x)
        return torch.cat([found.logits, found.pred_boxes], -1)

    models = {"regard": detect} | ({"HF": detect_theirs} if theirs else {})
    compare(models, pixels[:1, :, :256, :320])
    about = f"{workload.detr_batch} images of {workload.width} × {workload.height}"
    with precision_of(device, [each for each in (ours, theirs) if each]) as dtype:
        steps = forward_steps(models, pixels.to(device, dtype), device)
        yield time_steps("DETR forward", steps, workload, device, count, about)


def make_pair(model: nn.Module, c: Any, family: str, architecture: str, notes: list[str]) -> tuple[Any, Any]:
    """Our model, and theirs with its weights; None if transformers is not installed."""
    model = model.eval()
    if not installed("transformers", notes):
        return model, None
    hf: Any = import_module("transformers")
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    predictor = SimpleNamespace(
        run=SimpleNamespace(model=c, data=None),
        module=model,
        image=ImageProcessor(),
        labels=list(map(str, range(c.labels))),
    )
    with TemporaryDirectory() as folder:
        import_module(f"regard.formats.huggingface.{family}").FORMAT.write(predictor, Path(folder) / "hf", "fp32")
        theirs = getattr(hf, architecture).from_pretrained(Path(folder) / "hf")  # SDPA is its default
    return model, theirs.eval()


@torch.inference_mode()
def compare(models: dict[str, Callable[[Tensor], Tensor]], pixels: Tensor) -> None:
    """Refuse programs with different outputs, on the CPU in fp32."""
    outputs = {name: model(pixels) for name, model in models.items()}
    for name, output in outputs.items():
        difference = float((output - outputs["regard"]).abs().max() / outputs["regard"].abs().max())
        if not difference <= TOLERANCE:
            raise UserError(f"{name} gave outputs that differ by {difference:.1e} of the largest; nothing was timed")


@contextmanager
def precision_of(device: torch.device, modules: list[nn.Module]) -> Iterator[torch.dtype]:
    """The modules on the device, on a GPU with bf16 weights; afterwards in fp32 for training."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for module in modules:
        module.to(device, dtype)
    yield dtype
    for module in modules:
        module.float()


def forward_steps(
    models: dict[str, Callable[[Tensor], Tensor]], pixels: Tensor, device: torch.device
) -> dict[str, Step]:
    def step(model: Callable[[Tensor], Tensor]) -> Step:
        go = compiled(model, device)

        @torch.inference_mode()
        def forward() -> Tensor:
            return go(pixels)

        return forward

    return {name: step(model) for name, model in models.items()}


def training_step(
    module: nn.Module, model: Callable[[Tensor], Tensor], pixels: Tensor, labels: Tensor, device: torch.device
) -> Step:
    """Forward, backward and a step of AdamW."""
    optimizer = torch.optim.AdamW(module.train().parameters(), 1e-5, fused=True)

    def loss_of(x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return F.cross_entropy(model(x).float(), labels)

    go = compiled(loss_of, device)

    def step() -> Tensor:
        loss = go(pixels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def compiled(function: Callable[[Tensor], Tensor], device: torch.device) -> Callable[[Tensor], Tensor]:
    """On a GPU, compiled with CUDA graphs: the best setting of both sides at one fixed shape."""
    if device.type != "cuda":
        return function
    graphed = torch.compile(function, dynamic=False, mode="reduce-overhead")

    def call(x: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return graphed(x)

    return call


def time_steps(
    name: str, steps: dict[str, Step], workload: VisionWorkload, device: torch.device, count: int, about: str
) -> Section:
    batch = int(about.split()[0])

    def run_round(step: Step) -> RunRound:
        def go(number: int) -> float:
            for _ in range(workload.repeats):
                step()
            return float(batch * workload.repeats)

        return go

    rates = rounds({name: run_round(step) for name, step in steps.items()}, count, device)
    return Section(name, "images/s", rates, ("regard",), [about])


# --- images ----------------------------------------------------------------------------------------------------------


def image_sections(workload: VisionWorkload, device: torch.device, count: int, notes: list[str]) -> Iterator[Section]:
    """JPEG files to normalized pixels, in one process and thread."""
    cpu = torch.device("cpu")
    with TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), workload.images)
        plain = ImageProcessor(resize=(224, 224), crop=0, resample="bilinear")
        random = ImageProcessor(resize=224, crop=224)
        strong = ImageProcessor(resize=224, crop=224, randaugment=2)
        programs = {"regard": read_all(plain, paths, augmented=False)}
        if installed("transformers", notes):
            programs["HF Pil"] = read_theirs(paths)
        facts = [
            f"{len(paths)} JPEG files of 500 × 375, {sum(path.stat().st_size for path in paths) // len(paths):,} bytes"
        ]
        yield Section("images, evaluation", "images/s", rounds(programs, count, cpu), ("regard",), facts)
        training = {
            "crop + flip": read_all(random, paths),
            "crop + flip + RandAugment 2": read_all(strong, paths),
        }
        yield Section("images, training", "images/s", rounds(training, count, cpu), tuple(training), facts)


def write_photos(folder: Path, count: int) -> list[Path]:
    """Smooth random images with a little noise: their files have the size of photographs."""
    from PIL import Image

    rng, paths = np.random.default_rng(1), []
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        noisy = np.asarray(coarse, np.float32) + rng.normal(0, 8, (375, 500, 1))
        buffer = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
        paths.append(folder / f"{number}.jpg")
        paths[-1].write_bytes(buffer.getvalue())
    return paths


def read_all(processor: ImageProcessor, paths: list[Path], augmented: bool = True) -> RunRound:
    def go(number: int) -> float:
        for index, path in enumerate(paths):
            processor.encode(path, np.random.default_rng([number, index]) if augmented else None)
        return float(len(paths))

    return go


def read_theirs(paths: list[Path]) -> RunRound:
    from PIL import Image

    hf: Any = import_module("transformers")
    processor = hf.ViTImageProcessorPil(size={"height": 224, "width": 224})

    def go(number: int) -> float:
        for path in paths:
            with Image.open(path) as image:
                processor(image, return_tensors="np")
        return float(len(paths))

    return go
