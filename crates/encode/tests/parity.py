"""Compares the encoder with the live Python libraries, in the shapes of real models with random weights, and its
preprocessing with Pillow on photographs. Nothing is downloaded but packages.

    python3 crates/encode/tests/parity.py              # every shape; some GB of memory, a few minutes
    python3 crates/encode/tests/parity.py B/32 pictures
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
VENV = os.path.join(ROOT, "target", "encode-venv")
PACKAGES = ["torch==2.15.0", "transformers==5.22.2", "open_clip_torch==3.3.0", "pillow==13.0.0", "numpy", "scikit-image",
            "scikit-learn", "sentencepiece"]


def inside_venv():
    python = os.environ.get("ULTTA_ENCODE_PYTHON") or os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        subprocess.check_call([sys.executable, "-m", "venv", VENV])
        subprocess.check_call([python, "-m", "pip", "install", "-q", *PACKAGES])
    os.execv(python, [python, __file__, "here", *sys.argv[1:]])


CLIP = {
    "B/32": dict(vision=dict(patch_size=32), text={}, dim=512),
    "B/16": dict(vision=dict(patch_size=16), text={}, dim=512),
    "L/14": dict(vision=dict(patch_size=14, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                             num_attention_heads=16),
                 text=dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12), dim=768),
}
CLIP["L/14@336"] = dict(CLIP["L/14"], vision=dict(CLIP["L/14"]["vision"], image_size=336))


def rust(model, work):
    """Runs the encoder on the inputs in `work`; answers are written there."""
    subprocess.check_call(["cargo", "run", "-q", "--release", "-p", "ultta-encode", "--example", "parity", "--",
                           model, work], cwd=ROOT)


def compare(name, work, image, text):
    import numpy as np

    worst = []
    for which, expected in [("image", image), ("text", text)]:
        expected = expected.detach().numpy()
        got = np.fromfile(os.path.join(work, which + ".f32"), dtype="<f4").reshape(expected.shape)
        # As features are used: unit vectors.
        unit = lambda v: v / np.linalg.norm(v, axis=-1, keepdims=True)
        difference = np.abs(unit(got) - unit(expected)).max()
        cosine = (unit(got) * unit(expected)).sum(-1).min()
        raw = np.abs(got - expected).max()
        print(f"{name:24} {which:5} unit {difference:.1e}  raw {raw:.1e}  cosine {cosine:.7f}", flush=True)
        assert difference < 1e-4 and cosine > 0.99999, name
        worst.append(difference)
    return max(worst)


def inputs(work, size, context, vocabulary, end):
    import torch

    torch.manual_seed(1)
    pixels = torch.randn(2, 3, size, size)
    ids = torch.randint(1, vocabulary - 2, (3, context))
    if end:
        for row, at in enumerate([4, 20, context - 1]):
            ids[row, at] = vocabulary - 1
            ids[row, at + 1:] = 0
    pixels.numpy().tofile(os.path.join(work, "pixels.f32"))
    ids.numpy().astype("<u4").tofile(os.path.join(work, "ids.u32"))
    return pixels, ids


def features(output):
    return output if hasattr(output, "shape") else output.pooler_output


def transformers_clip(name, shape):
    import torch
    from transformers import CLIPConfig, CLIPModel

    with tempfile.TemporaryDirectory() as work:
        torch.manual_seed(0)
        config = CLIPConfig(projection_dim=shape["dim"], vision_config=shape["vision"], text_config=shape["text"])
        model = CLIPModel(config).eval()
        model.save_pretrained(work)
        pixels, ids = inputs(work, config.vision_config.image_size, 77, 49408, True)
        with torch.inference_mode():
            image = features(model.get_image_features(pixel_values=pixels))
            text = features(model.get_text_features(input_ids=ids))
        rust(work, work)
        return compare(f"transformers {name}", work, image, text)


def transformers_siglip():
    import torch
    from transformers import SiglipConfig, SiglipModel

    with tempfile.TemporaryDirectory() as work:
        torch.manual_seed(0)
        model = SiglipModel(SiglipConfig(vision_config=dict(patch_size=16))).eval()
        model.save_pretrained(work)
        pixels, ids = inputs(work, 224, 64, 32000, False)
        with torch.inference_mode():
            image = features(model.get_image_features(pixel_values=pixels))
            text = features(model.get_text_features(input_ids=ids))
        rust(work, work)
        return compare("transformers SigLIP B/16", work, image, text)


def open_clip_model(name):
    import open_clip
    import torch
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as work:
        torch.manual_seed(0)
        model = open_clip.create_model(name, pretrained=None).eval()
        with torch.no_grad():
            for buffer, values in model.named_buffers():
                if buffer.endswith("running_mean"):
                    values.normal_(std=0.1)
                elif buffer.endswith("running_var"):
                    values.uniform_(0.5, 1.5)
        config = open_clip.get_model_config(name)
        json.dump(dict(model_cfg=config, preprocess_cfg={}), open(os.path.join(work, "open_clip_config.json"), "w"))
        state = {k: v.contiguous() for k, v in model.state_dict().items() if "attn_mask" not in k}
        save_file(state, os.path.join(work, "open_clip_model.safetensors"))
        text = config["text_cfg"]
        pixels, ids = inputs(work, config["vision_cfg"].get("image_size", 224), text["context_length"], text["vocab_size"],
                             "SigLIP" not in name)
        with torch.inference_mode():
            image, text = model.encode_image(pixels), model.encode_text(ids)
        rust(work, work)
        return compare(f"open_clip {name}", work, image, text)


def photographs():
    """JPEGs that scikit-image and scikit-learn ship, and others made from them: sizes, modes, qualities."""
    import glob

    import numpy as np
    import skimage
    import sklearn
    from PIL import Image

    paths = []
    for package in [skimage, sklearn]:
        folder = os.path.dirname(package.__file__)
        for ending in ["jpg", "jpeg", "png", "tif", "gif", "bmp"]:
            paths += glob.glob(os.path.join(folder, "**", "*." + ending), recursive=True)
    def mode(path):
        try:
            image = Image.open(path)
            return image.mode if min(image.size) >= 64 else None
        except OSError:
            return None

    photos = [p for p in paths if mode(p) in ("RGB", "RGBA", "L", "P")]
    with tempfile.TemporaryDirectory() as work:
        made = []
        sources = [p for p in photos if mode(p) == "RGB"][:8]
        for index, path in enumerate(sources):
            image = Image.open(path).convert("RGB")
            for kind, (scale, mode, options) in enumerate([
                    (1.0, "RGB", dict(quality=75)), (2.3, "RGB", dict(quality=90, subsampling=1)),
                    (0.7, "RGB", dict(quality=60, progressive=True)), (1.3, "L", dict(quality=80)),
                    (1.1, "CMYK", dict(quality=90)), (3.0, "RGB", dict(quality=95, subsampling=0))]):
                size = (max(16, int(image.width * scale)), max(16, int(image.height * scale)))
                if min(size) < 224:
                    continue
                out = os.path.join(work, f"{index}-{kind}.jpg")
                image.resize(size, Image.BICUBIC).convert(mode).save(out, **options)
                made.append(out)
        every = sorted(photos) + made
        listed = os.path.join(work, "list.txt")
        open(listed, "w").write("\n".join(every))
        out = os.path.join(work, "cuts.u8")
        subprocess.check_call(["cargo", "run", "-q", "--release", "-p", "ultta-encode", "--example", "parity", "--",
                               "cuts", listed, out], cwd=ROOT)
        got = np.fromfile(out, dtype="u1").reshape(len(every), 224, 224, 3).astype(int)
        from torchvision.transforms import CenterCrop, InterpolationMode, Resize

        worst, wrong = {}, []
        for path, mine in zip(every, got):
            image = Image.open(path).convert("RGB")
            cut = CenterCrop(224)(Resize(224, interpolation=InterpolationMode.BICUBIC)(image))
            difference = np.abs(mine - np.array(cut).astype(int))
            small = min(image.size) < 224
            key = (os.path.splitext(path)[1].lower(), "smaller than the input" if small else "larger")
            worst.setdefault(key, []).append((difference.max(), os.path.basename(path), (difference > 2).mean()))
        for key, values in sorted(worst.items()):
            top = max(values)
            print(f"pictures {' '.join(key):36} {len(values):3} files, largest difference {top[0]} ({top[1]}), "
                  f"above 2: {max(v[2] for v in values):.2%} of a picture's values at most", flush=True)
            if key[1] == "larger" and top[0] > 2:
                wrong.append(top[:2])
        assert not wrong, f"more than two grey levels from Pillow: {wrong}"


if __name__ == "__main__":
    if "here" not in sys.argv:
        inside_venv()
    wanted = sys.argv[2:]
    jobs = {name: lambda n=name, s=shape: transformers_clip(n, s) for name, shape in CLIP.items()}
    jobs["siglip"] = transformers_siglip
    for name in ["ViT-B-32", "ViT-B-16-quickgelu", "ViT-B-16-SigLIP", "RN50", "RN101-quickgelu"]:
        jobs[name] = lambda n=name: open_clip_model(n)
    jobs["pictures"] = photographs
    for name, job in jobs.items():
        if not wanted or name in wanted:
            job()
    print("parity holds")
