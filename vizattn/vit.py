"""A vision transformer to read in one sitting: the lesson this project grew from.

    A = softmax(q kᵀ / √dim_head)        A[i, j] = how much token i takes from token j

A picture is cut into patches, each patch becomes a token, and in every layer the tokens look at
each other. ``A`` is that look: one row per query, and each row sums to 1.

One example runs down the right: a picture of 256 px in patches of 32 px, so 8 × 8 = 64 patches and
1 class token, 65 tokens of 1024 numbers, looked at by 16 heads of 64 numbers. Each entry is the
shape that its line leaves behind; a test compares them all with a real forward pass.
Axis letters: ``b`` picture, ``h`` head, ``n`` token (``i`` as query, ``j`` as key), ``d`` number.

The weights of ``vit_pytorch.ViT`` load here as they are. Sources: Vaswani et al. 2017, "Attention
Is All You Need", eq. 1; Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", eqs. 1 to 4.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vizattn.errors import GridError, ImageError, MaskError, UnknownName

Tokens = Float[Tensor, "picture token dim"]
# The column of shapes is aligned by hand.
# fmt: off


def kept_tokens(mask: Tensor, x: Tokens, n_prefix: int) -> Bool[Tensor, "picture token"]:
    """Turn a mask over patches into one over the tokens `x`; the `n_prefix` first are always kept.

    `mask` is boolean, True = keep, [picture, any shape that flattens to the patches].

    Raises:
        MaskError: The mask is not boolean, or not one entry per patch and picture.
    """
    if mask.dtype != torch.bool:
        raise MaskError(
            f"got a mask of {mask.dtype}, expected torch.bool with True = keep. "
            "Are these weights or scores? Compare them first, as in `mask > 0`."
        )
    n_pictures, n_tokens, _ = x.shape
    found, expected = mask.shape[1:].numel(), n_tokens - n_prefix
    if mask.shape[:1] != (n_pictures,) or found != expected:
        raise MaskError(
            f"got a mask of shape {list(mask.shape)}, {found} patches per picture, expected "
            f"{expected} in each of {n_pictures} ({n_tokens} tokens, {n_prefix} of them prefix). "
            "Is there one entry per patch, not per pixel, and none for the prefix?"
        )
    return F.pad(mask.reshape(n_pictures, expected), (n_prefix, 0), value=True)


class Attention(nn.Module):
    """Every token asks all tokens a question and takes home a mixture of their answers.

    `dim_head` counts the numbers of a token within one head; `dropout` in [0, 1] is for the weights
    and the output; `num_prefix_tokens` come before the patches, and a mask does not cover them.
    """

    def __init__(
        self, dim: int, heads: int = 16, dim_head: int = 64, dropout: float = 0.0,
        *, num_prefix_tokens: int = 1,
    ) -> None:
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head**-0.5
        self.num_prefix_tokens = num_prefix_tokens
        self.norm = nn.LayerNorm(dim)
        # A module and not a function, so that an ordinary forward hook sees A.
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out: nn.Module = nn.Sequential(
            nn.Linear(inner, dim),                                       # [1, 65, 1024]
            nn.Dropout(dropout),                                         # [1, 65, 1024]
        )
        if heads == 1 and dim_head == dim:  # there are no heads to mix and no width to restore
            self.to_out = nn.Identity()

    def forward(self, x: Tokens, mask: Tensor | None = None) -> Tokens:
        """Let the tokens look at each other once; `mask` is as in `kept_tokens`."""
        # Each token says three things: what it looks for (query), what it can be found by (key)
        # and what it has to give (value). One linear layer says all three at once.
        x = self.norm(x)                                                 # [1, 65, 1024]
        qkv = self.to_qkv(x)                                             # [1, 65, 3072]
        q, k, v = qkv.chunk(3, dim=-1)                                   # [1, 65, 1024]

        # Cut the 1024 numbers into 16 heads of 64. Heads do not meet again before the end.
        split = "b n (h d) -> b h n d"
        q, k, v = (rearrange(t, split, h=self.heads) for t in (q, k, v)) # [1, 16, 65, 64]

        # Compare every query with every key. A sum of 64 products spreads like √64, so divide
        # by that: otherwise the softmax would put nearly everything on one token.
        scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale  # [1, 16, 65, 65]

        if mask is not None:
            kept = kept_tokens(mask, x, self.num_prefix_tokens)          # [1, 65]
            # A look counts if both ends are kept. The 1 is the head axis, spelled out: a mask
            # belongs to a picture, and a bare [b, n, n] would be lined up with the heads.
            pairs = kept[:, None, :, None] & kept[:, None, None, :]      # [1, 1, 65, 65]
            # The lowest finite number: a row with nothing to attend to then comes out uniform,
            # where -inf would give NaN. Such a row means nothing; a recorded map marks it blank.
            lowest = -torch.finfo(scores.dtype).max
            scores = scores.masked_fill(~pairs, lowest)                  # [1, 16, 65, 65]

        # Turn scores into shares: no share is negative, and each row sums to 1 over the keys.
        weights = self.dropout(self.attend(scores))                      # [1, 16, 65, 65]

        # Every query collects the values in these shares.
        taken = torch.einsum("b h i j, b h j d -> b h i d", weights, v)  # [1, 16, 65, 64]

        # Lay the heads side by side again and let one linear layer mix them.
        joined = rearrange(taken, "b h n d -> b n (h d)")                # [1, 65, 1024]
        mixed: Tensor = self.to_out(joined)                              # [1, 65, 1024]
        return mixed


class FeedForward(nn.Module):
    """Each token thinks by itself: widen, bend, narrow. No token sees another one here."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim),                                           # [1, 65, 1024]
            nn.Linear(dim, hidden_dim),                                  # [1, 65, 2048]
            nn.GELU(),                                                   # [1, 65, 2048]
            nn.Dropout(dropout),                                         # [1, 65, 2048]
            nn.Linear(hidden_dim, dim),                                  # [1, 65, 1024]
            nn.Dropout(dropout),                                         # [1, 65, 1024]
        )

    def forward(self, x: Tokens) -> Tokens:
        """Change every token on its own."""
        changed: Tensor = self.net(x)                                    # [1, 65, 1024]
        return changed


