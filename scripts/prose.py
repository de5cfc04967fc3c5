"""Finds words in the documentation that this project does not use, with the word to write instead.

    python scripts/prose.py        (make lint calls it, beside codespell)

It reads the pages, and the docstrings of the package, which the API reference shows. Listings and
inline code are left out: they show what a program prints. docs/reference/glossary.md has the words
that are used. It also finds comments of ``native/``, and comments and docstrings of Python, that
open with a bare "Of", "It" or "And" and need the name beside them: a comment is understood
when it is quoted alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTEAD = {
    "keeper": "agent",
    "papers": "artifacts",
    "doorbell": "wake-up",
    "poison(s|ed)?": "abort",
    "herald": "abort listener",
    "cut off": "unreachable",
    "under way": "in flight",
    "for ever": "forever",
    "to have it off": "to disable it",
    "mend(s|ed)?": "fix",
    "crowded": "oversubscribed",
    "glances?": "scan",
    "processes part(ed)?": "processes diverge",
    "whoever": "the process that, the program that",
    "nobody": "no process, no program",
    "utili[sz]e[sd]?": "use",
    "leverage[sd]?": "use",
    "in order to": "to",
}
OPENERS = (
    *("Of", "By", "Not", "Behind", "Where", "Wants", "Once more", "And", "But"),
    *("Also", "It", "They", "Their", "Several"),
)
"""How a comment does not begin."""
PYTHON_OPENERS = tuple(opener for opener in OPENERS if opener != "Where")
"""How those of Python do not begin: "Where the files lie" is a name for a path."""
_BEFORE_DOCSTRING = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_CODE = re.compile(r"^```.*?^```$|^ {4,}[^\n]*$|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)
_WORDS = re.compile(r"\b(" + "|".join(INSTEAD) + r")\b", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^[ \t]*//[^\n]*\n?)+", re.M)
_PYTHON_OPENER = re.compile(r"(?:#|[rR]?\"{1,3})\s*(" + "|".join(PYTHON_OPENERS) + r")\b")
_OPENER = re.compile(r"\s*//\s*(" + "|".join(OPENERS) + r")\b")


def findings(text: str) -> list[tuple[int, str, str]]:
    """Line, word, and what to write instead, for each word that is not to be used."""
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    return [
        (prose.count("\n", 0, found.start()) + 1, found[0], _instead(found[0]))
        for found in _WORDS.finditer(prose)
    ]


def _instead(word: str) -> str:
    return next(new for old, new in INSTEAD.items() if re.fullmatch(old, word, re.IGNORECASE))


def docstrings(source: str) -> list[tuple[int, str]]:
    """The docstrings of a module, with the lines at which they begin."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if text := ast.get_docstring(node):
                found.append((node.body[0].lineno, text))
    return found


def texts() -> Iterator[tuple[Path, int, str]]:
    """All that is read: file, first line, text."""
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        yield page, 1, page.read_text()
    for module in sorted((ROOT / "src").rglob("*.py")):
        for line, text in docstrings(module.read_text()):
            yield module, line, text


def bare_openers(source: str) -> list[tuple[int, str]]:
    """Line and first word of each comment of C++ that begins with one of OPENERS."""
    return [
        (source.count("\n", 0, comment.start()) + 1, opener[1])
        for comment in _COMMENT.finditer(source)
        if (opener := _OPENER.match(comment[0]))
    ]


def native_findings() -> Iterator[str]:
    for path in sorted((ROOT / "native").rglob("*")):
        if path.suffix in {".cc", ".h"}:
            for line, word in bare_openers(path.read_text()):
                yield (
                    f"{path.relative_to(ROOT)}:{line}: a comment opens with {word!r}: "
                    "begin with its subject or a verb"
                )


def bare_openers_of_python(source: str) -> list[tuple[int, str]]:
    """Line and first word of each comment and docstring that begins with one of PYTHON_OPENERS."""
    found, comment_at, last = [], -1, tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and last in _BEFORE_DOCSTRING
        begins = token.type == tokenize.COMMENT and token.start[0] != comment_at + 1
        if (is_docstring or begins) and (opener := _PYTHON_OPENER.match(token.string)):
            found.append((token.start[0], opener[1]))
        if token.type == tokenize.COMMENT:
            comment_at = token.start[0]
        elif token.type != tokenize.NL:
            last = token.type
    return found


def python_findings() -> Iterator[str]:
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]):
        for line, word in bare_openers_of_python(path.read_text()):
            yield (
                f"{path.relative_to(ROOT)}:{line}: a comment or docstring opens with {word!r}: "
                "begin with its subject or a verb"
            )


def main() -> int:
    found, read = [*native_findings(), *python_findings()], 0
    for path, first, text in texts():
        read += 1
        for line, word, instead in findings(text):
            found.append(f"{path.relative_to(ROOT)}:{first + line - 1}: {word!r}: write {instead}")
    print(
        "\n".join(found)
        or f"{read} pages and docstrings, and comments: no word that is not to be used"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
