"""headwise profile: seconds and peak memory over the beginning of a corpus, and over all of it.

    python benchmarks/head_profiles.py --sst2 data/sst2 --multi30k data/multi30k     # that of docs/profile.md; minutes
    python benchmarks/head_profiles.py --corpus corpus.txt --bytes 1000000 3000000

The corpus of docs/profile.md: the paragraphs of `pydoc_data.topics`, the sentences of SST-2 (train.tsv, dev.tsv,
test.tsv) and the English captions of Multi30k (*.en.gz), shuffled. Each run is a process of its own, with its own peak.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

SST2 = ("train.tsv", "dev.tsv", "test.tsv")
MULTI30K = ("train.en.gz", "val.en.gz", "test_2016_flickr.en.gz")


def corpus(sst2: Path, multi30k: Path) -> str:
    """Texts with blank lines between."""
    texts = [part.strip() for topic in topics.values() for part in re.split(r"\n\s*\n", topic.strip()) if part.strip()]
    for name in SST2:
        texts += [line.split("\t")[0].strip() for line in (sst2 / name).open(encoding="utf-8")]
    for name in MULTI30K:
        with gzip.open(multi30k / name, "rt", encoding="utf-8") as lines:
            texts += [line.strip() for line in lines]
    random.Random(0).shuffle(texts)
    return "\n\n".join(texts) + "\n"


def run(path: Path, out: Path) -> tuple[str, float, float]:
    """The last line that the command prints, its seconds, and its peak memory in MB."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "headwise", "profile", "--file", str(path), "--out", str(out)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        said.seek(0)
        lines = said.read().splitlines()
    if status:
        sys.exit(f"headwise profile failed on {path}")
    return lines[-1].strip(), time.perf_counter() - begun, usage.ru_maxrss / 1000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--corpus", type=Path, help="a text file, in place of the corpus of docs/profile.md")
    options.add_argument("--sst2", type=Path, help="a folder with train.tsv, dev.tsv and test.tsv")
    options.add_argument("--multi30k", type=Path, help="a folder with *.en.gz")
    options.add_argument("--bytes", type=int, nargs="*", default=[1_000_000], help="beginnings to profile first")
    given = options.parse_args()
    if given.corpus is None and None in (given.sst2, given.multi30k):
        options.error("expected --corpus, or both --sst2 and --multi30k")
    whole = given.corpus.read_bytes() if given.corpus else corpus(given.sst2, given.multi30k).encode()
    print("| bytes | seconds | peak MB | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for size in (*given.bytes, len(whole)):
            path = Path(folder) / "corpus.txt"
            path.write_bytes(whole[:size].decode(errors="ignore").encode())
            last, seconds, peak = run(path, Path(folder) / "profile.hw")
            print(
                f"| {size:,} | {seconds:.0f} | {peak:.0f} | {last.partition(': ')[2].partition('.')[0]} |", flush=True
            )


if __name__ == "__main__":
    main()
