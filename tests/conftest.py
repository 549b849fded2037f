"""Every test begins from the same seed, without chatter from the oracles."""

import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when transformers is first imported

import pytest
import torch

torch.set_num_threads(1)  # the tensors are tiny: a second thread would only wait for the first


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
