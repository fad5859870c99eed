"""Engines in turns on one machine: milliseconds per image of a ViT-B/16 image tower with random weights (fp32, and int8
where ONNX Runtime has it), on one thread and on all cores; then whole pipelines from a folder of JPEGs to answers.

    python3 crates/encode/benches/speed.py                 # everything, to standard output as Markdown
    python3 crates/encode/benches/speed.py encoder 3       # only the encoder table, three rounds
    python3 crates/encode/benches/speed.py pipeline 3

Makes a virtual environment of its own under target/ (ULTTA_ENCODE_PYTHON and ULTTA_BINARY name others). Every engine runs
in a process of its own; a round runs all of them one after another, and rounds alternate, so that a slow minute of the
machine meets all of them. The figure is the median over the rounds of each round's fastest call.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
VENV = os.path.join(ROOT, "target", "encode-venv")
WORK = os.path.join(ROOT, "target", "encode-speed")
PACKAGES = ["torch==2.15.0", "transformers==5.22.2", "open_clip_torch==3.3.0", "pillow==13.0.0", "numpy", "scikit-image",
            "scikit-learn", "onnx", "onnxruntime"]
CORES = os.cpu_count()


def inside_venv():
    python = os.environ.get("ULTTA_ENCODE_PYTHON") or os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        subprocess.check_call([sys.executable, "-m", "venv", VENV])
        subprocess.check_call([python, "-m", "pip", "install", "-q", *PACKAGES])
    os.execv(python, [python, __file__, "here", *sys.argv[1:]])


def model():
    """A ViT-B/16 of open_clip with random weights: for torch, for the encoder, and as ONNX in fp32 and int8."""
    import json

    folder = os.path.join(WORK, "ViT-B-16")
    if os.path.exists(os.path.join(folder, "done")):
        return folder
    import open_clip
    import torch
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(0)
    clip = open_clip.create_model("ViT-B-16-quickgelu", pretrained=None).eval()
    config = open_clip.get_model_config("ViT-B-16-quickgelu")
    json.dump(dict(model_cfg=config, preprocess_cfg={}), open(os.path.join(folder, "open_clip_config.json"), "w"))
    state = {k: v.contiguous() for k, v in clip.state_dict().items() if "attn_mask" not in k}
    save_file(state, os.path.join(folder, "open_clip_model.safetensors"))
    try:
        export(clip, folder)
    except ImportError as error:
        print("no ONNX:", error, file=sys.stderr)
    open(os.path.join(folder, "done"), "w").close()
    return folder


def export(clip, folder):
    """image.onnx and text.onnx with a model.json beside them, in folders of their own for fp32 and int8."""
    import json

    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    class Text(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.clip = clip

        def forward(self, ids):
            return self.clip.encode_text(ids)

    torch.backends.mha.set_fastpath_enabled(False)
    fp32, int8 = os.path.join(folder, "onnx-fp32"), os.path.join(folder, "onnx-int8")
    for place in [fp32, int8]:
        os.makedirs(place, exist_ok=True)
        json.dump(dict(size=224, context=77, dim=512, logit_scale=100.0), open(os.path.join(place, "model.json"), "w"))
    with torch.inference_mode():
        torch.onnx.export(clip.visual, (torch.randn(2, 3, 224, 224),), os.path.join(fp32, "image.onnx"), dynamo=False,
                          opset_version=17, input_names=["pixels"], output_names=["features"],
                          dynamic_axes={"pixels": {0: "n"}, "features": {0: "n"}})
        torch.onnx.export(Text(), (torch.randint(1, 49000, (2, 77)),), os.path.join(fp32, "text.onnx"), dynamo=False,
                          opset_version=17, input_names=["ids"], output_names=["features"],
                          dynamic_axes={"ids": {0: "n"}, "features": {0: "n"}})
    for name in ["image.onnx", "text.onnx"]:
        quantize_dynamic(os.path.join(fp32, name), os.path.join(int8, name), weight_type=QuantType.QInt8)


TORCH = """
import sys, time, torch, open_clip
threads, batch, repeats = map(int, sys.argv[1:4])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = open_clip.create_model("ViT-B-16-quickgelu", pretrained=None).eval()
x = torch.randn(batch, 3, 224, 224)
with torch.inference_mode():
    model.encode_image(x)
    for _ in range(repeats):
        begun = time.perf_counter()
        model.encode_image(x)
        print(f"{(time.perf_counter() - begun) * 1e3 / batch:.3f}")
