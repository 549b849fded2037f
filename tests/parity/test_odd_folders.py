"""Random folders of transformers with odd settings: equal outputs, or a refusal that names the setting.

Twenty run with the other tests, the others by `make soak`.
"""

from pathlib import Path

import pytest
from helpers.odd_folders import check, draw_written

SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(20, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_odd_folder_gives_the_outputs_of_transformers_or_is_refused_by_name(seed: int, tmp_path: Path) -> None:
    check(*draw_written(seed, tmp_path))
