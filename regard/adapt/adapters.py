"""Adapters (1902.00751): behind the attention and the feed-forward of every layer goes a narrow network of its own.

It adds to what the sub-layer says, before the residual does. Its last map begins at zero: the model begins as it was.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..config.schema import Adapter
from .injection import Injection, some, unsupported

PLACES = {"attention": ("attention", "cross"), "feed": ("feed",), "both": ("attention", "cross", "feed")}


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)
        for each in self.up.parameters():
            nn.init.zeros_(each)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(F.gelu(self.down(x)))
        return added

    def behind(self, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        """A hook: what the sub-layer says, and what the adapter makes of it."""
        return out + self(out.to(self.down.weight.dtype)).to(out.dtype)


def install(model: nn.Module, settings: Adapter) -> Injection:
    """Put an adapter behind every module of these names that tells how wide its answer is, or ends in a map `out`."""
    graft, names = Injection("adapter"), PLACES[settings.after]
    known = {path: width for path, module in model.named_modules() if (width := _width(module))}
    chosen = {path: width for path, width in known.items() if path.rpartition(".")[2] in names}
    if not chosen:
        wanted = " or ".join(names)
        raise unsupported("adapter", f"nothing that it could stand behind is called {wanted} (there is: {some(known)})")
    for path, width in chosen.items():
        adapter = Bottleneck(width, settings.bottleneck)
        graft.attach(path, adapter)
        graft.hold(model.get_submodule(path).register_forward_hook(adapter.behind))
    return graft


def _width(module: nn.Module) -> int:
    """Of what the module says, if that is known."""
    last = module._modules.get("out")
    return int(getattr(last, "out_features", getattr(module, "outputs", 0)))