"""


def engines(folder):
    library = None
    try:
        import onnxruntime

        capi = os.path.join(os.path.dirname(onnxruntime.__file__), "capi")
        library = next((os.path.join(capi, f) for f in sorted(os.listdir(capi)) if re.match(r"libonnxruntime\.so", f)), None)
    except ImportError:
        pass
    binary = os.path.join(ROOT, "target", "release", "examples", "encoder_speed")
    features = []
    if library and os.path.exists(os.path.join(folder, "onnx-int8", "image.onnx")):
        features = ["--features", "onnx"]
    subprocess.check_call(["cargo", "build", "-q", "--release", "-p", "ultta-encode", "--example", "encoder_speed",
                           *features], cwd=ROOT)

    def ours(model):
        def run(threads, batch, repeats):
            environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), ORT_DYLIB_PATH=library or "",
                               ULTTA_ONNX_THREADS=str(threads))
            return subprocess.check_output([binary, model, str(batch), str(repeats)], env=environment, text=True)
        return run

    def torch(threads, batch, repeats):
        return subprocess.check_output([sys.executable, "-c", TORCH, str(threads), str(batch), str(repeats)], text=True,
                                       stderr=subprocess.DEVNULL)

    table = {"PyTorch fp32 (open_clip)": torch, "ultta, pure Rust fp32": ours(folder)}
    if features:
        table["ultta `onnx` fp32"] = ours(os.path.join(folder, "onnx-fp32"))
        table["ultta `onnx` int8"] = ours(os.path.join(folder, "onnx-int8"))
    return table


def encoder(rounds, batches=(1, 8, 32)):
    table = engines(model())
    times = {}
    for _ in range(rounds):
        for threads in sorted({1, CORES}):
            for batch in batches:
                for name, run in table.items():
                    repeats = {1: 6, 8: 3}.get(batch, 2)
                    fastest = min(float(line) for line in run(threads, batch, repeats).split())
                    times.setdefault((threads, batch, name), []).append(fastest)
    print("| threads | batch | engine | ms/image | of PyTorch |\n|---|---|---|---|---|")
    first = next(iter(table))
    for (threads, batch, name), values in times.items():
        ratios = [v / t for v, t in zip(values, times[threads, batch, first])]
        print(f"| {threads} | {batch} | {name} | {statistics.median(values):.0f} | {statistics.median(ratios):.2f} |")


PYTHON_LOOP = """
import sys, time, resource, torch, open_clip
from PIL import Image
from torch.utils.data import DataLoader, Dataset
import glob, os
folder, workers = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16-quickgelu", pretrained=None)
model.eval()
tokenizer = open_clip.get_tokenizer("ViT-B-16")
class Folder(Dataset):
    def __init__(self): self.paths = sorted(glob.glob(os.path.join(folder, "*.jpg")))
    def __len__(self): return len(self.paths)
    def __getitem__(self, i): return preprocess(Image.open(self.paths[i]).convert("RGB"))
