"""Adapters (1902.00751): a bottleneck network after the attention and the feed-forward of every layer.

Its output is added to that of the sublayer, before the residual. Its last map starts at zero, so the model starts
unchanged.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from ..config.tuning import Adapter
from .injection import Injection, format_names, unsupported_tuning
from .virtual_tokens import StackInput

SUBLAYERS = {"attention": ("attention", "cross"), "feed": ("feed",), "both": ("attention", "cross", "feed")}


class Bottleneck(nn.Module):
    """One adapter."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)
        for parameter in self.up.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(F.gelu(self.down(x)))
        return added

    def add_to_output(self, module: nn.Module, inputs: tuple[StackInput, ...], out: Tensor) -> Tensor:
        """Forward hook of the sublayer."""
        added: Tensor = self(out.to(self.down.weight.dtype))
        return out + added.to(out.dtype)


def install(model: nn.Module, settings: Adapter) -> Injection:
    """Put an adapter after every sublayer with a chosen name and a known output width."""
    injection, names = Injection("adapter"), SUBLAYERS[settings.after]
    widths = {path: width for path, module in model.named_modules() if (width := _output_width(module))}
    chosen = {path: width for path, width in widths.items() if path.rpartition(".")[2] in names}
    if not chosen:
        raise unsupported_tuning(
            "adapter", f"it has no sublayer called {' or '.join(names)} (it has {format_names(widths)})"
        )
    for path, width in chosen.items():
        adapter = Bottleneck(width, settings.bottleneck)
        injection.attach(path, adapter)
        injection.add_handles(model.get_submodule(path).register_forward_hook(adapter.add_to_output))
    return injection


def _output_width(module: nn.Module) -> int:
    """The output width of a module, by its last map `out` or its attribute `outputs`; 0 if unknown."""
    last = module._modules.get("out")
    return int(getattr(last, "out_features", getattr(module, "outputs", 0)))
