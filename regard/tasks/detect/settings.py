"""The settings of detection."""

from typing import Annotated, Any, TypeAlias

from pydantic import Field

from ...config.data.images import DetectData
from ...config.run import Run
from ...config.task_settings import AP, AP50, LOSS, TaskSettings
from ...config.types import Base, Positive, Share


class DetectDecode(Base):
    """Detections of an image."""

    threshold: Share = 0.5  # objects of a lower score are left out
    top: Annotated[int, Field(ge=1, le=100)] = 100  # objects of an image, at most
    batch: Positive = 8  # images per batch


SETTINGS = TaskSettings(DetectData, DetectDecode, (LOSS, AP, AP50), tokenizer=Base)

DetectRun: TypeAlias = Run[DetectData, DetectDecode, Any]