data = Folder()
with torch.inference_mode():
    text = model.encode_text(tokenizer(["a photo of a cat.", "a photo of a dog.", "a photo of a fox."]))
    text /= text.norm(dim=-1, keepdim=True)
    begun = time.perf_counter()
    n = 0
    for batch in DataLoader(data, batch_size=32, num_workers=workers):
        features = model.encode_image(batch)
        features /= features.norm(dim=-1, keepdim=True)
        probs = (100 * features @ text.T).softmax(-1)
        n += len(probs)
    seconds = time.perf_counter() - begun
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(n / seconds, own / 1024)
"""


def photographs(n):
    """JPEGs of many sizes from the photographs that scikit-image and scikit-learn ship."""
    folder = os.path.join(WORK, f"photos-{n}")
    if os.path.exists(os.path.join(folder, "done")):
        return folder
    import glob
    import random

    import skimage
    import sklearn
    from PIL import Image

    paths = []
    for package in [skimage, sklearn]:
        for ending in ["jpg", "jpeg", "png"]:
            paths += glob.glob(os.path.join(os.path.dirname(package.__file__), "**", "*." + ending), recursive=True)
    sources = [Image.open(p).convert("RGB") for p in sorted(paths) if min(Image.open(p).size) >= 200]
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(0)
    for i in range(n):
        image = draw.choice(sources)
        side = draw.choice([500, 500, 640, 1024, 1600])
        scale = side / max(image.size)
        image.resize((int(image.width * scale), int(image.height * scale)), Image.BICUBIC).save(
            os.path.join(folder, f"{i:05}.jpg"), quality=draw.choice([75, 85, 92]))
    open(os.path.join(folder, "done"), "w").close()
    return folder


def pipeline(rounds, n=96):
    import json

    folder, weights = photographs(n), model()
    binary = os.environ.get("ULTTA_BINARY")
    if not binary:
        subprocess.check_call(["cargo", "build", "-q", "--release", "-p", "ultta-cli"], cwd=ROOT)
        binary = os.path.join(ROOT, "target", "release", "ultta")
    results = {}

    def ours(extra):
        # Loading the model and the head is left out on both sides: a run over one picture is subtracted.
        def run(paths):
            with tempfile.NamedTemporaryFile() as log:
                command = ["/usr/bin/env", "time", "-f", "%e %M", "-o", log.name, binary, "classify", *paths, "--model",
                           weights, "--labels", "cat,dog,fox", "--json", "-q", *extra]
                out = subprocess.check_output(command, text=True)
                seconds, peak = log.read().decode().split()[-2:]
                return float(seconds), float(peak) / 1024, len(out.splitlines())
        one = run([os.path.join(folder, "00000.jpg")])
        seconds, peak, lines = run([folder])
        assert lines == n
        return (n - 1) / (seconds - one[0]), peak

    def python(workers):
        out = subprocess.check_output([sys.executable, "-c", PYTHON_LOOP, folder, str(workers)], text=True,
                                      stderr=subprocess.DEVNULL)
        rate, peak = map(float, out.split())
        return rate, peak

    jobs = {f"Python: open_clip, PIL, DataLoader with {CORES} workers": lambda: python(CORES),
            "ultta classify": lambda: ours([]),
            "ultta classify, zero-shot only": lambda: ours(["--method", "zero-shot"])}
    for _ in range(rounds):
        for name, job in jobs.items():
            results.setdefault(name, []).append(job())
    print("| pipeline | images/s | of Python | peak MB |\n|---|---|---|---|")
    first = next(iter(jobs))
    for name, values in results.items():
        ratios = [v[0] / t[0] for v, t in zip(values, results[first])]
        print(f"| {name} | {statistics.median(v[0] for v in values):.2f} | {statistics.median(ratios):.2f} | "
              f"{statistics.median(v[1] for v in values):.0f} |")


if __name__ == "__main__":
    if "here" not in sys.argv:
        inside_venv()
    which = sys.argv[2] if len(sys.argv) > 2 else "all"
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    os.makedirs(WORK, exist_ok=True)
    if which in ("all", "encoder"):
        encoder(rounds, tuple(map(int, sys.argv[4].split(","))) if len(sys.argv) > 4 else (1, 8, 32))
    if which in ("all", "pipeline"):
        pipeline(rounds)
