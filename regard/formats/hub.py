"""Models of the Hugging Face hub: `org/name`, `org/name@revision` or `org/name/file.gguf`, through huggingface_hub.

The library's cache and its settings (HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, tokens) are respected. Only the files that
regard reads are downloaded, and never a pickle.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.run_folder import is_run
from ..errors import UserError
from .model_files import GGUF, GGUF_PART, WEIGHTS, first_module, weight_files

SCHEME = "hf://"  # selects the hub even if a local folder has the name
NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/([^@]+\.gguf))?(?:@([\w./-]+))?", re.ASCII)
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.spm"]  # settings and vocabularies
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of PEFT
OTHER_FORMATS = ["onnx/*", "openvino/*", "coreml/*", "original/*"]


@dataclass(frozen=True)
class HubName:
    """A model repository, perhaps one of its files, and a revision (branch, tag or commit; empty: main)."""

    repo: str
    file: str = ""
    revision: str = ""

    def __str__(self) -> str:
        return self.repo + (f"/{self.file}" if self.file else "") + (f"@{self.revision}" if self.revision else "")


def parse_hub_name(name: str) -> HubName | None:
    """The parts of a name; None if no model of the hub can have it, or if it begins with a folder that is here."""
    match = NAME.fullmatch(name.removeprefix(SCHEME))
    if match is None or not name.startswith(SCHEME) and Path(name).parts[0:1] and Path(Path(name).parts[0]).exists():
        return None
    return HubName(match[1], match[2] or "", match[3] or "")


def local_folder(name: str | Path) -> Path:
    """The folder of a name: itself, or the model or adapter of the hub that has it."""
    hub = None if Path(name).exists() else parse_hub_name(str(name))
    return Path(name) if hub is None else fetch_model(hub)[0]


def peft_base(start: str) -> dict[str, str]:
    """The entries by which a PEFT folder names its base: a path, or a model of the hub with its revision."""
    hub = None if Path(start).exists() else parse_hub_name(start)
    if hub is None:
        return {"base_model_name_or_path": start}
    return {"base_model_name_or_path": hub.repo} | ({"revision": hub.revision} if hub.revision else {})


def fetch_model(name: HubName) -> tuple[Path, str]:
    """The folder or GGUF file of a model in the local cache, downloaded if needed, and the commit it belongs to."""
    if name.file:
        folder = _snapshot(name, name.revision, [_with_all_parts(name.file)])
        if not (folder / name.file).is_file():
            raise UserError(f"{name.repo} has no {name.file}; it has {_gguf_list(_files(name, folder))}")
        return folder / name.file, folder.name
    folder = _snapshot(name, name.revision, SMALL_FILES, OTHER_FORMATS)
    weights = _weights(name, folder)
    if not all((folder / file).is_file() for file in weights):
        _check_weights(name, weights, _files(name, folder))
        _snapshot(name, folder.name, weights)
    return folder, folder.name


def _with_all_parts(file: str) -> str:
    """A pattern for a file and, if it is one of several parts, the others."""
    match = GGUF_PART.fullmatch(file)
    return f"{match[1]}-*-of-{match[3]}{GGUF}" if match else file


def _weights(name: HubName, folder: Path) -> list[str]:
    """The weights that a snapshot's settings ask for, relative to it."""
    if not any((folder / file).is_file() for file in ("run.json", "config.json", "modules.json", ADAPTER)):
        problem = f"{name.repo} is no model that regard reads: it has neither config.json nor run.json"
        raise UserError(f"{problem}; {_gguf_remedy(name, _files(name, folder))}")
    if is_run(folder):
        return [WEIGHTS]
    if not any((folder / file).is_file() for file in ("config.json", "modules.json")):
        return [ADAPTER_WEIGHTS]
    home = folder if (folder / "config.json").is_file() else first_module(folder)
    return [str((home / file).relative_to(folder).as_posix()) for file in weight_files(home)]


def _check_weights(name: HubName, weights: list[str], files: list[str]) -> None:
    """Refuse a repository without safetensors before anything large is downloaded."""
    missing = [file for file in weights if file not in files]
    if not missing:
        return
    if any(file.endswith(GGUF) for file in files):
        raise UserError(f"{name.repo} has no {missing[0]}; {_gguf_remedy(name, files)}")
    if any(file.endswith((".bin", ".pt", ".h5", ".msgpack", ".ckpt")) for file in files):
        raise UserError(
            f"{name.repo} has no {missing[0]} but weights in another format, such as pickles, which regard never "
            f"opens; convert it with transformers: AutoModel.from_pretrained({name.repo!r}).save_pretrained('folder')"
        )
    raise UserError(f"{name.repo} has no {missing[0]}; choose a repository with weights in safetensors")


def _gguf_remedy(name: HubName, files: list[str]) -> str:
    gguf_files = [file for file in files if file.endswith(GGUF)]
    return f"name one of its GGUF files: {name.repo}/{gguf_files[0]}" if gguf_files else "choose another repository"


def _gguf_list(files: list[str]) -> str:
    gguf_files = [file for file in files if file.endswith(GGUF)]
    return (
        ", ".join(gguf_files[:6]) + (f" and {len(gguf_files) - 6} more" if len(gguf_files) > 6 else "")
        or "no GGUF file"
    )


# --- calls of huggingface_hub ----------------------------------------------------------------------------------------


def _library(name: HubName) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise UserError(
            f"{name} is not a folder here, and models of the Hugging Face hub need huggingface_hub; install it with: "
            "pip install 'regard[hub]'"
        ) from error
    return huggingface_hub


def _snapshot(name: HubName, revision: str, allow: list[str], ignore: list[str] | None = None) -> Path:
    """The folder of a revision in the cache, with the files that match."""
    library = _library(name)
    with _errors_as_sentences(name):
        try:
            snapshot = library.snapshot_download(
                name.repo, revision=revision or None, allow_patterns=allow, ignore_patterns=ignore
            )
        except library.errors.LocalEntryNotFoundError as error:
            snapshot = getattr(error, "snapshot_path", None)  # offline with a part of the files: perhaps enough
            if snapshot is None:
                raise
    return Path(snapshot)


def _files(name: HubName, folder: Path) -> list[str]:
    """The files of the repository; offline those in the cache."""
    library = _library(name)
    try:
        files: list[str] = library.HfApi().list_repo_files(name.repo, revision=folder.name)
    except Exception:  # offline, or no longer there
        files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return files


@contextmanager
def _errors_as_sentences(name: HubName) -> Iterator[None]:
    """Errors of the library as one sentence."""
    errors = _library(name).errors
    page = f"https://huggingface.co/{name.repo}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{name.repo} is gated; accept its conditions at {page} and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{name.repo} is neither a folder here nor a model of the Hugging Face hub; correct the name, or log in "
            "with `hf auth login` if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{name.repo} has no revision {name.revision!r}; choose a branch, tag or commit of {page}"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise UserError(
            f"{name} is neither a folder here nor complete in the cache of the Hugging Face hub, which cannot be "
            "reached (offline); correct the path, or download the model while online"
        ) from error
    except Exception as error:  # whatever network and proxies lead to
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{name} cannot be fetched from the Hugging Face hub ({reason[0]}); try again later") from error
