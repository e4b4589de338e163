"""Counts the code lines of the gallery's programs, and writes the table of `docs/gallery.md`.

    python benchmarks/gallery/count.py            # prints the table
    python benchmarks/gallery/count.py --write    # puts it into the page, between its two marks

A code line holds something other than a comment or a docstring; blank lines do not count. Data (`gallery_data.py`) does
not count, for any library.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
BEGIN, END = "<!-- gallery: written by benchmarks/gallery/count.py -->\n", "<!-- end of gallery -->"
LIBRARIES = ("equinox", "flax")
# The programs in the page's order, with what each is.
PROGRAMS = {
    "mlp": "an MLP",
    "resnet": "a ResNet with BatchNorm",
    "gpt": "a GPT: stacked blocks, scan, remat, key-value cache, generation",
    "seq2seq": "sequence to sequence: recurrent cells, attention, teacher forcing",
    "vae": "a variational autoencoder",
    "gan": "a GAN: two models, two optimizers",
    "ensemble": "an ensemble, trained at once",
    "lora": "LoRA: surgery, a frozen base, merging",
    "dqn": "deep Q-learning: replay, a target network",
    "diffusion": "diffusion: bfloat16 inside, an average, save and resume",
    "captured": "gradients at activations, attention maps",
}
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """How many lines of a program hold code.

    >>> code_lines('# A comment.' + chr(10) + 'x = 1  # one' + chr(10) * 2 + 'y = 2')
    2
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def path_of(program: str, library: str) -> Path:
    """Where a program lies."""
    if library == "weft":
        return ROOT / "examples" / "gallery" / f"{program}.py"
    return ROOT / "benchmarks" / "gallery" / f"{library}_{program}.py"


def counts() -> dict[str, dict[str, int]]:
    """For each program, its code lines by library, where it is written in it."""
    return {
        program: {
            library: code_lines(path_of(program, library).read_text())
            for library in ("weft", *LIBRARIES)
            if path_of(program, library).exists()
        }
        for program in PROGRAMS
    }


def table() -> str:
    """The table of the page."""
    rows = ["| program | weft | equinox | flax.nnx |", "| --- | --- | --- | --- |"]
    by_program = counts()
    for program, by_library in by_program.items():
        numbers = [str(by_library.get(library, "")) for library in ("weft", *LIBRARIES)]
        link = f"[{PROGRAMS[program]}](../examples/gallery/{program}.py)"
        rows.append(f"| {' | '.join([link, *numbers])} |")
    both = [by_library for by_library in by_program.values() if "flax" in by_library]
    ours, theirs = (sum(by_library[library] for by_library in by_program.values()) for library in ("weft", "equinox"))
    some = f"{sum(row['flax'] for row in both)} (weft {sum(row['weft'] for row in both)})"
    rows.append(f"| all | {ours} | {theirs} | {some} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Prints the table, or writes it."""
    if "--write" not in sys.argv:
        print(table(), end="")
        return
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
