"""The language of the documentation, checked (tools/lint prose): sentences of 25 words on average and 45 at most on
each page, a README of 1,500 words at most, and no name in code type that the source does not have."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AVERAGE, LONGEST, README_WORDS = 25, 45, 1500
SOURCES = ("src", "tests", "tools", "config", "cmake")
# Names of the kernel, of libc, of DPDK, of other projects: the source does not have them.
NAMES_OF_OTHERS = set("""
pidfd_getfd
""".split())


def pages():
    top = [name for name in sorted(os.listdir(ROOT)) if name.endswith(".md")]
    return top + ["docs/" + name for name in sorted(os.listdir(os.path.join(ROOT, "docs"))) if name.endswith(".md")]


def text(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def prose(page):
    """The sentences of a page: without code blocks; a heading, a list item and a table's cell each end one."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.S)
    page = re.sub(r"^    .*$", "", page, flags=re.M) if "\n\n    BYPASS" in page else page
    page = re.sub(r"`[^`]*`", "code", page)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    blocks = []
    for paragraph in re.split(r"\n\s*\n", page):
        for item in re.split(r"\n(?=\s*(?:[-*|#]|\d+\.)\s)|\n(?=\|)", paragraph):
            blocks += item.split("|") if item.lstrip().startswith("|") else [item]
    for block in blocks:
        block = re.sub(r"^\s*(?:[-*#]+|\d+\.)\s", "", block.strip())
        for sentence in re.split(r"(?<=[.!?:;])[*_)\"]*\s+(?=[\"(*_]*[A-Z0-9`c])|:\s*$", block):
            words = re.findall(r"[^\s]*\w[^\s]*", sentence or "")
            if words:
                yield words


def check_sentences(name):
    sentences = list(prose(text(name)))
    problems = [f"{name}: a sentence of {len(words)} words, {LONGEST} are allowed: {' '.join(words[:12])} …"
                for words in sentences if len(words) > LONGEST]
    full = [words for words in sentences if len(words) > 3]
    average = sum(map(len, full)) / max(1, len(full))
    if average > AVERAGE:
        problems.append(f"{name}: {average:.1f} words a sentence on average, {AVERAGE} are allowed")
    return problems


def source_words():
    """Each word of the sources, and each path below them, with and without its ending."""
    words, paths = set(), set()
    for top in SOURCES:
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            if "__pycache__" in folder:
                continue
            relative = os.path.relpath(folder, ROOT)
            paths.add(relative)
            for file in files:
                path = os.path.join(relative, file)
                paths |= {path, os.path.splitext(path)[0]}
                try:
                    words |= set(re.findall(r"\w+", text(path)))
                except UnicodeDecodeError:
                    pass
    return words, paths


def check_names(name, words, paths):
    """Paths (`stack/tcp/`, `socket/wait/wait.cc`), calls (`end_sleep()`), members (`Stack::rebuild`) and constants (`kLowMemory`)."""
    problems = []
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text(name), flags=re.S | re.M))
    for span in spans:
        if span.startswith("build/"):
            continue
        for word in re.findall(r"\b(?:src|tests|tools|config|\w+)/[\w/.-]*\w|\b\w+\.(?:cc|h|py)\b", span):
            if re.match(r"^/|^\w+:", span) or not re.match(r"^[\w/.{},-]+(:.*)?$", span):
                continue
            if not any(path == word or path.endswith("/" + word) for path in paths):
                problems.append(f"{name}: `{span}` names {word}, which is not there")
        for word in re.findall(r"\b[A-Za-z_]\w*(?=\(\))|(?<=::)\w+|\b\w+(?=::)|\bk[A-Z]\w+", span):
            if word not in words and word not in NAMES_OF_OTHERS:
                problems.append(f"{name}: `{span}` names {word}, which the source does not have")
    return problems


def main():
    problems = []
    words, paths = source_words()
    for name in pages():
        problems += check_sentences(name)
        problems += check_names(name, words, paths)
    count = len(text("README.md").split())
    if count > README_WORDS:
        problems.append(f"README.md: {count} words, {README_WORDS} are allowed")
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


main()
