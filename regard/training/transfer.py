"""Copies of batches to the device that trains on them."""

import torch

from ..data.batch import Batch

LARGE_BYTES = 1 << 20  # smaller batches reach a GPU without waiting for it


class DeviceCopy:
    """Copies batches to a device. Large ones go through pinned memory, so that a GPU computes meanwhile.

    Each of them waits for the copy before it: two batches are pinned at a time, not all that the host is ahead by.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copied: torch.cuda.Event | None = None  # after the last large batch

    def __call__(self, batch: Batch) -> Batch:
        if self.device.type != "cuda" or sum(each.nbytes for each in batch.inputs.values()) < LARGE_BYTES:
            return batch.to(self.device, non_blocking=self.device.type == "cuda")
        if self._copied is not None:
            self._copied.synchronize()
        moved = batch.pin().to(self.device, non_blocking=True)
        self._copied = torch.cuda.current_stream(self.device).record_event()
        return moved
