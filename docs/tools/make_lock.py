"""Make requirements.lock, the packages of the container with their hashes: `python docs/tools/make_lock.py` (needs uv).

The versions are those of constraints.txt, for every supported Python and system. PyTorch is left out: its builds for
a CPU and for each CUDA have hashes of their own.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("train", "export")
PYTORCH = re.compile(r"torch|torchvision|triton|cuda-.*|nvidia-.*")
HEADER = """\
# The packages that densecal[{extras}] was tested with, and setuptools, which builds it. PyTorch is left out: install
# the build for your device first, in the version of constraints.txt. Made by python docs/tools/make_lock.py.
#   pip install --no-deps --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation .
"""


def compiled() -> str:
    """Return what uv writes for the package."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "-c", "constraints.txt"]
    for extra in EXTRAS:
        command += ["--extra", extra]
    command += ["pyproject.toml", "-"]
    done = subprocess.run(command, cwd=ROOT, input="setuptools", check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    """Write the file."""
    blocks = re.findall(r"^[\w.-]+==.*\n(?:    --hash=.*\n)+", compiled(), flags=re.MULTILINE)
    kept = [block for block in blocks if not PYTORCH.fullmatch(block.partition("==")[0])]
    text = HEADER.format(extras=",".join(EXTRAS)) + "".join(kept)
    (ROOT / "requirements.lock").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
