"""The seed ViT against dense float64 attention, vit_pytorch, and its own comments."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vizattn import vit
from vizattn.errors import GridError, ImageError, MaskError, UnknownName, VizattnError
from vizattn.vit import Attention, ViT

SMALL = {"num_classes": 5, "dim": 24, "depth": 2, "heads": 3, "dim_head": 8, "mlp_dim": 32}
EXAMPLE = {"image_size": 256, "patch_size": 32, "num_classes": 1000}
EXAMPLE |= {"dim": 1024, "depth": 1, "heads": 16, "mlp_dim": 2048}


def small_vit(**changes):
    torch.manual_seed(0)
    return ViT(**{"image_size": 32, "patch_size": 8, **SMALL, **changes}).double().eval()


def attention(dim=12, heads=3, dim_head=4, **settings):
    torch.manual_seed(0)
    return Attention(dim, heads, dim_head, **settings).double().eval()


def recorded_weights(module, *inputs):
    """What an ordinary forward hook on the softmax sees."""
    seen = []
    hook = module.attend.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    module(*inputs)
    hook.remove()
    (weights,) = seen
    return weights


def dense_attention(module, x, kept=None):
    """Softmax attention, one picture and one head at a time; a token not kept is no key at all."""
    pictures = []
    for index, tokens in enumerate(x):
        keys = torch.arange(len(tokens)) if kept is None else kept[index].nonzero()[:, 0]
        normed = (tokens - tokens.mean(-1, keepdim=True)) / (
            tokens.var(-1, unbiased=False, keepdim=True) + 1e-5
        ).sqrt()
        q, k, v = (normed @ module.to_qkv.weight.T).split(module.to_qkv.out_features // 3, dim=-1)
        heads = []
        for part in torch.arange(q.shape[-1]).split(q.shape[-1] // module.heads):
            scores = q[:, part] @ k[keys][:, part].T / len(part) ** 0.5
            shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
            heads.append(shares @ v[keys][:, part])
        pictures.append(torch.cat(heads, -1) @ module.to_out[0].weight.T + module.to_out[0].bias)
    return torch.stack(pictures)


@settings(deadline=None, max_examples=25)
@given(
    pictures=st.integers(1, 3),
    heads=st.integers(1, 4),
    dim_head=st.integers(1, 5),
    patches=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_attention_is_the_dense_softmax_of_q_and_k(pictures, heads, dim_head, patches, seed):
    module = attention(7, heads, dim_head)
    torch.manual_seed(seed)
    x = torch.randn(pictures, patches + 1, 7, dtype=torch.float64)
    torch.testing.assert_close(module(x), dense_attention(module, x))


@settings(deadline=None, max_examples=25)
@given(
    pictures=st.integers(1, 3),
    heads=st.integers(1, 3),
    patches=st.integers(1, 7),
    prefix=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_hiding_a_patch_takes_it_out_of_the_keys_of_all_that_are_kept(
    pictures, heads, patches, prefix, seed
):
    module = attention(heads=heads, num_prefix_tokens=prefix)
    torch.manual_seed(seed)
    x = torch.randn(pictures, prefix + patches, 12, dtype=torch.float64)
    mask = torch.rand(pictures, patches) < 0.5
    kept = torch.cat((torch.ones(pictures, prefix, dtype=torch.bool), mask), dim=1)
    expected = dense_attention(module, x, kept)
    torch.testing.assert_close(module(x, mask)[kept], expected[kept])


def test_equal_tokens_share_their_attention_equally():
    weights = recorded_weights(attention(), torch.ones(2, 5, 12, dtype=torch.float64))
    torch.testing.assert_close(weights, torch.full((2, 3, 5, 5), 1 / 5, dtype=torch.float64))


@pytest.mark.parametrize("mask", [None, torch.arange(12).reshape(2, 6) % 5 > 0])
def test_a_hook_on_the_softmax_records_rows_that_sum_to_one(mask):
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    weights = recorded_weights(attention(), x, mask)
    assert weights.shape == (2, 3, 7, 7)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64))


def test_a_hidden_patch_looks_at_all_tokens_alike_and_gets_nothing_from_those_kept():
    mask = torch.tensor([[True, False, True]])
    weights = recorded_weights(attention(), torch.randn(1, 4, 12, dtype=torch.float64), mask)
    torch.testing.assert_close(weights[0, :, 2], torch.full((3, 4), 0.25, dtype=torch.float64))
    assert (weights[0, :, [0, 1, 3], 2] == 0).all()
    assert (weights[0, :, [0, 1, 3]][:, :, [0, 1, 3]] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_picture_with_nothing_kept_gives_finite_numbers(dtype):
    module = attention(num_prefix_tokens=0).to(dtype)
    x = torch.randn(1, 4, 12, dtype=dtype)
    weights = recorded_weights(module, x, torch.zeros(1, 4, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.full((1, 3, 4, 4), 0.25, dtype=dtype))


def test_a_mask_belongs_to_its_picture_when_there_are_as_many_heads_as_pictures():
    module, x = attention(heads=3), torch.randn(3, 5, 12, dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [False, True, True, True], [True, True, False, False]])
    weights = recorded_weights(module, x, mask)
    for picture in range(3):
        for head in range(3):
            class_row = weights[picture, head, 0]
            assert (class_row[1:] > 0).tolist() == mask[picture].tolist()


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_picture_gets_the_same_logits_alone_and_in_a_batch(pool):
    model, images = small_vit(pool=pool), torch.rand(3, 3, 32, 32, dtype=torch.float64)
    mask = torch.rand(3, 4, 4) < 0.5
    alone = [model(images[i : i + 1], mask[i : i + 1])[0] for i in range(3)]
    torch.testing.assert_close(model(images, mask), torch.stack(alone))


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_pixels_of_a_hidden_patch_never_change_the_logits(pool):
    model, images = small_vit(pool=pool), torch.rand(1, 3, 32, 32, dtype=torch.float64)
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    mask[0, 1, 2] = False
    repainted = images.clone()
    repainted[:, :, 8:16, 16:24] = torch.rand(3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(model(repainted, mask), model(images, mask))
    assert not torch.allclose(model(repainted), model(images))


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_mask_that_keeps_everything_changes_nothing(pool):
    model, images = small_vit(pool=pool), torch.rand(2, 3, 32, 32, dtype=torch.float64)
    keep_all = torch.ones(2, 16, dtype=torch.bool)
    torch.testing.assert_close(model(images, keep_all), model(images))


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 2, 8), (2, 1, 16, 1)])
def test_a_mask_may_have_any_shape_that_flattens_to_the_patches(shape):
    model, images = small_vit(), torch.rand(2, 3, 32, 32, dtype=torch.float64)
    mask = torch.arange(32).reshape(2, 16) % 3 > 0
    torch.testing.assert_close(
        model(images, mask.reshape(shape)), model(images, mask), rtol=0, atol=0
    )


def test_a_mean_over_no_patch_is_zero_so_the_logits_are_the_bias():
    model = small_vit(pool="mean")
    none_kept = torch.zeros(2, 16, dtype=torch.bool)
    logits = model(torch.rand(2, 3, 32, 32, dtype=torch.float64), none_kept)
    torch.testing.assert_close(logits, model.mlp_head.bias.expand(2, 5))


@pytest.mark.parametrize(
    ("prefix", "shape", "found", "expected"),
    [
        (1, (2, 7, 9), 63, "64 in each of 2 (65 tokens, 1 of them prefix)"),
        (1, (2, 65), 65, "64 in each of 2 (65 tokens, 1 of them prefix)"),
        (0, (2, 64), 64, "65 in each of 2 (65 tokens, 0 of them prefix)"),
        (1, (1, 64), 64, "64 in each of 2 (65 tokens, 1 of them prefix)"),
        (1, (64,), 1, "64 in each of 2 (65 tokens, 1 of them prefix)"),
        (1, (), 1, "64 in each of 2 (65 tokens, 1 of them prefix)"),
    ],
)
def test_a_mask_of_the_wrong_size_is_refused_with_both_sizes(prefix, shape, found, expected):
    module = attention(num_prefix_tokens=prefix)
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(MaskError) as error:
        module(torch.zeros(2, 65, 12, dtype=torch.float64), mask)
    assert str(error.value) == (
        f"got a mask of shape {list(shape)}, {found} patches per picture, expected {expected}. "
        "Is there one entry per patch, not per pixel, and none for the prefix?"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_a_mask_that_is_not_boolean_is_refused(dtype):
    with pytest.raises(MaskError) as error:
        attention()(torch.zeros(1, 5, 12, dtype=torch.float64), torch.ones(1, 4, dtype=dtype))
    assert str(error.value) == (
        f"got a mask of {dtype}, expected torch.bool with True = keep. "
        "Are these weights or scores? Compare them first, as in `mask > 0`."
    )


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"image_size": 250}, "250×250 px and patches of 8×8"),
        ({"image_size": (32, 30)}, "32×30 px and patches of 8×8"),
        ({"image_size": (30, 32)}, "30×32 px and patches of 8×8"),
        ({"image_size": (32, 48), "patch_size": (3, 16)}, "32×48 px and patches of 3×16"),
        ({"patch_size": 0}, "32×32 px and patches of 0×0"),
        ({"image_size": 0}, "0×0 px and patches of 8×8"),
    ],
)
def test_patches_that_do_not_fill_the_picture_are_refused(changes, sizes):
    with pytest.raises(GridError) as error:
        small_vit(**changes)
    assert str(error.value) == (
        f"got a picture of {sizes} px, expected patches that fill it exactly. "
        "Is either not (height, width)?"
    )


@pytest.mark.parametrize("shape", [(1, 1, 32, 48), (1, 3, 48, 32), (1, 3, 32, 47), (3, 32, 48)])
def test_pictures_of_another_shape_are_refused(shape):
    with pytest.raises(ImageError) as error:
        small_vit(image_size=(32, 48))(torch.zeros(shape, dtype=torch.float64))
    assert str(error.value) == (
        f"got pictures of shape {list(shape)}, expected [picture, 3, 32, 48] "
        "(channel, height, width). Were they resized or cropped for this model, and batched?"
    )


def test_an_unknown_pool_is_refused_and_the_known_ones_are_named():
    with pytest.raises(UnknownName) as error:
        small_vit(pool="max")
    assert str(error.value) == "no pool named 'max'. Known: cls, mean."
    assert isinstance(error.value, VizattnError)


@pytest.mark.parametrize(("pool", "prefix"), [("cls", 1), ("mean", 0)])
def test_a_vit_tells_its_sizes_as_height_and_width(pool, prefix):
    model = small_vit(image_size=(32, 48), patch_size=(8, 4), pool=pool)
    assert model.image_size == (32, 48)
    assert model.patch_size == (8, 4)
    assert model.grid_size == (4, 12)
    assert model.num_prefix_tokens == prefix
    assert len(model.pos_embedding) == prefix + 4 * 12


@pytest.mark.parametrize(
    ("heads", "dim_head", "is_identity"), [(1, 12, True), (1, 6, False), (2, 12, False)]
)
def test_only_one_head_as_wide_as_the_token_goes_without_an_output_layer(
    heads, dim_head, is_identity
):
    assert isinstance(attention(12, heads, dim_head).to_out, nn.Identity) == is_identity


VARIANTS = {
    "class token": {},
    "mean": {"pool": "mean"},
    "not square": {"image_size": (32, 48), "patch_size": (8, 4)},
    "not square, mean": {"image_size": (24, 8), "patch_size": (4, 8), "pool": "mean"},
    "one wide head": {"heads": 1, "dim_head": 24},
    "one channel": {"channels": 1},
    "no head": {"num_classes": 0},
    "dropout": {"dropout": 0.3, "emb_dropout": 0.2},
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_weights_of_vit_pytorch_load_as_they_are_and_give_its_output(changes, training):
    reference_class = pytest.importorskip("vit_pytorch").ViT
    sizes = {"image_size": 32, "patch_size": 8, **SMALL, **changes}
    torch.manual_seed(1)
    reference, ours = reference_class(**sizes).train(training), ViT(**sizes).train(training)
    ours.load_state_dict(reference.state_dict(), strict=True)
    images = torch.rand(2, sizes.get("channels", 3), *ours.image_size)
    torch.manual_seed(2)  # dropout draws the same numbers in the same places
    expected = reference(images)
    torch.manual_seed(2)
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-5)


# The shapes in the comments of vit.py. A claim is a shape at the end of a line; what the line
# assigns, or the module that it puts into a Sequential, has to have this shape in a real forward.

SOURCE = Path(vit.__file__).read_text(encoding="utf-8")


def claims_of(source):
    """Line number -> shape that its comment claims."""
    pattern = re.compile(r"# (\[\d+(?:, \d+)*\])$")
    found = ((number, pattern.search(line)) for number, line in enumerate(source.splitlines(), 1))
    return {number: tuple(ast.literal_eval(match[1])) for number, match in found if match}


def names_assigned(statement):
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {
        name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
    }


def shapes_assigned(forward_pass):
    """Run it; last line of an assignment -> the shapes that its names then had."""
    tree = ast.walk(ast.parse(SOURCE))
    assigns = [node for node in tree if isinstance(node, ast.Assign | ast.AnnAssign)]
    statement_at = {line: s for s in assigns for line in range(s.lineno, s.end_lineno + 1)}
    shapes = {}

    def follow(frame, _event, _value):
        previous = statement_at.get(last_line.get(frame))
        if previous is not None:
            values = [frame.f_locals.get(name) for name in names_assigned(previous)]
            tensors = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
            shapes[previous.end_lineno] = tensors
        last_line[frame] = frame.f_lineno
        return follow

    last_line = {}
    before = sys.gettrace()
    sys.settrace(lambda frame, *_: follow if frame.f_code.co_filename == vit.__file__ else None)
    try:
        forward_pass()
    finally:
        sys.settrace(before)
    return shapes


def sequential_lines():
    """(class, attribute, position) of every module written into a Sequential -> its line."""
    lines = {}
    for owner in ast.parse(SOURCE).body:
        for node in ast.walk(owner):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                call = node.value
                if ast.unparse(call.func) == "nn.Sequential":
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    for position, part in enumerate(call.args):
                        lines[owner.name, target.attr, position] = part.end_lineno
    return lines


@pytest.fixture(scope="module")
def real_shapes():
    """Line number -> shapes in a forward pass of the running example, with a mask."""
    model = ViT(**EXAMPLE).eval()
    lines, shapes = sequential_lines(), {}
    for owner in model.modules():
        for attribute, child in owner.named_children():
            for i, part in enumerate(child if isinstance(child, nn.Sequential) else ()):
                line = lines[type(owner).__name__, attribute, i]
                part.register_forward_hook(
                    lambda *call, line=line: shapes.update({line: {tuple(call[-1].shape)}})
                )
    mask = torch.arange(64).reshape(1, 8, 8) > 9
    with torch.no_grad():
        assigned = shapes_assigned(lambda: model(torch.rand(1, 3, 256, 256), mask))
    return shapes | assigned


def wrong_claims(source, real):
    return {line: shape for line, shape in claims_of(source).items() if real.get(line) != {shape}}


def test_every_shape_in_the_comments_is_the_shape_of_a_real_forward(real_shapes):
    assert wrong_claims(SOURCE, real_shapes) == {}


def test_every_shape_in_the_comments_is_read_as_a_claim():
    with_numbers = re.compile(r"#.*[\[(] *\d+ *,")
    lines = enumerate(SOURCE.splitlines(), 1)
    assert [number for number, line in lines if with_numbers.search(line)] == list(
        claims_of(SOURCE)
    )
    assert len(claims_of(SOURCE)) > 25


@pytest.mark.parametrize("line", claims_of(SOURCE))
def test_a_changed_shape_in_a_comment_is_noticed(line, real_shapes):
    lines = SOURCE.splitlines()
    lines[line - 1] = re.sub(r"(\d+)\]$", lambda last: f"{int(last[1]) + 1}]", lines[line - 1])
    assert list(wrong_claims("\n".join(lines), real_shapes)) == [line]


def test_a_forward_pass_that_changes_shape_without_its_comment_is_noticed(real_shapes):
    other = {line: {(*shape, 1) for shape in shapes} for line, shapes in real_shapes.items()}
    assert wrong_claims(SOURCE, other) == claims_of(SOURCE)


def test_the_example_in_words_is_the_example_in_the_shapes(real_shapes):
    model = ViT(**EXAMPLE)
    rows, cols = model.grid_size
    heads, dim_head = EXAMPLE["heads"], model.transformer.layers[0][0].scale ** -2
    tokens = rows * cols + model.num_prefix_tokens
    words = (
        f"a picture of {model.image_size[0]} px in patches of {model.patch_size[0]} px, so "
        f"{rows} × {cols} = {rows * cols} patches and {model.num_prefix_tokens} class token, "
        f"{tokens} tokens of {EXAMPLE['dim']} numbers, looked at by {heads} heads of "
        f"{dim_head:.0f} numbers"
    )
    assert words in " ".join(vit.__doc__.split())
    shapes = set().union(*real_shapes.values())
    assert {(1, tokens, EXAMPLE["dim"]), (1, heads, tokens, dim_head)} <= shapes
