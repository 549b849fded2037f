"""The settings of detection."""

from typing import Any, TypeAlias

from ...config.data.images import DetectData
from ...config.run import Run
from ...config.task_settings import AP, AP50, LOSS, TaskSettings
from ...config.types import Base, Count, Positive, Share


class DetectDecode(Base):
    """Detections of an image."""

    threshold: Share = 0.5  # objects of a lower score are left out
    top: Count = 0  # objects of an image, at most; 0: all
    batch: Positive = 8  # images per batch


SETTINGS = TaskSettings(DetectData, DetectDecode, (LOSS, AP, AP50), tokenizer=Base)

DetectRun: TypeAlias = Run[DetectData, DetectDecode, Any]
