"""Real PyTorch tensors, open_clip and transformers models with random weights."""

from __future__ import annotations

import copy
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ultta
from ultta.torch import AdaptiveHead


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_give_the_same_bits_as_arrays(stream, dtype):
    head, features, _ = stream
    expected = ultta.Session(head).step(features)
    step = ultta.Session(head).step(torch.from_numpy(features).to(dtype))
    np.testing.assert_array_equal(step.scores, expected.scores)
    strided = torch.from_numpy(np.repeat(features, 2, axis=0))[::2]
    np.testing.assert_array_equal(ultta.Session(head).step(strided).scores, expected.scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_converted(stream, dtype):
    head, features, _ = stream
    step = ultta.Session(head).step(torch.from_numpy(features).to(dtype))
    expected = ultta.Session(head).step(features)
    np.testing.assert_allclose(step.zero_shot.scores, expected.zero_shot.scores, atol=0.3)


def test_tensors_with_gradients_are_taken(stream):
    head, features, _ = stream
    rows = torch.from_numpy(features).requires_grad_()
    assert len(ultta.Session(head).step(rows)) == 500
    head = ultta.Head.from_text_features(torch.eye(3, requires_grad=True), ["a", "b", "c"])
    assert head.dim == 3


def test_other_devices_are_refused(stream):
    head, _, _ = stream
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        ultta.Session(head).step(torch.empty(3, 24, device="meta"))


def test_answers_become_tensors(stream):
    head, features, labels = stream
    step = ultta.Session(head).step(features)
    assert torch.tensor(step.probs).shape == (500, 6)
    assert ultta.Session(head).feedback is not None
    session = ultta.Session(head)
    session.step(features)
    assert session.feedback(torch.arange(10), torch.from_numpy(labels[:10])) == 10


def test_the_module_answers_as_a_session_does(stream):
    head, features, _ = stream
    module = AdaptiveHead(head).eval()
    rows = torch.from_numpy(features)
    scores = torch.cat([module(part) for part in rows.split(64)])
    expected = ultta.Session(head).step(features, normalize=True)
    np.testing.assert_array_equal(scores.numpy(), expected.scores)
    assert not scores.requires_grad and module.last.health.seen == 500
    probs = AdaptiveHead(head, output="probs")(rows.half() * 3)
    assert probs.dtype == torch.float16 and probs.shape == (500, 6)
    assert AdaptiveHead(head)(rows.reshape(50, 10, 24)).shape == (50, 10, 6)


def test_the_module_stands_in_a_model_and_travels_with_it(stream):
    head, features, _ = stream
    rows = torch.from_numpy(features)
    model = torch.nn.Sequential(torch.nn.Identity(), AdaptiveHead(head))
    model(rows[:300])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = torch.nn.Sequential(torch.nn.Identity(), AdaptiveHead(head))
    again.load_state_dict(torch.load(file))
    other = copy.deepcopy(model)
    expected = model(rows[300:])
    assert torch.equal(again(rows[300:]), expected)
    assert torch.equal(other(rows[300:]), expected)
    assert "AdaptiveHead" in repr(model)


def test_the_module_can_hold_still(stream):
    head, features, _ = stream
    module = AdaptiveHead(head, adapt=False)
    before = module.session.state()
    module(torch.from_numpy(features))
    assert module.session.state() == before
    with pytest.raises(ValueError, match="output"):
        AdaptiveHead(head, output="labels")


def test_open_clip():
    open_clip = pytest.importorskip("open_clip")
    model, _, preprocess = open_clip.create_model_and_transforms("RN50", pretrained=None)
    tokenizer = open_clip.get_tokenizer("RN50")
    classes = ["cat", "dog", "owl"]
    templates = ["a photo of a {}.", lambda name: f"a drawing of the {name}"]
    head = ultta.Head.from_open_clip(model, tokenizer, classes, templates, batch_size=4)
    assert head.classes == classes and head.metadata["source"] == "open_clip"
    assert head.logit_scale == pytest.approx(float(model.logit_scale.exp()), rel=1e-5)
    model.eval()
    with torch.no_grad():
        texts = model.encode_text(tokenizer(["a photo of a dog.", "a drawing of the dog"]), normalize=True).mean(0)
        images = model.encode_image(torch.rand(2, 3, 224, 224))
    np.testing.assert_allclose(head.prototypes[1], texts / texts.norm(), atol=1e-5)
    step = ultta.Session(head).step(images, normalize=True)
    expected = head.logit_scale * (images / images.norm(dim=1, keepdim=True)) @ torch.tensor(head.prototypes).T
    np.testing.assert_allclose(step.zero_shot.scores, expected, atol=1e-3)
    assert len(ultta.Head.from_open_clip(model, tokenizer, classes).prototypes) == 3
    with pytest.raises(ValueError, match="templates"):
        ultta.Head.from_open_clip(model, tokenizer, classes, [])
    with pytest.raises(ValueError, match="one class"):
        ultta.Head.from_open_clip(model, tokenizer, ["cat"])


def test_transformers():
    transformers = pytest.importorskip("transformers")
    words = 2 + 2 * 27
    small = dict(hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.CLIPConfig(
        text_config=dict(vocab_size=words, max_position_embeddings=32, bos_token_id=0, eos_token_id=1, **small),
        vision_config=dict(image_size=30, patch_size=15, **small),
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["."]
    table = {w: i for i, w in enumerate(["<|startoftext|>", "<|endoftext|>", *letters, *(f"{x}</w>" for x in letters)])}

    class Tokenizer:
        """Letters as tokens: what is used of a transformers tokenizer."""

        def __call__(self, texts, padding, truncation, return_tensors):
            rows = [[0, *(table[c] for c in text if c in table), 1] for text in texts]
            width = max(map(len, rows))
            ids = torch.tensor([row + [1] * (width - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
            return {"input_ids": ids, "attention_mask": mask}

    class Processor:
        tokenizer = Tokenizer()

    for processor in (Tokenizer(), Processor()):
        head = ultta.Head.from_transformers(model, processor, ["cat", "dog", "owl"], ["a {}.", "the {}."])
        assert head.dim == 16 and head.metadata["source"] == "transformers"
        assert head.logit_scale == pytest.approx(float(model.logit_scale.exp()), rel=1e-5)
        with torch.no_grad():
            found = model.get_text_features(**Tokenizer()(["a dog."], True, True, "pt"))
            one = getattr(found, "pooler_output", found)[0]
            found = model.get_text_features(**Tokenizer()(["the dog."], True, True, "pt"))
            two = getattr(found, "pooler_output", found)[0]
        mean = one / one.norm() + two / two.norm()
        np.testing.assert_allclose(head.prototypes[1], mean / mean.norm(), atol=1e-4)
        with torch.no_grad():
            images = model.get_image_features(pixel_values=torch.rand(3, 3, 30, 30))
        images = getattr(images, "pooler_output", images)
        assert len(ultta.Session(head).step(images, normalize=True)) == 3


def test_the_pipeline_of_transformers(tmp_path):
    """A real pipeline object around a tiny model with random weights: the frozen scores are transformers' own."""
    transformers = pytest.importorskip("transformers")
    from PIL import Image

    from ultta.transformers import AdaptedPipeline, pipeline

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["."]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{x}</w>" for x in letters)]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    small = dict(hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.CLIPConfig(
        text_config=dict(vocab_size=len(words), max_position_embeddings=64, bos_token_id=0, eos_token_id=1, **small),
        vision_config=dict(image_size=30, patch_size=15, **small),
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    size = {"height": 30, "width": 30}
    images = transformers.CLIPImageProcessor(size=size, crop_size=size)
    pipe = transformers.pipeline(
        "zero-shot-image-classification", model=model, tokenizer=tokenizer, image_processor=images
    )
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 255, (40, 40, 3), dtype=np.uint8)) for _ in range(3)]
    labels = ["cat", "dog", "owl"]
    expected = pipe(pictures, candidate_labels=labels)
    adapted = AdaptedPipeline(pipe, "zero_shot")
    for mine, theirs in zip(adapted(pictures, candidate_labels=labels), expected):
        assert {a["label"]: a["score"] for a in mine} == pytest.approx({a["label"]: a["score"] for a in theirs}, abs=1e-4)
    in_batches = AdaptedPipeline(pipe, "zero_shot")(pictures, candidate_labels=labels, batch_size=2)
    for mine, one_by_one in zip(in_batches, adapted(pictures, candidate_labels=labels)):
        assert [a["score"] for a in mine] == pytest.approx([a["score"] for a in one_by_one], abs=1e-5)
    assert adapted(pictures[0], candidate_labels=labels)[0].keys() == expected[0][0].keys()
    learning = AdaptedPipeline(pipe)
    learning(pictures, candidate_labels=labels)
    assert learning.session(labels).seen == 3 and "AdaptedPipeline(CLIPModel" in repr(learning)
    made = pipeline(model=model, tokenizer=tokenizer, image_processor=images, settings={"advanced__update_every": 64})
    assert len(made(pictures, candidate_labels=labels)) == 3


def test_the_ten_lines_of_the_readme(capsys, tmp_path, monkeypatch):
    """As they stand, but with random weights and three pictures of noise."""
    pytest.importorskip("open_clip")
    from PIL import Image

    readme = (Path(__file__).parents[3] / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, flags=re.S | re.M)
    (block,) = [block for block in blocks if "open_clip" in block]
    block, known = re.subn(r'"ViT-B-32", pretrained="\w+"', '"ViT-B-32", pretrained=None', block)
    assert known == 1
    random = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(3):
        Image.fromarray(random.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_notebook_runs_with_open_clip(tmp_path, monkeypatch, capsys):
    """Random weights, a hundred pictures; a mistake in the cells must not end in the stand-in."""
    open_clip = pytest.importorskip("open_clip")
    create = open_clip.create_model_and_transforms
    monkeypatch.setattr(open_clip, "create_model_and_transforms", lambda name, pretrained: create(name, pretrained=None))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((Path(__file__).parents[3] / "examples/open_clip.ipynb").read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names = {}
    exec(compile(program.replace("3000", "100").replace("1500", "50").replace("window=300", "window=20"), "open_clip.ipynb", "exec"), names)
    told = capsys.readouterr().out
    assert "open_clip ViT-B-32" in told and "stand-in" not in told
    assert names["again"].seen == 100 and names["head"].dim == 512
