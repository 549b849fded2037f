"""Non-autoregressive Transformer (1711.02281): its decoder layer attends to all positions except its own."""

from torch import Tensor, nn

from regard.parts import (
    Attention,
    Cross,
    FeedForward,
    Layer,
    LayerCache,
    Mask,
    PositionTerms,
    Residual,
    SinusoidPositions,
    Stack,
)


class OrderLayer(Layer):
    """A decoder layer with positional attention: queries and keys are position vectors, values are hidden states."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        def residual() -> Residual:
            return Residual(nn.LayerNorm(width), norm_first=False)

        super().__init__(Attention(width, heads), FeedForward(width, inner), residual, Attention(width, heads))
        self.order, self.order_residual, self.sinusoid = Attention(width, heads), residual(), SinusoidPositions(width)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        position_terms: PositionTerms,
        layer_cache: LayerCache | None = None,
        cross: Cross | None = None,
        index: int = 0,
    ) -> Tensor:
        others = mask.replace(exclude_self=True)
        x = self.attention_residual(x, lambda y: self.attention(y, y, y, others, position_terms))
        vectors = self.sinusoid.vectors(mask.query_key_positions(x.size(1), x.size(1), x.device)[0]).expand(x.shape)
        x = self.order_residual(x, lambda y: self.order(vectors, vectors, y, mask))
        x = self.cross_residual(x, lambda y: self.cross_attend(y, cross, index))
        return self.feed_residual(x, self.feed)


class NATDecoder(nn.Module):
    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int) -> None:
        super().__init__()
        self.stack = Stack([OrderLayer(width, heads, inner) for _ in range(layers)])
        self.head = nn.Linear(width, vocab)

    def forward(self, copied: Tensor, mask: Mask, cross: Cross) -> Tensor:
        return self.head(self.stack(copied, mask, cross))  # (batch, tokens, vocab), all at once
