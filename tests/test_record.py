import numpy as np
import pytest
import torch

from vizattn.capture import capture
from vizattn.errors import OutOfRange, RecordError
from vizattn.record import AttentionRecord


def test_a_saved_record_comes_back_the_same(record, tiny_vit, pixels, tmp_path):
    lean = capture(tiny_vit, pixels[:, :, :48], values=False)
    for kept in (record, capture(tiny_vit, pixels[:, :, :48]), lean):
        loaded = AttentionRecord.load(kept.save(tmp_path / "cat"))
        assert (loaded.grid, loaded.frame, loaded.input_size) == (
            kept.grid,
            kept.frame,
            kept.input_size,
        )
        assert (loaded.model, loaded.notes) == (kept.model, kept.notes)
        assert torch.equal(loaded.output, kept.output)
        for ours, theirs in zip(loaded, kept, strict=True):
            assert (ours.name, ours.kind, ours.is_exact) == (
                theirs.name,
                theirs.kind,
                theirs.is_exact,
            )
            assert type(ours) is type(theirs)
            for side in ("queries", "keys"):
                first, second = getattr(ours, side), getattr(theirs, side)
                assert (first.grid, first.frame) == (second.grid, second.frame)
                assert torch.equal(first.numbers(), second.numbers())
            for name in ours.tensors:
                first, second = getattr(ours, name), getattr(theirs, name)
                assert first is second or torch.equal(first, second)


def test_npz_is_added_to_a_name_that_lacks_it(record, tmp_path):
    assert record.save(tmp_path / "a.b").name == "a.b.npz"
    assert record.save(tmp_path / "c.npz").name == "c.npz"


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    np.savez(tmp_path / "evil.npz", meta=np.array([Evil()], dtype=object))
    with pytest.raises(RecordError, match="is not a record that vizattn wrote, or it is damaged"):
        AttentionRecord.load(tmp_path / "evil.npz")
    assert not (tmp_path / "ran").exists()


def test_a_damaged_or_missing_file_is_a_sentence(record, tmp_path):
    whole = record.save(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "text.npz").write_text("hello")
    for name in ("half.npz", "other.npz", "text.npz"):
        with pytest.raises(RecordError, match=f"'{name}' is not a record"):
            AttentionRecord.load(tmp_path / name)
    with pytest.raises(RecordError, match=r"there is no file 'gone\.npz'"):
        AttentionRecord.load(tmp_path / "gone.npz")


def test_it_is_a_sequence_and_introduces_itself(record):
    assert record[-1] is record[2] is list(record)[2]
    assert len(record[1:]) == 2
    assert repr(record).startswith(
        "AttentionRecord(VisionTransformer: 3 layers × 2 heads, 17 tokens, "
    )


def test_layers_and_tokens_that_are_not_there_are_refused(record):
    with pytest.raises(OutOfRange, match=r"no layer 4 \(index 3\): there are 3"):
        record[3]
    for token, said in ((17, r"no token 18 \(index 17\)"), (-18, "no token with index -18")):
        with pytest.raises(OutOfRange, match=said):
            record[0].rows(token)
        with pytest.raises(OutOfRange, match=said):
            record[0].columns([0, token])


def test_dense_and_linear_layers_answer_alike(record):
    from vizattn.layers import DenseAttention

    for layer in record:
        weights = layer.rows(range(17))
        about = (layer.name, layer.kind, layer.queries, layer.keys, "", True)
        twin = DenseAttention(*about, weights)
        relevance = torch.rand(2, 17)
        torch.testing.assert_close(twin.rows([3, -1]), layer.rows([3, -1]))
        torch.testing.assert_close(twin.columns(2), layer.columns(2))
        torch.testing.assert_close(twin.pull_back(relevance), layer.pull_back(relevance))
        for ours, theirs in zip(twin.tiles(5), layer.tiles(5), strict=True):
            assert ours[0] == theirs[0]
            torch.testing.assert_close(ours[1], theirs[1])
