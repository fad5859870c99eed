"""Makes a folder that `ultta --model FOLDER` opens out of a model that is not in one of the layouts it reads.

    pip install open_clip_torch safetensors onnx
    python docs/convert_model.py RemoteCLIP-RN50.pt --as RN50 --out remoteclip-rn50
    python docs/convert_model.py RS5M_ViT-L-14.pt --as ViT-L-14 --out georsclip-l-14
    python docs/convert_model.py RN50.pt --as RN50-quickgelu --out openai-rn50          # OpenAI's own archive
    python docs/convert_model.py hf-hub:apple/MobileCLIP-S2-OpenCLIP --onnx --out mobileclip-s2

A file of weights is written again as safetensors beside the configuration that open_clip has under the name `--as` (its weights
must fit). With `--onnx` a model that open_clip opens by name is exported: image.onnx, text.onnx, model.json; such a folder needs
a build with `--features onnx`.
"""

import argparse
import json
import os


def weights_of(path):
    """The tensors of a file of torch.save, TorchScript or safetensors, under open_clip's names."""
    import torch

    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        state = torch.jit.load(path, map_location="cpu").state_dict()
    for key in ["state_dict", "model"]:
        if isinstance(state.get(key), dict):
            state = state[key]
    # Checkpoints of distributed training carry a prefix, OpenAI's archives three numbers that are no weights.
    state = {name.removeprefix("module."): value for name, value in state.items()}
    return {k: v for k, v in state.items() if k not in ("input_resolution", "context_length", "vocab_size", "attn_mask")}


def convert(path, name, out):
    import open_clip
    from safetensors.torch import save_file

    config = open_clip.get_model_config(name)
    if config is None:
        raise SystemExit(f"--as: open_clip knows no {name!r} (open_clip.list_models())")
    state = weights_of(path)
    model = open_clip.create_model(name, pretrained=None)
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise SystemExit(f"{path} does not fit {name}: {error}")
    missing = [k for k in missing if "attn_mask" not in k and "num_batches_tracked" not in k]
    unexpected = [k for k in unexpected if k != "logit_bias"]
    if missing or unexpected:
        raise SystemExit(f"{path} does not fit {name}: missing {missing[:3]}, unexpected {unexpected[:3]}")
    keep = {k: v.contiguous() for k, v in state.items() if "attn_mask" not in k}
    save_file(keep, os.path.join(out, "open_clip_model.safetensors"))
    with open(os.path.join(out, "open_clip_config.json"), "w") as file:
        json.dump({"model_cfg": config, "preprocess_cfg": {}}, file, indent=1)


def export(name, out):
    import open_clip
    import torch

    model = open_clip.create_model(name).eval()
    size = model.visual.image_size
    size = size[0] if isinstance(size, (tuple, list)) else size
    given = open_clip.get_model_preprocess_cfg(model)
    context = model.context_length

    class Tower(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

    class Image(Tower):
        def forward(self, pixels):
            return self.model.encode_image(pixels)

    class Text(Tower):
        def forward(self, ids):
            return self.model.encode_text(ids)

    # The fused attention of PyTorch has no counterpart in ONNX.
    torch.backends.mha.set_fastpath_enabled(False)
    ids = open_clip.get_tokenizer(name)(["a photo of a dog", "a cat"])
    with torch.inference_mode():
        for file, module, example in [("image", Image(), torch.randn(2, 3, size, size)), ("text", Text(), ids)]:
            torch.onnx.export(module.eval(), (example,), os.path.join(out, file + ".onnx"), dynamo=False, opset_version=17,
                              input_names=["input"], output_names=["features"],
                              dynamic_axes={"input": {0: "n"}, "features": {0: "n"}})
    bias = getattr(model, "logit_bias", None)
    about = {"size": size, "context": context, "logit_scale": model.logit_scale.exp().item(),
             "logit_bias": 0.0 if bias is None else bias.item(), "mean": list(given["mean"]), "std": list(given["std"]),
             "resize": given.get("resize_mode", "shortest"), "tokens": "clip"}
    with open(os.path.join(out, "model.json"), "w") as file:
        json.dump(about, file, indent=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a file of weights, or with --onnx a name of open_clip")
    parser.add_argument("--as", dest="name", help="open_clip's name of the architecture, such as RN50 or ViT-B-32-quickgelu")
    parser.add_argument("--onnx", action="store_true", help="export to ONNX")
    parser.add_argument("--out", required=True, help="the folder to write")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.onnx:
        export(args.model, args.out)
    elif args.name:
        convert(args.model, args.name, args.out)
    else:
        parser.error("give --as NAME, or --onnx")
    print(f"ultta doctor --check-model --model {args.out}")