class Block(nn.ModuleList):
    """One layer, look and then think: entry 0 is the attention, entry 1 the feed-forward."""

    def forward(self, x: Tokens, mask: Tensor | None = None) -> Tokens:
        """Add to each token what it found. `+ x` is the share that rollout keeps as residual."""
        attention, feed_forward = self
        x = attention(x, mask) + x                                       # [1, 65, 1024]
        x = feed_forward(x) + x                                          # [1, 65, 1024]
        return x


class Transformer(nn.Module):
    """Blocks one after the other, and a last normalisation."""

    def __init__(
        self, dim: int, depth: int, heads: int, dim_head: int, mlp_dim: int,
        dropout: float = 0.0, *, num_prefix_tokens: int = 1,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            look = Attention(dim, heads, dim_head, dropout, num_prefix_tokens=num_prefix_tokens)
            self.layers.append(Block([look, FeedForward(dim, mlp_dim, dropout)]))

    def forward(self, x: Tokens, mask: Tensor | None = None) -> Tokens:
        """Pass the tokens through every block."""
        for block in self.layers:
            x = block(x, mask)                                           # [1, 65, 1024]
        x = self.norm(x)                                                 # [1, 65, 1024]
        return x


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Read one side as a square; a pair is (height, width) already."""
    return (size, size) if isinstance(size, int) else size


class ViT(nn.Module):
    """A picture classifier: patches to tokens, tokens through the transformer, one vector out.

    Args:
        image_size: Pixels, the side of a square or (height, width); `patch_size` likewise.
        num_classes: 0 leaves out the head, and `forward` then returns the tokens.
        pool: "cls" reads the class token; "mean" has none and averages the patches.
        dropout: Probability in [0, 1]; `emb_dropout` is for the tokens before the first block.

    Raises:
        GridError: The patches do not fill the picture exactly.
        UnknownName: There is no such `pool`.
    """

    def __init__(
        self, *, image_size: int | tuple[int, int], patch_size: int | tuple[int, int],
        num_classes: int, dim: int, depth: int, heads: int, mlp_dim: int, pool: str = "cls",
        channels: int = 3, dim_head: int = 64, dropout: float = 0.0, emb_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.image_size = height, width = pair(image_size)
        self.patch_size = patch_height, patch_width = pair(patch_size)
        if min(height, width, *self.patch_size) < 1 or height % patch_height or width % patch_width:
            raise GridError(
                f"got a picture of {height}×{width} px and patches of {patch_height}×{patch_width} "
                "px, expected patches that fill it exactly. Is either not (height, width)?"
            )
        if pool not in ("cls", "mean"):
            raise UnknownName("pool", pool, ["cls", "mean"])
        self.grid_size = rows, cols = height // patch_height, width // patch_width
        self.pool = pool
        self.channels = channels
        self.num_prefix_tokens = n_prefix = 1 if pool == "cls" else 0

        patch_dim = channels * patch_height * patch_width
        cut = "b c (row ph) (col pw) -> b (row col) (ph pw c)"
        self.to_patch_embedding = nn.Sequential(
            Rearrange(cut, ph=patch_height, pw=patch_width),             # [1, 64, 3072]
            nn.LayerNorm(patch_dim),                                     # [1, 64, 3072]
            nn.Linear(patch_dim, dim),                                   # [1, 64, 1024]
            nn.LayerNorm(dim),                                           # [1, 64, 1024]
        )
        self.cls_token = nn.Parameter(torch.randn(n_prefix, dim))
        self.pos_embedding = nn.Parameter(torch.randn(rows * cols + n_prefix, dim))
        self.dropout = nn.Dropout(emb_dropout)
        self.transformer = Transformer(
            dim, depth, heads, dim_head, mlp_dim, dropout, num_prefix_tokens=n_prefix
        )
        self.mlp_head = nn.Linear(dim, num_classes) if num_classes > 0 else None

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pictures [b, channel, height, width] to logits [b, class], or to tokens without a head.

        Raises:
            ImageError: The pictures have another shape than the model takes.
            MaskError: `mask` is not as in `kept_tokens`.
        """
        if images.ndim != 4 or images.shape[1:] != (self.channels, *self.image_size):
            raise ImageError(
                f"got pictures of shape {list(images.shape)}, expected [picture, {self.channels}, "
                f"{self.image_size[0]}, {self.image_size[1]}] (channel, height, width). "
                "Were they resized or cropped for this model, and batched?"
            )
        # Each patch is 32 × 32 pixels of 3 colours, 3072 numbers: one token, once made 1024.
        x: Tensor = self.to_patch_embedding(images)                      # [1, 64, 1024]
        # The class token comes first. It shows nothing itself and only gathers from the others.
        first = repeat(self.cls_token, "n d -> b n d", b=len(images))    # [1, 1, 1024]
        x = torch.cat((first, x), dim=1)                                 # [1, 65, 1024]
        # Attention does not know where a token sits. Adding a learned place tells it.
        x = x + self.pos_embedding                                       # [1, 65, 1024]
        x = self.dropout(x)                                              # [1, 65, 1024]
        x = self.transformer(x, mask)                                    # [1, 65, 1024]
        if self.mlp_head is None:
            return x
        summary = self.summarise(x, mask)                                # [1, 1024]
        logits: Tensor = self.mlp_head(summary)                          # [1, 1000]
        return logits

    def summarise(self, x: Tokens, mask: Tensor | None = None) -> Float[Tensor, "picture dim"]:
        """Take the class token, or the mean over the patches that are kept (0 if none is)."""
        if self.pool == "cls":
            return x[:, 0]
        if mask is None:
            return x.mean(dim=1)
        # A hidden patch must not come back in through the average.
        kept = kept_tokens(mask, x, self.num_prefix_tokens).unsqueeze(-1)
        return (x * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)
