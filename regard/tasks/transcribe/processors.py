"""The processors of sound that data.* describes."""

from dataclasses import replace

import numpy as np

from ...config.data.sound import Filterbanks, Recordings
from ...data.source import Source
from ...errors import UserError
from ...processors.base import Processor
from ...processors.sound.filterbank import FilterbankProcessor, with_statistics
from ...processors.sound.frames import SoundFrames
from ...processors.sound.log_mel import AudioProcessor

STATISTICS = 2000  # recordings whose frames give the mean and deviation of every bin


def with_augmentation(sound: SoundFrames, data: Recordings) -> SoundFrames:
    """The processor with the augmentation of data.* in training."""
    return replace(
        sound, speed=data.speed, noise=data.noise, snr=data.snr, frame_masks=data.frame_masks,
        frame_width=data.frame_width, bin_masks=data.bin_masks, bin_width=min(data.bin_width, sound.bins),
        vtlp=data.vtlp, equalizer=data.equalizer,
    )  # fmt: skip


def new_frames(data: Filterbanks, examples: Source) -> FilterbankProcessor:
    """Filterbanks with the mean and deviation of recordings, of at most STATISTICS over all the data."""
    plain = FilterbankProcessor(rate=data.rate, bins=data.bins, hop=hop_samples(data), cmvn=data.cmvn)
    chosen = np.unique(np.linspace(0, len(examples) - 1, STATISTICS).round().astype(int))
    return with_statistics(plain, (examples[int(index)][0] for index in chosen))


def kept_frames(data: Filterbanks, examples: Source, kept: Processor | None) -> SoundFrames:
    """The kept processor, or filterbanks with the statistics of the examples, with the augmentation of data.*."""
    return with_augmentation(kept if isinstance(kept, SoundFrames) else new_frames(data, examples), data)


def window_frames(data: Recordings, frames: int) -> AudioProcessor:
    """The log-mel processor of recordings that are padded with silence to `frames` frames."""
    hop = hop_samples(data)
    seconds, remainder = divmod(frames * hop, data.rate)
    if remainder or not seconds:
        raise UserError(
            f"model.source_positions gives {frames:,} frames of {data.hop:g} ms; expected whole seconds, such as "
            f"model.source_positions={round(data.rate / hop) * 4}"
        )
    window = data.rate * 25 // 1000
    return AudioProcessor(
        rate=data.rate, bins=data.bins, window=window, hop=hop, seconds=seconds, frame_masks=0, bin_masks=0
    )


def hop_samples(data: Recordings) -> int:
    """The samples between two frames."""
    return max(round(data.rate * data.hop / 1000), 1)
