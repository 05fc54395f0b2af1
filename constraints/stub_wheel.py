"""A distribution that is only a name and a version: `stub_wheel.py FOLDER NAME==VERSION …` writes a wheel of each into FOLDER.

Packages that ask for a distribution by name (verl: TransferQueue, vllm) are content, and nobody writes a module over one of ours. Such a wheel is for
the environment it is made for: its classifier is one that package indexes refuse, so that it cannot be published by mistake.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.!]*)")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is made


def write_stub(folder: Path, requirement: str) -> Path:
    """The wheel of `requirement`, "NAME==VERSION". Raises ValueError for anything else."""
    found = _NAMED.fullmatch(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} is not NAME==VERSION: there would be nothing to name the stub by; write e.g. TransferQueue==0.1.11")
    name, version = found.groups()
    stem = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A name and a version, without any module\n"
        "Classifier: Private :: Do Not Upload\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: stub_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files = {f"{stem}.dist-info/{key}": text.encode() for key, text in texts.items()}
    record = f"{stem}.dist-info/RECORD"
    files[record] = "".join([*(f"{path},{_digest(data)},{len(data)}\n" for path, data in files.items()), f"{record},,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data)
    return wheel


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    for asked in sys.argv[2:]:
        print(write_stub(Path(sys.argv[1]), asked))
